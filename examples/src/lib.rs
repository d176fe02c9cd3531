//! The parts of the GPT example: its model and cut, its text, its settings, and what it writes.
//!
//! In the order in which a run uses them:
//!
//! - `flags`, `config`: the settings, from the command line, a file and a checkpoint; `job`: the same, validated.
//! - `text`: samples of text; `model`: the GPT; `cut`: its stages; `fingerprint`: the hash of its parameters.
//! - `memory`: rejects a run that does not fit, with the ways out.
//! - `log`, `record`, `progress`: what each step reports; `keep`: checkpoints and signals; `sample`: text from the trained model.

pub mod config;
pub mod cut;
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
