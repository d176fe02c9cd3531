//! The log of a run: one JSON object a line, written while the run trains and read back later.
//!
//! Inputs: the text of a log. Outputs: [`RunLog`], with its steps in order, and the figures that summarise them, such as the typical
//! step and the main cause of idle time.
//!
//! This module says what was measured. It must not predict, draw, or import from the other modules of this crate.

mod error;
mod median;
pub mod record;
mod run_log;

pub use error::LogError;
pub(crate) use median::median;
pub use run_log::{Cause, RunLog};
