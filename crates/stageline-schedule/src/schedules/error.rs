//! The error of a schedule that has no plan for given numbers of stages and micro-batches.

use std::fmt;

/// Why a schedule has no plan for given numbers of stages and micro-batches.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScheduleError {
    /// The error if a plan without stages is requested.
    NoStages,
    /// The error if a plan without micro-batches is requested.
    NoMicroBatches,
    /// The error if a plan with 0 chunks (stages) per worker is requested.
    NoChunks,
    /// The error if the requested number of stages is not a multiple of the schedule's number of chunks (stages) per
    /// worker.
    Chunks {
        /// The requested number of stages, which is not a multiple of the number of stages per worker.
        stages: usize,
        /// The number of chunks (stages) that the schedule places on each worker.
        chunks: usize,
    },
    /// The error if the requested number of micro-batches is not a multiple of the number that the schedule requires.
    MicroBatches {
        /// The requested number of micro-batches. The schedule has no plan for this number.
        given: usize,
        /// The schedule needs a multiple of this number of micro-batches, such as a multiple of the number of workers.
        multiple_of: usize,
    },
    /// The error for a schedule that is a single plan, such as a plan from a file. The requested numbers of stages or
    /// micro-batches differ from those of this plan.
    Shape {
        /// The number of stages, then the number of micro-batches, of the schedule's single plan.
        written: (usize, usize),
        /// The requested number of stages, then the requested number of micro-batches. The schedule's single plan has
        /// other numbers.
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

/// Returns the multiples of `unit` nearest to `value`, as text for an error message such as `8 or 12`. The first is the
/// multiple below `value`, unless it is 0. The second is the multiple above.
fn nearest_multiples(value: usize, unit: usize) -> String {
    let below = value / unit * unit;
    if below == 0 { unit.to_string() } else { format!("{below} or {}", below + unit) }
}
