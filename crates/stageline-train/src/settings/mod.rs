//! The settings of a run: from the command line, a TOML file and a checkpoint to a validated [`Job`](job::Job).
//!
//! Input: the flags of every training program and of its model. Output: a job whose existence means that its settings
//! are valid, with opened devices; or an error that names the flag. This folder owns clap's definitions of all flags,
//! the order in which sources of settings override each other, and range checks of single settings. It must not read
//! training data, choose a plan, cut a model into stages or build a pipeline.
//!
//! - `flags`: the flags that every training program has (`TrainingFlags`), with their help texts.
//! - `values`: the values that flags take, beside numbers and paths (`ScheduleBy`, `CutBy`, `RecomputeBy`).
//! - `merge`: merges the sources of settings, of which the later one wins (`Settings`, `Merged`).
//! - `resume`: the command line together with the checkpoint that it resumes (`CommandLine`).
//! - `check`: checks the ranges of flags, and that they do not contradict each other.
//! - `job`: the validated settings (`Job`), which consist of the following three.
//! - `training`: the hyperparameters (`Training`), and `rate`: those of the learning rate schedule (`Rate`).
//! - `running`: the execution: workers, devices, schedule, memory (`Running`).
//! - `keeping`: the checkpoints (`Keeping`).

pub mod check;
pub mod flags;
pub mod job;
pub mod keeping;
pub mod merge;
pub mod rate;
pub mod resume;
pub mod running;
pub mod training;
pub mod values;
