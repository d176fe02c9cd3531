//! Tests model folders: read, written, and malformed in every way. All tests are one binary.

mod checks;
mod fuzz_inputs;
mod hostile;
mod hostile_weights;
mod mutations;
mod reading;
mod refusals;
mod toy;
mod writing;
