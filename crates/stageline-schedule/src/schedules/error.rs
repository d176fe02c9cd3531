//! The reasons why a schedule has no plan for given numbers of stages and micro-batches.

use std::fmt;

/// The reason why a schedule has no plan for given numbers of stages and micro-batches.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScheduleError {
    /// No stages were asked for.
    NoStages,
    /// No micro-batches were asked for.
    NoMicroBatches,
    /// No chunks were asked for.
    NoChunks,
    /// The stages are not a multiple of the chunks per worker.
    Chunks {
        /// The stages asked for.
        stages: usize,
        /// The chunks per worker.
        chunks: usize,
    },
    /// The schedule needs a multiple of some number of micro-batches.
    MicroBatches {
        /// The micro-batches asked for.
        given: usize,
        /// The number of which they must be a multiple.
        multiple_of: usize,
    },
    /// An existing plan has another shape, as (stages, micro-batches).
    Shape {
        /// The shape of the plan.
        written: (usize, usize),
        /// The shape asked for.
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

/// Lists the multiples of `unit` on both sides of `value`, without 0.
fn nearest_multiples(value: usize, unit: usize) -> String {
    let below = value / unit * unit;
    if below == 0 { unit.to_string() } else { format!("{below} or {}", below + unit) }
}
