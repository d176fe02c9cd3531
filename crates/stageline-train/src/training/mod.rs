//! Does one training run: from a job, a model and its data to the trained pipeline.
//!
//! Input: a validated job, a model and a data source. Output: the trained pipeline and its last evaluation, with
//! checkpoints and a log along the way. This folder decides in which order a training run plans, builds, trains,
//! evaluates and saves, and handles Ctrl-C. It trains through the pipeline: it must not compute on stages' tensors,
//! read settings, or format the files of `outputs`.
//!
//! - `run`: a run, from its settings to its end (`Run`).
//! - `trained`: the end of a run: its result (`Trained`) or error.
//! - `recipe`: builds a run's pipelines from its job and plan, and describes the run for the log (`Recipe`).
//! - `steps`: the training loop, which decides when to evaluate, save, log and stop (`Loop`).
//! - `watch`: warnings about gradients and updates that are a sign of failing training (`Watch`).
//! - `evaluation`: evaluates held-out samples, and warns if the loss is a mean instead of a sum.
//! - `patience`: early stopping: counts evaluations without a lower loss (`Patience`).
//! - `checkpoints`: writes checkpoints in the background (`Keeper`), including the one with the lowest validation loss,
//!   and checks whether a run may resume a checkpoint (`Identity`).
//! - `signals`: the SIGINT and SIGTERM handlers, which end a run with a checkpoint (`Signals`).

pub mod checkpoints;
pub mod evaluation;
mod patience;
pub mod recipe;
pub mod run;
mod signals;
pub mod steps;
pub mod trained;
pub mod watch;
