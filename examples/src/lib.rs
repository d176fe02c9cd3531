//! The parts of the GPT example: its model, its text, its settings, and its outputs.
//!
//! The modules, in the order in which a run uses them:
//!
//! - `flags`, `config`: the settings, from the command line, a file and a checkpoint; `job`: the validated settings, as
//!   a `Job`.
//! - `text`: batches of text from a `Source`; `model`: the layers of the GPT; `fingerprint`: a hash of the parameters.
//! - `memory`: estimates the memory of a run, and rejects a run that does not fit, with the ways out.
//! - `log`, `record`, `progress`: the log, trace, HTML page and progress bar that show each step; `keep`: checkpoints
//!   and signals; `sample`: text from the trained model.

pub mod config;
pub mod fingerprint;
pub mod flags;
pub mod job;
pub mod keep;
pub mod log;
pub mod memory;
pub mod model;
pub mod progress;
pub mod record;
pub mod sample;
pub mod text;
