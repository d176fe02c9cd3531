//! The identity of a run ([`Identity`]), and the check whether the run may resume a checkpoint.

use std::process;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use stageline::checkpoint::{Checkpoint, Manifest};

use crate::settings::job::Job;
use crate::settings::merge::Settings;
use crate::settings::resume::shown;

/// The name of the entry by which the checkpoints of one training are recognised.
const TRAINING: &str = "training";

/// Identifies a run in its checkpoints, which store the fingerprint of its data, its seed, its batch size in samples
/// and its settings. When the run is resumed, [`check`](Self::check) compares the first three.
pub struct Identity {
    data: String,
    seed: u64,
    batch_size: usize,
    settings: Settings,
    /// A text that all runs of one training share, and no other training has.
    training: Value,
}

impl Identity {
    /// Returns the identity of the run with the settings in `job`. `data` is the fingerprint of its training data, and
    /// `resumed` the checkpoint from which it resumes.
    pub fn of(job: &Job, data: String, resumed: Option<&Checkpoint>) -> Self {
        let (seed, batch_size, mut settings) = (job.seed, job.training.batch_size, job.settings.clone());
        // The number of gradient groups affects the bits, and by default it is that of replicas. It is written down, so
        // that a resumed run keeps it with any number of replicas.
        let replicas = job.running.replicas;
        settings.0.insert("gradient_groups".to_owned(), job.training.gradient_groups.unwrap_or(replicas).into());
        let began = || {
            let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            format!("{:x}-{:x}", time.as_nanos(), process::id()).into()
        };
        let training = resumed.and_then(|checkpoint| checkpoint.run.get(TRAINING)).cloned().unwrap_or_else(began);
        Self { data, seed, batch_size, settings, training }
    }

    /// Checks that this run may resume from `checkpoint`. `steps` is the number of training steps, over all runs, at
    /// which this run ends.
    ///
    /// # Errors
    /// Returns an error if the data, the seed or the batch size of the run differ from the checkpoint. Returns an error
    /// also if the checkpoint was written after more than `steps` steps.
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

    /// Writes facts about the run into a checkpoint: its data, seed, batch size and settings, the number of samples
    /// trained on so far, and the plan as CSV text.
    pub(super) fn write(&self, checkpoint: &mut Checkpoint, plan: String) {
        let samples = checkpoint.progress.steps * self.batch_size as u64;
        for (name, value) in [
            (TRAINING, self.training.clone()),
            ("data", json!(self.data)),
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
