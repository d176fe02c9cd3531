//! Checkpoints of a run, and runs that go on from one.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Error, Result, anyhow, bail, ensure};
use serde_json::{Value, json};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use stageline::Pipeline;
use stageline::checkpoint::{Checkpoint, CheckpointError, Printable, Saved, Store, Writer};

use crate::config::{self, Settings};
use crate::cut::Bytes;
use crate::flags::Flags;
use crate::job::{Job, Keeping};
use crate::text::Source;

/// The exit status after the second signal: what shells give for SIGINT.
const INTERRUPTED: i32 = 130;

type Resolved = config::Resolved<Flags>;

/// The command line, with the settings of the run that it goes on from, and that run.
pub fn command_line(arguments: &[OsString]) -> Result<(Resolved, Option<Saved>)> {
    let alone = resolve(arguments, None)?;
    let Some(asked) = &alone.flags.resume else { return Ok((alone, None)) };
    let place = match asked.as_os_str() == "latest" {
        true => {
            alone.flags.checkpoint.as_deref().context("--resume latest: give --checkpoint the folder to look in")?
        }
        false => asked,
    };
    let saved = Saved::open(place).context("--resume")?;
    let settings = settings_of(saved.manifest().run.get("settings"));
    let mut resolved = resolve(arguments, Some(&settings))
        .with_context(|| format!("--resume, with the settings in {}", saved.path().display()))?;
    // It goes on in the folder in which it finds it, which may have been moved.
    let folder = alone.flags.checkpoint.clone().or_else(|| (place != saved.path()).then(|| place.to_owned()));
    resolved.flags.checkpoint = folder.or_else(|| saved.store().map(Path::to_owned));
    for (name, before) in &settings.0 {
        if let Some(now) = resolved.settings.0.get(name).filter(|now| *now != before) {
            println!("other than in the checkpoint: {name} = {now}, was {}", shown(before));
        }
    }
    // What a checkpoint makes this run read is no secret.
    for (name, now) in PATHS.into_iter().filter_map(|name| Some((name, resolved.settings.0.get(name)?))) {
        if alone.settings.0.get(name) != Some(now) {
            println!("as in the checkpoint: {name} = {now}");
        }
    }
    Ok((resolved, Some(saved)))
}

/// The settings that are paths and are inherited.
const PATHS: [&str; 1] = ["data"];

/// A value of a checkpoint, for a message.
fn shown(value: &Value) -> Printable<'static> {
    Printable::new(value.to_string())
}

/// With the setting that follows from others where it is not given, so that a longer run does not change it.
fn resolve(arguments: &[OsString], resumed: Option<&Settings>) -> Result<Resolved> {
    let mut resolved: Resolved = config::resolve(arguments, resumed)?;
    resolved.settings.0.insert("schedule_steps".to_owned(), resolved.flags.schedule_steps().into());
    Ok(resolved)
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
        let (seed, batch_size, mut settings) = (job.seed, job.training.batch_size, job.settings.clone());
        // What follows from the replicas where it is not given decides over bits: it does not change with them.
        let replicas = 1 + job.running.elsewhere.len();
        settings.0.insert("gradient_groups".to_owned(), job.training.gradient_groups.unwrap_or(replicas).into());
        Self { text: text.fingerprint(), seed, batch_size, settings }
    }

    /// Refuses a run whose batches would be others, or that is over.
    pub fn check(&self, checkpoint: &Checkpoint, steps: usize) -> Result<()> {
        let done = checkpoint.progress.steps;
        let of_run = |name: &str| checkpoint.run.get(name).cloned().unwrap_or_default();
        let mut different = Vec::new();
        for (name, now, way_out) in [
            ("text", json!(self.text), "the files have changed: give --data the text of then, or start anew"),
            ("seed", json!(self.seed), "leave --seed out"),
            ("batch_size", json!(self.batch_size), "keep replicas x M x micro-batch size, or leave these flags out"),
        ] {
            let before = of_run(name);
            if before != now {
                different.push(format!("{name} was {} in the checkpoint and is {now}; {way_out}", shown(&before)));
            }
        }
        if done > steps as u64 {
            different.push(format!("the checkpoint is after {done} steps; --steps {steps}: give {done} or more"));
        }
        ensure!(different.is_empty(), "--resume: {}", different.join("\n  "));
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

/// Where checkpoints are written, and the first signal, which ends the training after its step.
pub struct Place {
    store: Store,
    signalled: Arc<AtomicBool>,
}

/// The folder for checkpoints, if there is one. From now on the first signal is noted, and the second ends the process.
pub fn place(keeping: &Keeping, resumed: Option<&Saved>) -> Result<Option<Place>> {
    let Some(folder) = &keeping.folder else { return Ok(None) };
    if resumed.is_none() {
        match Saved::open(folder) {
            Err(CheckpointError::PathNotFound { .. } | CheckpointError::NoCheckpoint { .. }) => {}
            Err(CheckpointError::Neither { .. } | CheckpointError::NotAFolder { .. }) => {}
            Ok(_) => bail!(
                "--checkpoint: {0} has checkpoints of a run; go on from them with --resume {0}, or give another folder",
                folder.display()
            ),
            Err(damaged) => {
                let way_out = format!("--checkpoint: {} cannot be used; give another folder", folder.display());
                return Err(Error::new(damaged).context(way_out));
            }
        }
    }
    let store = Store::open(folder, keeping.keep).context("--checkpoint")?;
    let signalled = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // In this order: the first signal finds the flag still down.
        flag::register_conditional_shutdown(signal, INTERRUPTED, Arc::clone(&signalled))?;
        flag::register(signal, Arc::clone(&signalled))?;
    }
    Ok(Some(Place { store, signalled }))
}

