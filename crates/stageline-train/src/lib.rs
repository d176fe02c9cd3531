//! Trains models with Stageline: a program brings a model and its data, and this crate does the whole training run.
//!
//! [`Program::main`] reads the settings from the command line, a TOML file and a checkpoint. [`Run::train`] partitions
//! the model into stages, estimates the device memory, and trains with prefetched batches. It writes checkpoints in the
//! background, resumes from them, and evaluates held-out samples. It writes a log, a trace, TensorBoard files and an
//! HTML page. In a run with checkpoints, the first Ctrl-C saves a checkpoint and ends the training run.
//!
//! ```no_run
//! use std::process::ExitCode;
//!
//! # use anyhow::Result;
//! # use stageline::{LossStage, Row, Stage};
//! use stageline_train::{Data, Program, Run};
//!
//! /// Trains a model of my own.
//! #[derive(clap::Parser)]
//! struct Flags {
//!     /// Width of the model
//!     #[arg(long, default_value_t = 64)]
//!     width: usize,
//! }
//!
//! # fn program<F: Stage, B: Stage<Input = F::Output, Output = F::Output>, L: LossStage<Input = F::Output>>(
//! #     row: fn(usize, u64) -> Row<F, B, L>,
//! #     data: fn(u64) -> std::sync::Arc<dyn Data<Input = F::Input, Target = L::Target>>,
//! # ) -> ExitCode {
//! Program::<Flags>::new().main(|run: Run<Flags>| {
//!     let (model, data) = (row(run.flags.width, run.seed()), data(run.seed()));
//!     run.train(&model, data).map(drop)
//! })
//! # }
//! ```
//!
//! # Layout
//!
//! In the order in which a run uses them; the module documentation of each folder describes its files:
//!
//! - `program`: the `main` of a training program: reads the settings, shows warnings, sets the exit status (`Program`).
//! - `settings/`: the settings, from the command line, a TOML file and a checkpoint to a validated `Job`.
//! - `training/`: one training run, from a job, a model and its data to the trained pipeline (`Run`, `Trained`).
//! - `model`: the trait of the models that a program can bring (`Model`). [`Row`](stageline::Row), a model that
//!   consists of a first layer, blocks and a last layer, implements it.
//! - `data/`: the trait of the source of batches (`Data`), sources for language models, and prefetching.
//! - `plan`: chooses the plan: the schedule (the order of forward and backward passes on each worker), the cut (the
//!   partition of the layers into stages) and the devices of the stages (`Planned`).
//! - `optimizers/`: the optimizers that `--optimizer` names, among them AdamW and Muon.
//! - `memory/`: rejects a training run that does not fit into memory, and proposes other flags (`Demand`).
//! - `kernel_messages`: tells the user that GPUs compile kernels before the first step, and whether they tune them
//!   (`Compiling`).
//! - `outputs/`: writes the log, the trace, TensorBoard files, the HTML page and the progress bar (`Log`, `Progress`).
//! - `fingerprint`: a hash of the parameters, to compare two training runs bit for bit.
//! - `terminal`: prints lines on the standard output, and returns an error if a line is lost (`say`).
//!
//! The crate uses only the public interface of `stageline`. It must not run stages or compute on their tensors itself.

mod data;
mod fingerprint;
mod kernel_messages;
mod memory;
mod model;
mod optimizers;
mod outputs;
mod plan;
mod program;
mod settings;
#[cfg(all(test, feature = "flex"))]
#[path = "../tests/support/mod.rs"]
mod support;
mod terminal;
mod training;

pub use data::Data;
pub use data::documents::{Documents, Targets, TokenData, TokenSamples};
pub use data::evaluation::HeldOut;
pub use data::flags::TokenFlags;
pub use data::labelled::{LabelledTexts, PaddedTokens};
pub use data::open::{TokenSettings, open_tokens};
pub use data::packed::{PackedDocuments, Packing};
pub use data::rows::TokenRows;
pub use data::show::show_samples;
pub use data::windows::TokenWindows;
pub use fingerprint::fingerprint;
pub use model::{HandCut, Model};
pub use outputs::record::step as record_of_step;
pub use outputs::unwritten::Unwritten;
pub use program::{NoFlags, Program};
pub use settings::flags::TrainingFlags;
pub use settings::places::is_same_place;
pub use terminal::say;
pub use training::run::Run;
pub use training::trained::Trained;
