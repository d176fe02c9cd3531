//! [`Cause`]: the likely cause of a difference between a verified run and its reference, with printed advice.

use std::fmt;

/// The likely cause of a difference between a verified run and its reference (the full batch on one device). To
/// recognise a bug in gradient accumulation, the gradients of the first step are compared with those that the bug would
/// give.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// The training run averages the mean losses of its micro-batches, although they may have different numbers of
    /// targets. The value says whether the loss function or the training loop does so.
    #[error("mean of means: {0}")]
    MeanOfMeans(Whose),
    /// All gradients are too large or too small by the same factor. A division by the loss weight (usually the number
    /// of targets) may be missing.
    #[error(
        "a missed division: all gradients are {factor:.6} times the right ones; divide the sum of a step once, \
        by the weight of all its targets, which `LossStage::weight` must count"
    )]
    MissedDivision {
        /// Ratio of the verified run's gradients to the correct gradients, the same for all parameters.
        factor: f64,
    },
    /// The training run leaves one micro-batch out of the gradients of a stage.
    #[error(
        "stage {stage} drops micro-batch {micro_batch}: its gradients, and those before it, are the sum without it; \
        look for what is detached or left out there"
    )]
    MissingMicroBatch {
        /// Zero-based index of the last stage whose gradients leave out a micro-batch by mistake. Earlier stages may
        /// leave it out too, because they receive no gradients for it.
        stage: usize,
        /// Zero-based index of the micro-batch that is missing from the stage's gradients.
        micro_batch: usize,
    },
    /// Gradients are clipped separately per micro-batch, stage or parameter, instead of all together once per step. The
    /// value says which.
    #[error("a clip per {0}: clip all gradients together, once a step, when they are added up")]
    ClippedApart(ClipScope),
    /// The training run does not clip its gradients, although gradient clipping is configured.
    #[error("gradients are not clipped; clip them when they are added up")]
    NotClipped,
    /// A batch norm normalises each micro-batch by the micro-batch's own statistics, instead of the statistics of the
    /// whole batch.
    #[error(
        "a batch norm, `{path}` of stage {stage}: it normalises each micro-batch by its own statistics, so its gradients depend on \
         the number of micro-batches, also with `AccumulatedBatchNorm`; take a norm over single samples, such as a group norm"
    )]
    BatchNorm {
        /// Zero-based index of the stage that contains the model's first batch norm.
        stage: usize,
        /// The path, in the stage's module, of the model's first batch norm.
        path: String,
    },
    /// The loss of a sample depends on the other samples in its micro-batch, as with a mean over dimension 0. Another
    /// possible cause is a loss term that is added once per micro-batch, such as a regulariser. A batch norm is not the
    /// cause, because the model has none.
    #[error(
        "the loss of a sample depends on the other samples of its micro-batch, or something is added once a \
        micro-batch; look for a mean, a maximum or a difference over the first dimension, and for a regulariser in \
        the loss"
    )]
    CoupledSamples,
    /// The model draws different random numbers each time, so its gradients differ each time even for the same batch.
    #[error("the model draws random numbers that depend on more than the sample; drop with `stageline::Dropout`")]
    DrawsRandomNumbers,
    /// The model has different initial parameters each time that it is built, so two runs of it cannot agree.
    /// Initialise its layers with [`seeded`](crate::seeded).
    #[error("the model has other parameters each time that it is built; make its layers with `seeded`")]
    NotSeeded,
    /// The partition into stages changes the model: run one after another on one device, the stages give other
    /// gradients than the undivided model.
    #[error(
        "the cut: the stages in sequence compute something else than the uncut model, first at `{path}` of stage {stage}; \
        check what each stage sends on, and what it leaves out or does twice"
    )]
    Cut {
        /// Zero-based index of the first stage with a parameter whose gradient differs from that in the undivided
        /// model.
        stage: usize,
        /// The path, in the stage's module, of the first parameter whose gradient differs from that in the undivided
        /// model.
        path: String,
    },
    /// A submodule of the model gives different values or gradients when the backward pass recomputes it (activation
    /// recomputation).
    #[error(
        "recomputation: from the loss backwards, `{name}` of stage {stage} is the first parameter that it changes; the \
        recomputed part with this parameter depends on more than its module and its input; look for captured \
        tensors, counters and random numbers in its forward, and for an input that is used more than once in the part \
        and once more outside of it"
    )]
    Recomputation {
        /// Zero-based index of the last stage (the nearest to the loss) whose gradients change because of
        /// recomputation. If no gradient changes, it is the last stage with a parameter whose value after the step
        /// changes.
        stage: usize,
        /// Name, in checkpoints, of the last parameter (the nearest to the loss) whose gradient changes because of
        /// recomputation. If no gradient changes, it is the last parameter whose value after the step changes.
        name: String,
    },
    /// A layer's weight gradient in a split backward pass (input gradient, then weight gradient) differs from that in
    /// an unsplit backward pass by more than the tolerance for gradients.
    #[error(
        "a split backward: from the loss backwards, `{name}` of stage {stage} is the first parameter whose gradient \
        differs from that of a whole backward by more than rounding; compare what its layer gives to `put_off` with \
        what it computes otherwise"
    )]
    SplitBackward {
        /// Zero-based index of the last stage (the nearest to the loss) whose split backward pass (input gradient, then
        /// weight gradient) gives a wrong gradient: it differs from an unsplit backward pass's by more than the
        /// tolerance.
        stage: usize,
        /// Name, in checkpoints, of the last parameter (the nearest to the loss) whose gradient in a split backward
        /// pass (input gradient, then weight gradient) differs from that in an unsplit one by more than the tolerance.
        name: String,
    },
    /// Running on several workers changes the results: one step of the pipeline differs from the same step of a plain
    /// training loop (without a pipeline, on one thread), and neither recomputation nor split backward passes explain
    /// this. On this host's CPU, any differing bit of a gradient or parameter counts; on other devices, only a gradient
    /// that differs by more than the tolerance.
    #[error(
        "the workers: from the loss backwards, `{name}` of stage {stage} is the first parameter with other bits than in \
        a plain loop over the same micro-batches; look for state that stages or micro-batches share, such as a \
        static variable"
    )]
    OtherBits {
        /// Zero-based index of the last stage (the nearest to the loss) whose gradients in the pipeline and in a plain
        /// training loop differ. If no gradient differs, it is the last stage with a parameter whose value after the
        /// step differs.
        stage: usize,
        /// Name, in checkpoints, of the last parameter (the nearest to the loss) whose gradients in the pipeline and in
        /// a plain training loop differ. If no gradient differs, it is the last parameter whose value after the step
        /// differs.
        name: String,
    },
    /// The difference is only rounding, because the stages compute in BF16 or F16 instead of full precision.
    #[error("rounding: in full precision the gradients agree")]
    Rounding,
    /// The gradients of the first step agree, so the bug is in the optimizer step or in a later training step.
    #[error("the gradients of the first step agree, but the losses differ {place}; check the optimizer, a learning \
        rate that counts micro-batches, and anything that changes from step to step", place = place(*step))]
    AfterTheGradients {
        /// Zero-based index of the first step whose training loss in the verified run differs from that in the
        /// single-device reference run by more than the tolerance. `None` if only the validation losses differ.
        step: Option<usize>,
    },
    /// No known bug in gradient accumulation or clipping explains the difference.
    #[error(
        "no known fault gives these gradients; begin with `{path}` of stage {stage}, where the difference is the largest"
    )]
    Unknown {
        /// Zero-based index of the stage that trains the parameter whose gradients differ most between the verified run
        /// and its single-device reference run.
        stage: usize,
        /// The path, in the stage's module, of the parameter whose gradients differ most between the verified run and
        /// its single-device reference run.
        path: String,
    },
}

/// The code that wrongly averages the mean losses of micro-batches: the user's loss function, or the training loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// The loss function returns the mean over a micro-batch's targets instead of their sum.
    Loss,
    /// The training loop averages the mean losses of the micro-batches. It should divide the sum of all losses by the
    /// loss weight of the whole step.
    Training,
}

/// The part of a step's gradients that the training run wrongly clips separately: the gradients of one micro-batch,
/// stage or parameter. All gradients of a step should be clipped together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClipScope {
    /// The gradients are clipped at every micro-batch, instead of once per step.
    MicroBatch,
    /// The gradients of each stage are clipped separately, instead of the gradients of all stages together.
    Stage,
    /// The gradient of each parameter is clipped separately, instead of the gradients of all parameters together.
    Parameter,
}

/// Describes, for an error message, when two losses differ: at step `step`, or after the last step if `step` is `None`.
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
