//! Parts that the tests and benches of the whole system share: small models, functions that run programs, and the
//! bubble bench.

// This crate is not a library for users, so these lints do not apply.
#![allow(missing_docs, clippy::new_without_default, clippy::missing_panics_doc, clippy::must_use_candidate)]

use stageline_gpt::model;

pub mod bubble;
pub mod empty;
pub mod event_file;
pub mod gpt;
pub mod mlp;
pub mod own_process;
pub mod paced;
pub mod programs;
pub mod runs;
pub mod side_by_side;
