//! Tests reading and writing model folders, including malformed ones.

mod checks;
mod fuzz_inputs;
mod hostile;
mod hostile_weights;
mod mutations;
mod reading;
mod refusals;
mod toy;
mod writing;
