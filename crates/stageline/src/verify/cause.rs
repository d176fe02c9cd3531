//! Why two trainings of a model are not the same.

use std::fmt;

/// A fault that accumulation is known for, as found by what it would do to the gradients of the first step.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Cause {
    /// The mean over a step is made of the means of its micro-batches, as if they all weighed the same.
    MeanOfMeans(Whose),
    /// All gradients are too large or too small by one factor.
    MissedDivision {
        /// The gradient, as a multiple of what it should be.
        factor: f64,
    },
    /// The gradients of a stage are without one micro-batch.
    MissingMicroBatch {
        /// The stage. The ones before it miss what it does not hand back.
        stage: usize,
        /// The micro-batch.
        micro_batch: usize,
    },
    /// Gradients are clipped part by part, and not all of a step together.
    ClippedApart(ClipScope),
    /// Gradients are not clipped, though they should be.
    NotClipped,
    /// A batch norm normalises each micro-batch by its own statistics.
    BatchNorm {
        /// The stage.
        stage: usize,
        /// Where it is in the stage's module.
        path: String,
    },
    /// The loss of a sample depends on which others are in its micro-batch, though there is no batch norm.
    CoupledSamples,
    /// The model gives other gradients each time that it computes the same.
    DrawsRandomNumbers,
    /// The parameters are not the same each time that the model is built.
    NotSeeded,
    /// The stages, one after the other, are not the uncut model.
    Cut {
        /// The first stage with a parameter whose gradient differs.
        stage: usize,
        /// Where that parameter is in the stage's module.
        path: String,
    },
    /// A part that is recomputed in the backward gives other values, or other gradients, than the part that is kept.
    Recomputation,
    /// It is the rounding of the precision that stages compute in.
    Rounding,
    /// The gradients of the first step are the same; what is made of them, or a later step, is not.
    AfterTheGradients {
        /// The first step whose loss is another; `None` where only the validation loss is.
        step: Option<usize>,
    },
    /// None of these.
    Unknown {
        /// The stage of the parameter whose gradients are the furthest apart.
        stage: usize,
        /// Where it is in the stage's module.
        path: String,
    },
}

/// Where means are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// The loss is a mean already.
    Loss,
    /// The training takes means of micro-batches.
    Training,
}

/// What is clipped by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClipScope {
    /// Each micro-batch.
    MicroBatch,
    /// Each stage.
    Stage,
    /// Each parameter.
    Parameter,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MeanOfMeans(whose) => write!(f, "mean of means: {whose}"),
            Self::MissedDivision { factor } => write!(
                f,
                "a missed division: all gradients are {factor:.6} times what they should be; divide the sum of a step once, \
                 by the weight of all its targets, which `LossStage::weight` must count"
            ),
            Self::MissingMicroBatch { stage, micro_batch } => write!(
                f,
                "stage {stage} drops micro-batch {micro_batch}: its gradients, and those before it, are the sum without it; \
                 look for what is detached or left out there"
            ),
            Self::ClippedApart(scope) => {
                write!(f, "a clip per {scope}: clip all gradients together, once a step, when they are added up")
            }
            Self::NotClipped => write!(f, "gradients are not clipped; clip them when they are added up"),
            Self::BatchNorm { stage, path } => write!(
                f,
                "a batch norm, `{path}` of stage {stage}: it normalises each micro-batch by its own statistics, which no \
                 accumulation can undo; take a norm over single samples, or accept it with `AccumulatedBatchNorm`"
            ),
            Self::CoupledSamples => write!(
                f,
                "the loss of a sample depends on the other samples of its micro-batch, or something is added once a \
                 micro-batch; look for a mean, a maximum or a difference over the first dimension, and for a regulariser in \
                 the loss"
            ),
            Self::DrawsRandomNumbers => write!(
                f,
                "the model draws random numbers that depend on more than the sample; drop with `stageline::Dropout`"
            ),
            Self::NotSeeded => {
                write!(f, "the model has other parameters each time that it is built; make its layers with `seeded`")
            }
            Self::Cut { stage, path } => write!(
                f,
                "the cut: the stages one after the other are another model than the uncut one, first at `{path}` of stage {stage}; \
                 look at what each stage hands on, and at what it leaves out or does twice"
            ),
            Self::Recomputation => write!(
                f,
                "recomputation: a part marked by `block` or `selective` depends on more than its module and its input; look for \
                 captured tensors, counters and random numbers in its forward"
            ),
            Self::Rounding => write!(f, "the precision: in f32 it is the same"),
            Self::AfterTheGradients { step } => {
                let place = step.map_or("after the last step".to_owned(), |step| format!("at step {step}"));
                write!(
                    f,
                    "the gradients of the first step agree, and the losses part {place}; look at the optimizer, at a learning \
                     rate that counts micro-batches, and at what changes from step to step"
                )
            }
            Self::Unknown { stage, path } => write!(
                f,
                "no known fault gives these gradients; begin with `{path}` of stage {stage}, where they are the furthest apart"
            ),
        }
    }
}

impl fmt::Display for Whose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Loss => {
                "`LossStage::loss` gives a mean of a micro-batch; give the sum over its targets, and their number as its weight"
            }
            Self::Training => {
                "the means of the micro-batches are averaged, though they weigh different numbers of targets; add up sums, and \
                 divide by the weight of the whole step"
            }
        })
    }
}

impl fmt::Display for ClipScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::MicroBatch => "micro-batch",
            Self::Stage => "stage",
            Self::Parameter => "parameter",
        })
    }
}