/// Writes checkpoints while the training goes on, and knows when it is to stop.
pub struct Keeper {
    writer: Option<Writer>,
    identity: Identity,
    every: usize,
    stop_after: Option<usize>,
    signalled: Arc<AtomicBool>,
    /// The last one that was taken, after how many steps; where, if it was there before.
    kept: Option<(u64, Option<PathBuf>)>,
}

impl Keeper {
    pub fn new(keeping: &Keeping, place: Option<Place>, identity: Identity, resumed: Option<&Saved>) -> Result<Self> {
        let (store, signalled) = place.map(|Place { store, signalled }| (store, signalled)).unzip();
        let here = |saved: &&Saved| saved.path().parent() == keeping.folder.as_deref();
        let kept = |saved: &Saved| (saved.manifest().progress.steps, Some(saved.path().to_owned()));
        Ok(Self {
            writer: store.map(Writer::new).transpose().context("--checkpoint")?,
            identity,
            every: keeping.every,
            stop_after: keeping.stop_after,
            signalled: signalled.unwrap_or_default(),
            kept: resumed.filter(here).map(kept),
        })
    }

    /// Whether the training ends after so many steps.
    pub fn stops(&self, steps: usize) -> bool {
        self.signalled.load(Ordering::Acquire) || self.stop_after.is_some_and(|last| steps >= last)
    }

    /// After how many steps there is something to do, when so many are done.
    pub fn due_after(&self, steps: usize) -> usize {
        let next = (steps / self.every + 1).saturating_mul(self.every);
        self.stop_after.filter(|last| *last > steps).map_or(next, |last| next.min(last))
    }

    /// After so many steps, if one is due: after none, too.
    pub fn step(&mut self, pipeline: &mut Pipeline<Bytes, Bytes>, steps: usize) -> Result<()> {
        if steps.is_multiple_of(self.every) { self.save(pipeline) } else { Ok(()) }
    }

    /// Takes one now, unless there is one of this step.
    pub fn save(&mut self, pipeline: &mut Pipeline<Bytes, Bytes>) -> Result<()> {
        let Some(writer) = &mut self.writer else { return Ok(()) };
        let mut checkpoint = pipeline.checkpoint()?;
        let steps = checkpoint.progress.steps;
        if self.kept.as_ref().is_none_or(|(kept, _)| *kept != steps) {
            self.kept = Some((steps, None));
            self.identity.write(&mut checkpoint, pipeline.plan().to_csv());
            if let Err(error) = writer.write(checkpoint.clone()) {
                // The disk may have room again before the run is over.
                tracing::warn!("{:#}; the training goes on", anyhow!(error));
                writer.write(checkpoint)?;
            }
        }
        Ok(())
    }

    /// Waits until the last one is there, and says how to go on from it.
    pub fn finish(self) -> Result<()> {
        let written = self.writer.map(Writer::finish).transpose()?.flatten();
        let Some((steps, before)) = self.kept else { return Ok(()) };
        if let Some(path) = written.or(before) {
            println!("checkpoint after {steps} steps; to go on from it: --resume {}", path.display());
        }
        Ok(())
    }
}
