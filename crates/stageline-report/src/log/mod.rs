//! The log of a run: one JSON object a line, written while the run trains and read back later.
//!
//! Inputs: the text of a log. Outputs: [`RunLog`], with the description of the run, its steps in order, and figures
//! that summarise the steps, such as the typical step time and the main cause of idle time ([`Cause`]). [`record`] has
//! the structure of every line.
//!
//! This module states what was measured. It must not predict, draw, or import from the other modules of this crate.

mod error;
mod median;
pub mod record;
mod run_log;

pub use error::LogError;
pub(crate) use median::median;
pub use run_log::{Cause, RunLog};
