//! Predicts from the log of a run the step time, bubble, throughput and memory that another plan would have.
//!
//! Inputs: a [`RunLog`](crate::RunLog), and a [`Target`]: the schedule, numbers of workers and micro-batches, and
//! partition ([`Cut`]) to predict for. [`Measured`] holds the costs of the run. Outputs: a [`Prediction`], the links
//! that a plan uses ([`Crossing`]), and the best partitions of the layers over several [`Hosts`] ([`HostCut`]).
//!
//! A prediction is a simulation by `stageline-schedule` with the costs that the run measured. This module must not read
//! files, and must not print: `stageline predict` and `stageline advise` do.

mod error;
mod footprint;
mod host_cuts;
mod measured;
mod network;
mod prediction;

pub use error::PredictError;
pub use host_cuts::HostCut;
pub use measured::Measured;
pub use network::Hosts;
pub use prediction::{Crossing, Cut, Prediction, Target};
