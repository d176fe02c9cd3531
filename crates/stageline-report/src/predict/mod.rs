//! Predicts another plan's step time, bubble, throughput and memory from the log of a run.
//!
//! Input: a [`RunLog`](crate::RunLog), and a [`Target`]: the schedule, numbers of workers and micro-batches, and
//! partition ([`Cut`]) of the predicted plan. Output: a [`Prediction`], the network links that a plan uses
//! ([`Crossing`]), the best partitions of the layers over several [`Hosts`] ([`HostCut`]), and recommended settings for
//! a training run ([`Advice`]). This module divides a run's measured costs among layers and adds them up for other
//! stages; the simulation is `stageline-schedule`'s. It must not read files, and must not print: `stageline predict`
//! and `stageline advise` do.
//!
//! - `target`: the predicted plan, and its partition of the layers ([`Target`], [`Cut`]).
//! - `measured`: the costs of a run by layer, with the overheads of a step and an action ([`Measured`]). `from_log`:
//!   computes these costs from the run's log.
//! - `plan_costs`: the costs of a plan's stages and transfers, added up from the costs of layers ([`Crossing`]).
//! - `prediction`: the simulation of another plan with these costs. `footprint`: its peak memory by worker.
//! - `size`: the costs of micro-batches of another size, from two runs.
//! - `trainings`: training runs with other numbers of micro-batches that reach the same loss ([`PredictedTraining`]).
//! - `question`: the input of a recommendation: the logged run, the plan whose settings vary, and the limits on memory
//!   and workers ([`Question`]). `alternatives`: training runs with another schedule, number of workers or micro-batch
//!   size. `changed_setting`: the setting that an alternative changes ([`Change`]). `reason`: explains why the
//!   recommended run is better than another. `recommendation`: the recommended training run, with the reason
//!   ([`Recommendation`]). `advice`: the predicted training runs, the alternatives and the recommendation together
//!   ([`Advice`]).
//! - `network`: the network links between workers, and the workers of each host. `host_cuts`: partitions over hosts.
//! - `error`: the reasons why there is no prediction ([`PredictError`]).

mod advice;
mod alternatives;
mod changed_setting;
mod error;
mod footprint;
mod from_log;
mod host_cuts;
mod measured;
mod network;
mod plan_costs;
mod prediction;
mod question;
mod reason;
mod recommendation;
mod size;
mod target;
mod trainings;

pub use advice::Advice;
pub use alternatives::{Alternatives, LeftOut};
pub use changed_setting::Change;
pub use error::PredictError;
pub use host_cuts::HostCut;
pub use measured::Measured;
pub use network::Hosts;
pub use plan_costs::Crossing;
pub use prediction::Prediction;
pub use question::Question;
pub use recommendation::Recommendation;
pub use target::{Cut, Target};
pub use trainings::PredictedTraining;
