//! A corpus against a file system that does not hold still, and against whatever a fuzzer makes up. One binary.

mod changes;
mod seeds;
mod unreadable;
