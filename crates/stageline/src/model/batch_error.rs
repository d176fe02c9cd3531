//! [`BatchError`]: the reason why a batch is rejected. Most messages name the invalid values and a remedy.

/// The reason why a batch is rejected, or why the outputs of an inference cannot be concatenated. After this error, the
/// parameters are unchanged and the pipeline accepts the next batch.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum BatchError {
    /// The batch has fewer rows (the size of its tensors' dimension 0) than the training step has micro-batches over
    /// all replicas. Give more rows, or use fewer micro-batches or replicas.
    #[error(
        "a batch of {rows} rows cannot be cut into {} micro-batches{}; give at least {0} rows, or {}",
        micro_batches * replicas, shared_by(*micro_batches, *replicas), fewer(*rows, *replicas)
    )]
    TooSmall {
        /// The number of rows in the rejected batch: the size of dimension 0 of its tensors.
        rows: usize,
        /// M, the number of micro-batches that each data-parallel replica runs in a training step.
        micro_batches: usize,
        /// R, the number of data-parallel replicas that share the batch.
        replicas: usize,
    },
    /// The tensors of the rejected batch have no rows: the size of their dimension 0 is 0. Give at least one row per
    /// micro-batch.
    #[error("the batch has 0 rows; give at least one row per micro-batch")]
    NoRows,
    /// The sum of all micro-batches' loss weights, which is the divisor of the loss, overflows to infinity. Count loss
    /// weights in a larger unit, which makes them smaller.
    #[error("the loss weights of the batch add up to infinity; count them in a larger unit")]
    TotalWeight,
    /// The caller has split the batch into a different number of micro-batches than a step of the pipeline runs. Split
    /// the batch into that number, or build the pipeline for the batch's number.
    #[error(
        "the batch was cut into {given} micro-batches, but the pipeline runs {}{}; cut it into {0}{}",
        micro_batches * replicas, shared_by(*micro_batches, *replicas), or_built_for(*given, *replicas)
    )]
    Count {
        /// The number of micro-batches in the rejected batch, which the caller has split.
        given: usize,
        /// M, the number of micro-batches that each data-parallel replica runs in a training step.
        micro_batches: usize,
        /// R, the number of data-parallel replicas that share the batch.
        replicas: usize,
    },
    /// The caller has split the batch of an evaluation or inference into no micro-batch, or into more micro-batches
    /// than the pipeline accepts.
    #[error("the batch was cut into {given} micro-batches; an evaluation or inference takes 1 to {most}")]
    CountOfPass {
        /// The number of micro-batches in the rejected batch, which the caller has split.
        given: usize,
        /// The maximum number of micro-batches in an evaluation or inference: M for each data-parallel replica.
        most: usize,
    },
    /// The caller asked to split the batch into 0 micro-batches.
    #[error("a batch cannot be cut into 0 micro-batches; cut it into 1 or more")]
    NoMicroBatches,
    /// The tensors of the rejected batch do not have the same number of rows along dimension 0. If they are not meant
    /// to, split the batch by hand with [`Batch::from_micro_batches`](crate::Batch::from_micro_batches).
    #[error(
        "tensor {tensor} of the batch has {found} rows, but tensor 0 has {rows}; \
         give every tensor one row a sample along dimension 0, or cut by hand with `Batch::from_micro_batches` (in an \
         inference `Pipeline::infer_micro_batches`)"
    )]
    Uneven {
        /// The number of rows (the size of dimension 0) of tensor 0, the first tensor of the batch.
        rows: usize,
        /// Zero-based index of the first tensor whose number of rows differs from that of tensor 0. The input's tensors
        /// are counted first, then the target's.
        tensor: usize,
        /// The number of rows of the tensor with the index `tensor`. It differs from `rows`.
        found: usize,
    },
    /// The rejected batch contains no tensor, so it has no rows that could be split into micro-batches.
    #[error(
        "the batch contains no tensor, so it has no rows to cut; cut it by hand with `Batch::from_micro_batches` (in an \
         inference `Pipeline::infer_micro_batches`)"
    )]
    NoTensors,
    /// The outputs of two micro-batches of an inference cannot be concatenated, because they differ in more than their
    /// number of rows. Use [`Pipeline::infer_micro_batches`](crate::Pipeline::infer_micro_batches) instead, which
    /// returns each micro-batch's output.
    #[error(
        "the output of micro-batch {micro_batch} cannot be appended to that of micro-batch 0: they differ in the sizes of their rows \
         or in their number of tensors; infer the micro-batches one by one with `Pipeline::infer_micro_batches`"
    )]
    Outputs {
        /// Zero-based index of the first micro-batch whose output cannot be concatenated with the output of micro-batch
        /// 0.
        micro_batch: usize,
    },
    /// A micro-batch's loss weight is negative or not finite, so the whole batch is rejected.
    #[error(
        "micro-batch {micro_batch} has loss weight {weight}; `LossStage::weight` must be finite and not negative, and may use the \
         targets and constants of the stage, but not its parameters"
    )]
    Weight {
        /// Zero-based index of the micro-batch whose loss weight is negative or not finite.
        micro_batch: usize,
        /// The negative or non-finite loss weight that [`LossStage::weight`](crate::LossStage::weight) returned.
        weight: f64,
    },
    /// A micro-batch's loss weight has the wrong number of terms. It needs one number for each term of the loss: at
    /// least one, and the same number as in micro-batch 0.
    #[error(
        "micro-batch {micro_batch} has a loss weight of {found} terms, but the first micro-batch has {terms}; \
         `LossStage::weight` must return one number for each term of the loss, and at least one, for all targets"
    )]
    Terms {
        /// Zero-based index of the first micro-batch whose loss weight has the wrong number of terms.
        micro_batch: usize,
        /// The wrong number of terms, which is the length of this micro-batch's loss weight.
        found: usize,
        /// The expected number of terms in the loss weight: one for each term of the loss, as in micro-batch 0.
        terms: usize,
    },
    /// The user's function [`LossStage::weight`](crate::LossStage::weight), which returns the loss weight of a
    /// micro-batch's targets, panicked.
    #[error("`LossStage::weight` failed on the targets of micro-batch {micro_batch}: {failure}")]
    WeightPanic {
        /// Zero-based index of the micro-batch whose targets made the user's function
        /// [`LossStage::weight`](crate::LossStage::weight) panic.
        micro_batch: usize,
        /// The panic message of the user's function [`LossStage::weight`](crate::LossStage::weight) for these targets.
        failure: String,
    },
    /// The total loss weight of the rejected batch is 0, because every target is masked. A training step skips such a
    /// batch instead of returning this error.
    #[error(
        "the total loss weight of the batch is 0: every target is masked; leave such a batch out, or unmask a target"
    )]
    NoWeight,
}

