//! Whole trainings with Stageline: a program brings a model and its data, and this crate does the rest.
//!
//! [`Program::main`] reads the settings from the command line, a TOML file and a checkpoint. [`Run::train`] cuts the
//! model, estimates the memory, and trains with batches that are read ahead of the steps. It writes checkpoints in the
//! background, resumes from them, evaluates held-out samples, and writes a log, a trace, TensorBoard's files and an HTML
//! page. The first Ctrl-C ends a training with a checkpoint.
//!
//! ```no_run
//! use std::process::ExitCode;
//!
//! # use anyhow::Result;
//! # use stageline::{LossStage, Row, Stage};
//! use stageline_train::{Data, Program, Run};
//!
//! #[derive(clap::Parser)]
//! struct Flags {
//!     /// Width of the model
//!     #[arg(long, default_value_t = 64)]
//!     width: usize,
//! }
//!
//! # fn program<F: Stage, B: Stage<Input = F::Output, Output = F::Output>, L: LossStage<Input = F::Output>>(
//! #     row: fn(usize, u64) -> Row<F, B, L>,
//! #     data: fn(u64) -> Box<dyn Data<Input = F::Input, Target = L::Target>>,
//! # ) -> ExitCode {
//! Program::<Flags>::new().main(|run: Run<Flags>| {
//!     let (model, data) = (row(run.flags.width, run.seed()), data(run.seed()));
//!     run.train(&model, &*data).map(drop)
//! })
//! # }
//! ```
//!
//! # Layout
//!
//! - `program`: the program around a training: its settings, warnings, exit status (`Program`).
//! - `training`: one training, from the settings to the trained pipeline (`Run`, `Trained`).
//! - `steps`: the loop over the steps of a training.
//! - `recipe`: builds the pipelines of a training from its settings and its plan (`Recipe`).
//! - `evaluation`: evaluates held-out samples, and whether the loss is a sum.
//! - `memory`: estimates the memory of a training, and refuses one that does not fit, with the ways out.
//! - `checkpoints`: writes checkpoints, and recognises the training that a checkpoint is of.
//! - `plan`: chooses the plan: a schedule, a file, or a search; and the devices of the stages.
//! - `prefetch`: reads batches ahead of the steps.
//! - `outputs`: the log, the trace, the page and the progress bar.
//! - `settings`: the settings, from the command line to a validated `Job`.
//! - `model`, `data`: the two traits that a program implements or gets from a [`Row`](stageline::Row).
//! - `fingerprint`: a hash of the parameters, by which two trainings can be compared bit for bit.

mod checkpoints;
mod data;
mod evaluation;
mod fingerprint;
mod memory;
mod model;
mod outputs;
mod plan;
mod prefetch;
mod program;
mod recipe;
mod settings;
mod steps;
mod training;

pub use data::Data;
pub use fingerprint::fingerprint;
pub use model::{HandCut, Model};
pub use outputs::record::step as record_of_step;
pub use program::{NoFlags, Program};
pub use settings::flags::TrainingFlags;
pub use training::{Run, Trained};
