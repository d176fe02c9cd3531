//! Tests a corpus on files that change or are unreadable, and on the inputs of a fuzzer. All tests are one binary.

mod changes;
mod fuzz_inputs;
mod unreadable;
