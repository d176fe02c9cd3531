//! What tests and benches of the whole system share: small models, programs that are run, and the bubble bench.

#![allow(missing_docs)] // it is no library for users

use example_gpt::model;

pub mod bubble;
pub mod empty;
pub mod gpt;
pub mod mlp;
pub mod paced;
pub mod programs;
pub mod runs;
pub mod side_by_side;
