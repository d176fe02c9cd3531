//! Single changes of a training run's settings that save memory ([`Lever`]).

use std::fmt;

/// A single change of settings that saves memory, as a memory check proposes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Lever {
    /// Use full activation recomputation ([`Recompute::Full`](crate::Recompute::Full)), which needs about a third more
    /// computation per step.
    Recompute,
    /// Split the batch into more and smaller micro-batches, with the same number of samples per step.
    SmallerMicroBatches {
        /// The number of rows (samples) of each micro-batch after this change.
        rows: usize,
        /// M, the number of micro-batches that each replica runs in a step after this change.
        micro_batches: usize,
    },
    /// Split the model into twice as many stages, on twice as many devices, so that each device holds about half as
    /// many layers. It is proposed only if every stage has a device of its own that is not the host's CPU.
    MoreStages {
        /// P, the number of workers of each replica after every stage is divided into two.
        workers: usize,
    },
    /// Put all layers into a single stage, so that only one micro-batch's activations are in memory at a time. It is
    /// proposed only if all stages share a device.
    OneStage,
    /// Use the 1F1B schedule, under which a stage saves the activations of at most P micro-batches, for P workers.
    OneFOneB,
    /// Keep optimizer states in host memory between steps ([`OptimizerState::Host`](crate::OptimizerState)). Every step
    /// then takes the time to copy them. It is proposed only for devices other than the host's CPU.
    StatesOnHost,
    /// Use an optimizer with little or no state for each parameter, such as plain SGD. This changes the result of the
    /// training run.
    LeanerOptimizer,
}

impl fmt::Display for Lever {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Recompute => write!(f, "full recomputation"),
            Self::SmallerMicroBatches { rows, micro_batches } => {
                write!(f, "{micro_batches} micro-batches of {rows} rows")
            }
            Self::OneFOneB => write!(f, "the 1f1b schedule"),
            Self::MoreStages { workers } => write!(f, "stages on {workers} workers, each with a device of its own"),
            Self::OneStage => write!(f, "one stage"),
            Self::StatesOnHost => write!(f, "optimizer states on the host"),
            Self::LeanerOptimizer => write!(f, "an optimizer without state, such as plain SGD"),
        }
    }
}
