//! Predictions from the log of a run: the step time, bubble, throughput and memory that another plan would have.
//!
//! Inputs: a [`RunLog`](crate::RunLog), and the plan, partition or hosts to predict for. Outputs: [`Prediction`]s, and the partitions of
//! the layers over hosts ([`HostCut`]), best first.
//!
//! A prediction is a simulation by `stageline-schedule` with the costs that the run measured. This module must not read files, and
//! must not print: `stageline predict` and `stageline advise` do.

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
