//! Checkpoints of a run, and runs that go on from one.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use stageline::Pipeline;
use stageline::checkpoint::{Checkpoint, Saved, Store, Writer};

use crate::config::{self, Resolved, Settings};
use crate::cut::Bytes;
use crate::flags::{Job, Keeping};
use crate::text::Source;

/// The exit status after the second signal: what shells give for SIGINT.
const INTERRUPTED: i32 = 130;

/// The command line, with the settings of the run that it goes on from, and that run.
pub fn command_line(arguments: Vec<OsString>) -> Result<(Resolved, Option<Saved>)> {
    let alone = config::resolve(arguments.clone(), None)?;
    let Some(asked) = &alone.flags.resume else { return Ok((alone, None)) };
    let place = match asked.as_os_str() == "latest" {
        true => {
            alone.flags.checkpoint.as_deref().context("--resume latest: give --checkpoint the folder to look in")?
        }
        false => asked,
    };
    let saved = Saved::open(place).context("--resume")?;
    let settings = settings_of(saved.manifest().run.get("settings"));
    let mut resolved = config::resolve(arguments, Some(&settings))?;
    // The folder may have been moved.
    resolved.flags.checkpoint = alone.flags.checkpoint.or_else(|| saved.path().parent().map(Path::to_path_buf));
    for (name, before) in &settings.0 {
        if let Some(now) = resolved.settings.0.get(name).filter(|now| *now != before) {
            println!("other than in the checkpoint: {name} = {now}, was {before}");
        }
    }
    Ok((resolved, Some(saved)))
}

fn settings_of(value: Option<&Value>) -> Settings {
    let object = value.and_then(Value::as_object).cloned().unwrap_or_default();
    Settings(object.into_iter().collect())
}

/// What a checkpoint says of the run besides its tensors.
pub struct Identity {
    text: String,
    seed: u64,
    batch_size: usize,
    settings: Settings,
}

impl Identity {
    pub fn of(job: &Job, text: &Source) -> Self {
        let (seed, batch_size, settings) = (job.seed, job.training.batch_size, job.settings.clone());
        Self { text: text.fingerprint(), seed, batch_size, settings }
    }

    /// Refuses a run whose batches would be others.
    pub fn check(&self, checkpoint: &Checkpoint) -> Result<()> {
        for (name, now, way_out) in [
            ("text", json!(self.text), "the files have changed: give --data the text of then, or start anew"),
            ("seed", json!(self.seed), "leave --seed out"),
            ("batch_size", json!(self.batch_size), "keep M x micro-batch size, or leave both flags out"),
        ] {
            let before = checkpoint.run.get(name).unwrap_or(&Value::Null);
            ensure!(*before == now, "--resume: {name} was {before} in the checkpoint and is {now}; {way_out}");
        }
        Ok(())
    }

    fn write(&self, checkpoint: &mut Checkpoint, plan: String) {
        let samples = checkpoint.progress.steps * self.batch_size as u64;
        for (name, value) in [
            ("text", json!(self.text)),
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

/// Writes checkpoints while the training goes on, and knows when it is to stop.
pub struct Keeper {
    writer: Option<Writer>,
    identity: Identity,
    every: usize,
    stop_after: Option<usize>,
    signalled: Arc<AtomicBool>,
    /// The step after which the last one was taken.
    kept: Option<u64>,
}

impl Keeper {
    /// Where checkpoints are written, the first signal ends the training after the step, and the second at once.
    pub fn new(keeping: &Keeping, identity: Identity) -> Result<Self> {
        let open = |folder: &PathBuf| Writer::new(Store::open(folder, keeping.keep)?);
        let writer = keeping.folder.as_ref().map(open).transpose().context("--checkpoint")?;
        let signalled = Arc::new(AtomicBool::new(false));
        if writer.is_some() {
            for signal in [SIGINT, SIGTERM] {
                // In this order: the first signal finds the flag still down.
                flag::register_conditional_shutdown(signal, INTERRUPTED, Arc::clone(&signalled))?;
                flag::register(signal, Arc::clone(&signalled))?;
            }
        }
        Ok(Self { writer, identity, every: keeping.every, stop_after: keeping.stop_after, signalled, kept: None })
    }

    /// Whether the training ends after so many steps.
    pub fn stops(&self, steps: usize) -> bool {
        self.signalled.load(Ordering::Acquire) || self.stop_after.is_some_and(|last| steps >= last)
    }

    /// After so many steps, if one is due.
    pub fn step(&mut self, pipeline: &mut Pipeline<Bytes, Bytes>, steps: usize) -> Result<()> {
        if steps.is_multiple_of(self.every) { self.save(pipeline) } else { Ok(()) }
    }

    /// Takes one now, unless there is one of this step.
    pub fn save(&mut self, pipeline: &mut Pipeline<Bytes, Bytes>) -> Result<()> {
        let Some(writer) = &mut self.writer else { return Ok(()) };
        let mut checkpoint = pipeline.checkpoint()?;
        if self.kept.replace(checkpoint.progress.steps) != Some(checkpoint.progress.steps) {
            self.identity.write(&mut checkpoint, pipeline.plan().to_csv());
            writer.write(checkpoint)?;
        }
        Ok(())
    }

    /// Waits until the last one is there, and says how to go on from it.
    pub fn finish(self) -> Result<()> {
        let Some(path) = self.writer.map(Writer::finish).transpose()?.flatten() else { return Ok(()) };
        let steps = self.kept.unwrap_or_default();
        println!("checkpoint after {steps} steps; to go on from it: --resume {}", path.display());
        Ok(())
    }
}
