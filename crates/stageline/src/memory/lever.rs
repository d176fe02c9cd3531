//! The settings of a training that can be changed to need less memory ([`Lever`]).

use std::fmt;

/// A setting of the training that can be changed to need less memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Lever {
    /// A change of settings that saves memory: full recomputation, [`Recompute::Full`](crate::Recompute::Full), which
    /// takes about a third more computation.
    Recompute,
    /// A change of settings that saves memory: more and smaller micro-batches of the same batch.
    SmallerMicroBatches {
        /// The number of rows (samples) of each proposed smaller micro-batch.
        rows: usize,
        /// The number of micro-batches (M) of each replica in a step, after they are made smaller.
        micro_batches: usize,
    },
    /// A change of settings that saves memory: the layers of every stage are divided into two stages, on twice as many
    /// devices. It is proposed only if every stage has its own device and none of them is the CPU.
    MoreStages {
        /// The number of workers (P) after every stage was divided into two. In schedules with chunks, a worker has
        /// several stages.
        workers: usize,
    },
    /// A change of settings that saves memory: a single stage with all layers, proposed if the stages share a device.
    /// Only one micro-batch is then live (between forward and backward) at a time.
    OneStage,
    /// A change of settings that saves memory: the 1F1B schedule, under which each stage keeps the activations of the
    /// fewest micro-batches with which all stages stay at work.
    OneFOneB,
    /// A change of settings that saves memory: optimizer states in the memory of this host between steps,
    /// [`OptimizerState::Host`](crate::OptimizerState). It is proposed for devices that are not the host's CPU, and
    /// every step takes the time to copy the states.
    StatesOnHost,
    /// A change of settings that saves memory: an optimizer with little or no state for each parameter.
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
