//! Chooses the plan of a training run (the order of forward and backward passes on each worker), and the device of
//! every stage under that plan. The plan is that of a named schedule, comes from a file, or is found by a search.
//!
//! - `costs`: the costs of the model's layers.
//! - `workers`: the devices of the workers, and their relative speeds.
//! - `search`: the plan with the shortest simulated step, for `--schedule search`.
//! - `choose`: the chosen plan (`Planned`), with its cut (the partition of the layers into stages).

mod choose;
mod costs;
mod search;
mod workers;

pub use choose::{Planned, choose};
pub use costs::{Purpose, costs};
