//! The reasons why a schedule has no plan for given numbers of stages and micro-batches.

use std::fmt;

/// The reason why a schedule has no plan for given numbers of stages and micro-batches.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScheduleError {
    /// The error if the plan that is requested from a schedule would have no stages.
    NoStages,
    /// The error if the plan that is requested from a schedule would have no micro-batches.
    NoMicroBatches,
    /// The error if the plan that is requested from a schedule would have no chunks (stages of the model) on its
    /// workers.
    NoChunks,
    /// The error if the number of stages that is requested from a schedule is not a multiple of the schedule's number
    /// of chunks (stages) per worker.
    Chunks {
        /// The number of stages that was requested from a schedule, and that is not a multiple of the number of stages
        /// per worker.
        stages: usize,
        /// The number of chunks (stages) that the schedule places on each worker.
        chunks: usize,
    },
    /// The error if the number of micro-batches that is requested from a schedule is not a multiple of a number that
    /// the schedule requires.
    MicroBatches {
        /// The number of micro-batches that was requested from a schedule, and for which the schedule has no plan.
        given: usize,
        /// The number that the schedule requires as a divisor of the number of micro-batches, such as the number of
        /// workers.
        multiple_of: usize,
    },
    /// The error if a schedule is one fixed plan, such as a plan from a file, and other numbers of stages or
    /// micro-batches are requested than this plan has.
    Shape {
        /// The number of stages and the number of micro-batches of the only plan that a schedule has, such as a plan
        /// from a file.
        written: (usize, usize),
        /// The number of stages and the number of micro-batches that were requested from a schedule whose only plan has
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
                write!(f, "{given} micro-batches are not a multiple of {multiple_of}; ask for {near} micro-batches")
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

/// Returns the multiples of `unit` nearest to `value`, as text for an error message such as `8 or 12`: the multiple
/// below, unless it is 0, and the one above. `value` is a number of stages or micro-batches for which a schedule has no
/// plan.
fn nearest_multiples(value: usize, unit: usize) -> String {
    let below = value / unit * unit;
    if below == 0 { unit.to_string() } else { format!("{below} or {}", below + unit) }
}
