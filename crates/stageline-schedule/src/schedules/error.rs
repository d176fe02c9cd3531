//! The error of a schedule that has no plan for given numbers of stages and micro-batches.

use std::fmt;

/// The reason why a schedule has no plan for given numbers of stages and micro-batches.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScheduleError {
    /// A plan without stages was requested. A pipeline needs at least one stage.
    NoStages,
    /// A plan without micro-batches was requested. A step needs at least one micro-batch.
    NoMicroBatches,
    /// A plan with 0 chunks (stages) per worker was requested. Every worker needs at least one chunk of the model.
    NoChunks,
    /// The requested number of stages is not a multiple of the schedule's number of chunks (stages) per worker.
    Chunks {
        /// Requested number of stages, which is not a multiple of the number of stages per worker.
        stages: usize,
        /// Number of chunks (stages) that the schedule places on each worker.
        chunks: usize,
    },
    /// The requested number of micro-batches is not a multiple of the number that the schedule requires, such as the
    /// number of workers.
    MicroBatches {
        /// Requested number of micro-batches, which the schedule does not support because it is not a multiple of
        /// `multiple_of`.
        given: usize,
        /// Number, such as the number of workers, that must divide the number of micro-batches in this schedule.
        multiple_of: usize,
    },
    /// The schedule is a single plan, such as a plan from a file, whose numbers of stages and micro-batches are not the
    /// requested ones. Request the plan's own numbers, or use a schedule that generates plans.
    Shape {
        /// `(stages, micro-batches)` of the schedule's only plan, such as a plan from a file.
        written: (usize, usize),
        /// `(stages, micro-batches)` that were requested, which differ from those of the schedule's only plan.
        asked: (usize, usize),
    },
}

impl fmt::Display for ScheduleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoStages => write!(f, "0 stages: a pipeline needs at least 1 stage"),
            Self::NoMicroBatches => {
                write!(f, "0 micro-batches: cut the batch into at least 1 micro-batch")
            }
            Self::NoChunks => write!(f, "0 chunks per worker: every worker needs at least 1 chunk of the model"),
            Self::Chunks { stages, chunks } => {
                let near = nearest_multiples(*stages, *chunks);
                write!(f, "{stages} stages are not a multiple of {chunks} chunks per worker; ask for {near} stages")
            }
            Self::MicroBatches { given, multiple_of } => {
                let near = nearest_multiples(*given, *multiple_of);
                write!(
                    f,
                    "{given} micro-batches are not a multiple of {multiple_of}, the number of workers, as this schedule needs; ask for \
                     {near} micro-batches"
                )
            }
            Self::Shape { written, asked } => write!(
                f,
                "the plan is for {} stages and {} micro-batches, but the pipeline has {} stages and {} micro-batches; \
                 write a plan for these numbers, or use a schedule that generates it",
                written.0, written.1, asked.0, asked.1
            ),
        }
    }
}

impl std::error::Error for ScheduleError {}

/// Returns the multiples of `unit` nearest to `value`, as a string for an error message, such as `8 or 12`. The first
/// is the multiple below `value`, unless it is 0. The second is the multiple above.
fn nearest_multiples(value: usize, unit: usize) -> String {
    let below = value / unit * unit;
    if below == 0 { unit.to_string() } else { format!("{below} or {}", below + unit) }
}
