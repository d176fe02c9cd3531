//! [`Cause`]: the likely cause of a difference between a verified training and its reference, with the advice that is
//! printed for it.

use std::fmt;

/// The likely cause of a difference between a verified training and its reference (the full batch on one device).
/// Faults of gradient accumulation are recognised by the wrong gradients that they would give at the first step, with
/// which the gradients of the verified training are compared.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// A possible cause of a difference from the reference training: in the loss of a step of the verified training,
    /// each micro-batch's mean loss counts equally, whatever its number of targets.
    #[error("mean of means: {0}")]
    MeanOfMeans(Whose),
    /// A possible cause of a difference from the reference training: every gradient of the verified training is too
    /// large or too small by the same factor, as if a division by the loss weight (the number of targets) were missing.
    #[error(
        "a missed division: all gradients are {factor:.6} times the right ones; divide the sum of a step once, \
        by the weight of all its targets, which `LossStage::weight` must count"
    )]
    MissedDivision {
        /// The factor by which every gradient is wrong: the gradient in the verified training divided by the correct
        /// gradient.
        factor: f64,
    },
    /// A possible cause of a difference from the reference training: the verified training leaves one micro-batch out
    /// of the gradients of a stage.
    #[error(
        "stage {stage} drops micro-batch {micro_batch}: its gradients, and those before it, are the sum without it; \
        look for what is detached or left out there"
    )]
    MissingMicroBatch {
        /// The index of the last stage (the nearest to the loss) whose gradients leave out a micro-batch by mistake.
        /// Earlier stages may leave out the same micro-batch too, because they receive no gradients for it.
        stage: usize,
        /// The index of the micro-batch that the verified training leaves out of the stage's gradients.
        micro_batch: usize,
    },
    /// A possible cause of a difference from the reference training: the verified training clips gradients separately
    /// per micro-batch, stage or parameter, instead of all gradients of a step together.
    #[error("a clip per {0}: clip all gradients together, once a step, when they are added up")]
    ClippedApart(ClipScope),
    /// A possible cause of a difference from the reference training: the verified training does not clip its gradients,
    /// although gradient clipping is configured.
    #[error("gradients are not clipped; clip them when they are added up")]
    NotClipped,
    /// A possible cause of a difference from the reference training: a batch norm of the model normalises each
    /// micro-batch by the micro-batch's own statistics, instead of by those of the whole batch.
    #[error(
        "a batch norm, `{path}` of stage {stage}: it normalises each micro-batch by its own statistics, which no \
        accumulation can undo; take a norm over single samples, or accept it with `AccumulatedBatchNorm`"
    )]
    BatchNorm {
        /// The index of the stage with the first batch norm of the model. A batch norm computes its statistics over one
        /// micro-batch, so the verified training and its reference (the same training on one device), which split the
        /// batch into different numbers of micro-batches, differ.
        stage: usize,
        /// The path, in the stage's module, of the first batch norm of the model. A batch norm computes its statistics
        /// over one micro-batch, so the verified training and its reference (the same training on one device), which
        /// split the batch into different numbers of micro-batches, differ.
        path: String,
    },
    /// A possible cause of a difference from the reference training: the loss of a sample depends on the other samples
    /// of its micro-batch (for example by a mean over dimension 0), or something is added to the loss once per
    /// micro-batch. The model has no batch norm that would explain it.
    #[error(
        "the loss of a sample depends on the other samples of its micro-batch, or something is added once a \
        micro-batch; look for a mean, a maximum or a difference over the first dimension, and for a regulariser in \
        the loss"
    )]
    CoupledSamples,
    /// A possible cause of a difference from the reference training: the model draws random numbers that differ each
    /// time, so its gradients differ each time that it computes the same batch.
    #[error("the model draws random numbers that depend on more than the sample; drop with `stageline::Dropout`")]
    DrawsRandomNumbers,
    /// A possible cause of a difference from the reference training: the model starts with different parameters each
    /// time that it is built, so the verified training and its reference cannot agree.
    #[error("the model has other parameters each time that it is built; make its layers with `seeded`")]
    NotSeeded,
    /// A possible cause of a difference from the reference training: the partition into stages changes the model. The
    /// stages, run one after another on one device, give other gradients than the model before it was split.
    #[error(
        "the cut: the stages in sequence compute something else than the uncut model, first at `{path}` of stage {stage}; \
        check what each stage sends on, and what it leaves out or does twice"
    )]
    Cut {
        /// The index of the first stage that has a parameter whose gradient differs from that in the model before the
        /// split into stages.
        stage: usize,
        /// The path, in the stage's module, of the first parameter whose gradient differs from that in the model before
        /// it was split into stages.
        path: String,
    },
    /// A possible cause of a difference from the reference training: a part of the model that the backward recomputes
    /// (activation checkpointing) gives other values or gradients than it does without recomputation.
    #[error(
        "recomputation: from the loss backwards, `{name}` of stage {stage} is the first parameter that it changes; the \
        recomputed part with this parameter depends on more than its module and its input; look for captured \
        tensors, counters and random numbers in its forward"
    )]
    Recomputation {
        /// The index of the last stage (the nearest to the loss) with a parameter whose gradient is changed by
        /// recomputation. If no gradient changes, the index of the last stage with a parameter whose value after the
        /// step changes.
        stage: usize,
        /// The name, in checkpoints, of the last parameter (the nearest to the loss) whose gradient is changed by
        /// recomputation. If no gradient changes, the name of the last parameter whose value after the step changes.
        name: String,
    },
    /// A possible cause of a difference from the reference training: a layer computes another weight gradient when the
    /// backward is split into two halves (input gradient, then weight gradient) than when the backward runs whole. The
    /// difference is larger than the tolerance for gradients.
    #[error(
        "a split backward: from the loss backwards, `{name}` of stage {stage} is the first parameter whose gradient \
        differs from that of a whole backward by more than rounding; compare what its layer gives to `put_off` with \
        what it computes otherwise"
    )]
    SplitBackward {
        /// The index of the last stage (the nearest to the loss) with a parameter whose gradient in a split backward
        /// differs from that in a whole backward by more than the tolerance.
        stage: usize,
        /// The name, in checkpoints, of the last parameter (the nearest to the loss) whose gradient in a split backward
        /// differs from that in a whole backward by more than the tolerance.
        name: String,
    },
    /// A possible cause of a difference from the reference training: the workers of the pipeline. One step of the
    /// pipeline gives another result than a plain loop over the same micro-batches on one thread, and neither
    /// recomputation nor split backwards are the reason. On this host's CPU the bits of gradients or parameters differ;
    /// on other devices, gradients differ by more than the tolerance.
    #[error(
        "the workers: from the loss backwards, `{name}` of stage {stage} is the first parameter with other bits than in \
        a plain loop over the same micro-batches; look for state that stages or micro-batches share, such as a \
        static variable"
    )]
    OtherBits {
        /// The index of the last stage (the nearest to the loss) with a parameter whose gradient in the pipeline
        /// differs from that in the plain loop. If no gradient differs, the index of the last stage with a parameter
        /// whose value after the step differs.
        stage: usize,
        /// The name, in checkpoints, of the last parameter (the nearest to the loss) whose gradient in the pipeline
        /// differs from that in the plain loop. If no gradient differs, the name of the last parameter whose value
        /// after the step differs.
        name: String,
    },
    /// A possible cause of a difference from the reference training: only rounding, because the stages compute in BF16
    /// or F16 instead of full precision.
    #[error("rounding: in full precision the gradients agree")]
    Rounding,
    /// A possible cause of a difference from the reference training: the optimizer step or a later training step,
    /// because the gradients of the first step agree.
    #[error("the gradients of the first step agree, but the losses differ {place}; check the optimizer, a learning \
        rate that counts micro-batches, and anything that changes from step to step", place = place(*step))]
    AfterTheGradients {
        /// The first step at which the training losses of the verified training and of its reference (the same training
        /// on one device) differ by more than the tolerance; `None` if only the validation losses differ.
        step: Option<usize>,
    },
    /// The cause of the difference from the reference training is unknown: no known fault of gradient accumulation or
    /// clipping explains it.
    #[error(
        "no known fault gives these gradients; begin with `{path}` of stage {stage}, where the difference is the largest"
    )]
    Unknown {
        /// The index of the stage with the parameter whose gradient differs most from that of the reference (the same
        /// training on one device).
        stage: usize,
        /// The path, in the stage's module, of the parameter whose gradient differs most from that of the reference
        /// (the same training on one device).
        path: String,
    },
}

/// The part of the user's program that averages the mean losses of micro-batches by mistake: the loss function, or the
/// training loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// The loss function wrongly returns the mean over a micro-batch's targets instead of their sum.
    Loss,
    /// The training loop wrongly counts each micro-batch's mean loss equally, whatever its number of targets. It should
    /// divide the sum of all losses by the loss weight of the whole step.
    Training,
}

/// The unit whose gradients are clipped separately by mistake, instead of all gradients of a step together: a
/// micro-batch, a stage or a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClipScope {
    /// The training wrongly clips the gradients at every micro-batch, instead of once per step.
    MicroBatch,
    /// The training wrongly clips the gradients of each stage separately from those of other stages.
    Stage,
    /// The training wrongly clips the gradient of each parameter separately from those of other parameters.
    Parameter,
}

/// Returns the words of an error message that say when the losses of the verified training and of its reference first
/// differ: at a step, or only after the last step (`None`).
fn place(step: Option<usize>) -> String {
    step.map_or("after the last step".to_owned(), |step| format!("at step {step}"))
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
