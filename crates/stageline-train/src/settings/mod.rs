//! The settings of a training: from the command line, a TOML file and a checkpoint to a validated [`Job`](job::Job).
//!
//! Takes the flags of a training and of its model. Must not read data or build a pipeline.
//!
//! - `flags`: the flags that every training has (`TrainingFlags`).
//! - `merge`: the sources of settings, of which the later one wins.
//! - `resume`: the command line together with the checkpoint that it resumes.
//! - `job`: the validated settings (`Job`), with opened devices.

pub mod flags;
pub mod job;
pub mod merge;
pub mod resume;
