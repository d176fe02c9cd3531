//! A run's identity ([`Identity`]), which decides whether the run may resume a checkpoint.

use std::process;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Result, bail, ensure};
use serde_json::{Value, json};
use stageline::checkpoint::{Checkpoint, Manifest};

use crate::settings::job::Job;
use crate::settings::merge::Settings;
use crate::settings::resume::shown;

/// Name of the manifest entry with the training's unique id, which is the same in all checkpoints of one training.
const TRAINING: &str = "training";

/// Name of the manifest entry with the model's description ([`Model::description`](crate::Model::description)).
const MODEL: &str = "model";

/// Checks that a checkpoint is of the model with the description `now`, so that the model computes the same function.
///
/// # Errors
/// Returns an error if the checkpoint has another description.
pub fn check_model(now: &str, checkpoint: &Checkpoint) -> Result<()> {
    let Some(before) = checkpoint.run.get(MODEL).filter(|before| **before != now) else { return Ok(()) };
    bail!(
        "--resume: the model was {} in the checkpoint and is \"{now}\": its configuration, or the scale of its adapters, has changed; \
         give the former config.json and LoRA flags, or start a new run",
        shown(before)
    );
}

/// A run's identity, stored in its checkpoints: data fingerprint, model description, seed, batch size in samples, and
/// settings. On resume, [`check`](Self::check) compares the data, seed, batch size and the optimizer's name, and
/// [`check_model`] the model.
pub struct Identity {
    data: String,
    model: String,
    seed: u64,
    batch_size: usize,
    settings: Settings,
    /// The training's unique id, shared by all of its runs.
    training: Value,
}

impl Identity {
    /// Returns a run's identity, from its settings in `job`, its training data's fingerprint `data`, the description of
    /// its model, and the checkpoint to resume from (`resumed`).
    pub fn of(job: &Job, data: String, model: &str, resumed: Option<&Checkpoint>) -> Self {
        let (seed, batch_size, mut settings) = (job.seed, job.training.batch_size, job.settings.clone());
        // The number of gradient groups affects the trained values and defaults to the number of replicas, so it is
        // stored: a resumed run keeps it with any number of replicas.
        let replicas = job.running.replicas;
        settings.0.insert("gradient_groups".to_owned(), job.training.gradient_groups.unwrap_or(replicas).into());
        let began = || {
            let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            format!("{:x}-{:x}", time.as_nanos(), process::id()).into()
        };
        let training = resumed.and_then(|checkpoint| checkpoint.run.get(TRAINING)).cloned().unwrap_or_else(began);
        Self { data, model: model.to_owned(), seed, batch_size, settings, training }
    }

    /// Checks that this run may resume from `checkpoint`. `steps` is the number of steps, counted from the start of the
    /// training, after which this run ends.
    ///
    /// # Errors
    /// Returns an error if the run's data, seed, batch size or optimizer differs from the checkpoint's, or if the
    /// checkpoint was written after more than `steps` steps.
    pub fn check(&self, checkpoint: &Checkpoint, steps: usize) -> Result<()> {
        let done = checkpoint.progress.steps;
        let recorded = |name: &str| checkpoint.run.get(name).cloned().unwrap_or_default();
        let mut different = Vec::new();
        for (name, now, remedy) in [
            (
                "data",
                json!(self.data),
                "the data or its settings have changed: give the former ones, or start a new run",
            ),
            ("seed", json!(self.seed), "leave --seed out"),
            ("batch_size", json!(self.batch_size), "keep replicas x M x micro-batch size, or leave these flags out"),
        ] {
            let before = recorded(name);
            if before != now {
                different.push(format!("{name} was {} in the checkpoint and is {now}; {remedy}", shown(&before)));
            }
        }
        let settings = checkpoint.run.get("settings");
        let before = settings.and_then(|settings| settings.get("optimizer"));
        if let (Some(before), Some(now)) = (before, self.settings.0.get("optimizer").filter(|now| before != Some(now)))
        {
            different.push(format!(
                "optimizer was {} in the checkpoint and is {now}, which has another state; leave --optimizer out",
                shown(before)
            ));
        }
        if done > steps as u64 {
            different.push(match self.settings.0.get("epochs") {
                Some(epochs) => format!(
                    "the checkpoint is after {done} steps, and --epochs {epochs} ends after {steps}: give more epochs, or --steps {done}"
                ),
                None => format!("the checkpoint is after {done} steps; --steps {steps}: give {done} or more"),
            });
        }
        ensure!(different.is_empty(), "--resume: {}", different.join("\n  "));
        Ok(())
    }

    /// Whether a checkpoint was written by a run of the same training.
    pub fn is_of(&self, checkpoint: &Manifest) -> bool {
        checkpoint.run.get(TRAINING) == Some(&self.training)
    }

    /// Stores the run's identity in a checkpoint, with the number of samples trained on so far, and the plan as CSV.
    pub(super) fn write(&self, checkpoint: &mut Checkpoint, plan: String) {
        let samples = checkpoint.progress.steps * self.batch_size as u64;
        for (name, value) in [
            (TRAINING, self.training.clone()),
            ("data", json!(self.data)),
            (MODEL, json!(self.model)),
            ("seed", json!(self.seed)),
            ("batch_size", json!(self.batch_size)),
            ("samples", json!(samples)),
            ("plan", json!(plan)),
            ("settings", json!(self.settings.0)),
        ] {
            checkpoint.run.insert(name.to_owned(), value);
        }
    }
}
