//! Chooses a training run's plan (the order of forward and backward passes on each worker), and every stage's device.
//! The plan comes from a named schedule, a file, or a search.
//!
//! - `costs`: the costs of the model's layers.
//! - `workers`: the workers' devices and relative speeds.
//! - `search`: finds the plan with the shortest simulated step, for `--schedule search`.
//! - `choose`: the chosen plan (`Planned`), with its cut (the partition of the layers into stages).

mod choose;
mod costs;
mod search;
mod workers;

pub use choose::{Planned, choose};
pub use costs::{Purpose, costs};
