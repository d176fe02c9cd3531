//! A run's settings: from the command line, a TOML file and a checkpoint to a validated [`Job`](job::Job).
//!
//! Input: the flags that all training programs share, and the program's own. Output: a job with valid settings and
//! opened devices; or an error that names the flag. This folder owns clap's definitions of all flags, the precedence of
//! the sources of settings, and range checks of single settings. It must not read training data, choose a plan, cut a
//! model into stages or build a pipeline.
//!
//! - `flags`: the flags that all training programs share (`TrainingFlags`), with their help texts.
//! - `values`: the types of flag values that are not plain numbers or paths (`ScheduleBy`, `CutBy`, `RecomputeBy`).
//! - `merge`: merges the sources of settings; later ones override earlier ones (`Settings`, `Merged`).
//! - `setting`: which flags are settings, and which values a setting may have.
//! - `resume`: the command line together with the checkpoint that it resumes (`CommandLine`).
//! - `check`: checks the ranges of flags, and that they do not contradict each other.
//! - `places`: checks that the outputs of a run replace no file that it reads.
//! - `job`: the validated settings (`Job`), which consist of the following three.
//! - `training`: the hyperparameters (`Training`), and `rate`: those of the learning-rate schedule (`Rate`).
//! - `running`: the execution: workers, devices, schedule, memory (`Running`).
//! - `keeping`: the checkpoints (`Keeping`).

pub mod check;
pub mod flags;
pub mod job;
pub mod keeping;
pub mod merge;
pub mod places;
pub mod rate;
pub mod resume;
pub mod running;
pub mod setting;
pub mod training;
pub mod values;