impl BatchError {
    /// Rewrites an error about the whole batch's micro-batches as one about each data-parallel replica's: divides the
    /// number of micro-batches by `replicas`. Errors without this number are returned unchanged.
    pub(crate) fn of_replicas(self, replicas: usize) -> Self {
        match self {
            Self::TooSmall { rows, micro_batches, .. } => {
                Self::TooSmall { rows, micro_batches: micro_batches / replicas, replicas }
            }
            Self::Count { given, micro_batches, .. } => {
                Self::Count { given, micro_batches: micro_batches / replicas, replicas }
            }
            other => other,
        }
    }
}

/// Returns the part of an error message that says how many micro-batches each data-parallel replica runs. The string is
/// empty if there is one replica.
pub(super) fn shared_by(micro_batches: usize, replicas: usize) -> String {
    if replicas == 1 { String::new() } else { format!(", {micro_batches} for each of {replicas} replicas") }
}

/// Returns the advice in an error message about a batch with too few rows: to use fewer replicas, or fewer
/// micro-batches per replica.
pub(super) fn fewer(rows: usize, replicas: usize) -> String {
    match rows / replicas {
        0 => format!("use at most {rows} replicas"),
        most => format!("lower the number of micro-batches to {most} or fewer"),
    }
}

/// Returns the advice in an error message about a batch that was split into the wrong number of micro-batches
/// (`given`): to build the pipeline for this number. The string is empty if the data-parallel replicas cannot share the
/// micro-batches evenly.
pub(super) fn or_built_for(given: usize, replicas: usize) -> String {
    match given / replicas {
        each if each > 0 && given.is_multiple_of(replicas) => format!(", or build the pipeline with {each}"),
        _ => String::new(),
    }
}
