//! Runs one training: from a job, a model and its data to the trained pipeline.
//!
//! Input: a validated job, a model and a source of batches. Output: the trained pipeline and its last evaluation, with
//! checkpoints and a log on the way. This folder owns the order in which a training run plans, builds, trains,
//! evaluates and saves, and the reaction to Ctrl-C. It trains by calls of the pipeline: it must not compute on the
//! tensors of stages, read settings, or format the files of `outputs`.
//!
//! - `run`: a run from its settings to its end (`Run`).
//! - `trained`: the end of a run: its result (`Trained`) or error.
//! - `recipe`: builds the pipelines of a run from its job and plan, and describes the run for the log (`Recipe`).
//! - `steps`: the loop over the steps, which decides when to evaluate, save, log and stop (`Loop`).
//! - `watch`: warnings about gradients and updates that show a fault of the training (`Watch`).
//! - `evaluation`: evaluates held-out samples, and warns if the loss is a mean instead of a sum.
//! - `patience`: early stopping, by the evaluations without a lower loss (`Patience`).
//! - `checkpoints`: writes checkpoints in the background (`Keeper`), also the one with the lowest validation loss, and
//!   checks whether a run may resume a checkpoint (`Identity`).
//! - `signals`: the handlers of Ctrl-C and SIGTERM, which end a run with a checkpoint (`Signals`).

pub mod checkpoints;
pub mod evaluation;
mod patience;
pub mod recipe;
pub mod run;
mod signals;
pub mod steps;
pub mod trained;
pub mod watch;
