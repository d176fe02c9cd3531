//! Predicts from the log of a run the step time, bubble, throughput and memory that another plan would have.
//!
//! Input: a [`RunLog`](crate::RunLog), and a [`Target`]: the schedule, numbers of workers and micro-batches, and
//! partition ([`Cut`]) of the predicted plan. Output: a [`Prediction`], the network links that a plan uses
//! ([`Crossing`]), and the best partitions of the layers over several [`Hosts`] ([`HostCut`]). This module owns
//! dividing a run's measured costs among layers and adding them up for other stages; the simulation is
//! `stageline-schedule`'s. It must not read files, and must not print: `stageline predict` and `stageline advise` do.
//!
//! - `target`: the predicted plan, and its partition of the layers ([`Target`], [`Cut`]).
//! - `measured`: the costs of a run by layer, with the overheads of a step and an action ([`Measured`]). `from_log`:
//!   computes them from the log of the run.
//! - `prediction`: the simulation of another plan with these costs. `footprint`: its peak memory by worker.
//! - `size`: the costs of micro-batches of another size, from two runs.
//! - `accumulation`: trainings to the same loss with other numbers of micro-batches ([`Accumulation`]).
//! - `network`: the network links between workers, and the workers of each host. `host_cuts`: partitions over hosts.
//! - `error`: the reasons why there is no prediction ([`PredictError`]).

mod accumulation;
mod error;
mod footprint;
mod from_log;
mod host_cuts;
mod measured;
mod network;
mod prediction;
mod size;
mod target;

pub use accumulation::Accumulation;
pub use error::PredictError;
pub use host_cuts::HostCut;
pub use measured::Measured;
pub use network::Hosts;
pub use prediction::{Crossing, Prediction};
pub use target::{Cut, Target};
