//! Writes the checkpoints of a run in the background, and checks whether a run may resume a checkpoint.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Error, Result, anyhow, bail, ensure};
use serde_json::json;
use stageline::checkpoint::{Checkpoint, CheckpointError, Saved, Store, Writer};
use stageline::{Payload, Pipeline};

use crate::settings::job::Job;
use crate::settings::keeping::Keeping;
use crate::settings::merge::Settings;
use crate::settings::resume::shown;
use crate::training::signals::Signals;

/// Identifies a run in its checkpoints, which store the fingerprint of its data, its seed, its batch size in samples
/// and its settings. When the run is resumed, [`check`](Self::check) compares the first three.
pub struct Identity {
    data: String,
    seed: u64,
    batch_size: usize,
    settings: Settings,
}

impl Identity {
    /// Returns the identity of the run with the settings in `job`. `data` is the fingerprint of its training data.
    pub fn of(job: &Job, data: String) -> Self {
        let (seed, batch_size, mut settings) = (job.seed, job.training.batch_size, job.settings.clone());
        // The number of gradient groups affects the bits, and by default it is that of replicas. It is written down, so
        // that a resumed run keeps it with any number of replicas.
        let replicas = job.running.replicas;
        settings.0.insert("gradient_groups".to_owned(), job.training.gradient_groups.unwrap_or(replicas).into());
        Self { data, seed, batch_size, settings }
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
            different.push(format!("the checkpoint is after {done} steps; --steps {steps}: give {done} or more"));
        }
        ensure!(different.is_empty(), "--resume: {}", different.join("\n  "));
        Ok(())
    }

    /// Writes facts about the run into a checkpoint: its data, seed, batch size and settings, the number of samples
    /// trained on so far, and the plan as CSV text.
    fn write(&self, checkpoint: &mut Checkpoint, plan: String) {
        let samples = checkpoint.progress.steps * self.batch_size as u64;
        for (name, value) in [
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

/// The opened folder for the checkpoints of a run, and the handlers of SIGINT and SIGTERM. The first of these signals
/// ends the training with a checkpoint.
pub struct Place {
    store: Store,
    signals: Signals,
}

/// Opens the folder that `--checkpoint` names, and handles SIGINT and SIGTERM until the run ends. `keeping` holds the
/// settings of checkpoints, and `resumed` is the checkpoint from which the run resumes. Returns `None` if
/// `--checkpoint` is unset.
///
/// The first of these signals ends the training with a checkpoint, and the second ends the process.
///
/// # Errors
/// Returns an error if the folder cannot be used. Returns an error also if the folder already contains checkpoints and
/// the run does not resume from one of them, because this run would delete them as the oldest checkpoints.
pub fn place(keeping: &Keeping, resumed: Option<&Saved>) -> Result<Option<Place>> {
    let Some(folder) = &keeping.folder else { return Ok(None) };
    let resumed = resumed.filter(|saved| is_in(saved, folder));
    if resumed.is_none() {
        match Saved::open(folder) {
            Err(CheckpointError::PathNotFound { .. } | CheckpointError::NoCheckpoint { .. }) => {}
            Err(CheckpointError::Neither { .. } | CheckpointError::NotAFolder { .. }) => {}
            Ok(_) => bail!(
                "--checkpoint: {0} has checkpoints of another run; resume it with --resume {0}, or give another folder",
                folder.display()
            ),
            Err(damaged) => {
                let remedy = format!("--checkpoint: {} cannot be used; give another folder", folder.display());
                return Err(Error::new(damaged).context(remedy));
            }
        }
    }
    let mut store = Store::open(folder, keeping.keep).context("--checkpoint")?;
    if let Some(resumed) = resumed {
        check_newest(keeping, resumed, folder)?;
        let path = resumed.path().canonicalize().context("--resume")?; // a link may have another name
        store = store.resuming(&path);
    }
    Ok(Some(Place { store, signals: Signals::handle()? }))
}

/// Checks that the checkpoint from which the run resumes is still the newest one in `folder`, unless `--resume` names
/// it. The folder is locked only now, so a run that was still ending may have saved another checkpoint meanwhile.
fn check_newest(keeping: &Keeping, resumed: &Saved, folder: &Path) -> Result<()> {
    let is_named = keeping.resume.as_deref().and_then(Path::file_name) == resumed.path().file_name();
    let newest = match Saved::open(folder) {
        Ok(newest) => newest,
        Err(_) if is_named => return Ok(()), // a later one may be damaged, which is why this one is named
        Err(error) => return Err(Error::new(error).context("--resume")),
    };
    if is_named {
        if newest.path().file_name() != resumed.path().file_name() {
            tracing::warn!(
                "{} has later checkpoints, such as {}, which --keep {} will remove; give another folder as --checkpoint to keep them",
                folder.display(),
                newest.path().display(),
                keeping.keep
            );
        }
        return Ok(());
    }
    ensure!(
        newest.path().file_name() == resumed.path().file_name(),
        "--resume: another run has meanwhile saved {}; start again to resume from it",
        newest.path().display()
    );
    Ok(())
}

/// Whether a checkpoint is in the folder `folder`, in whatever way the two paths are written.
fn is_in(saved: &Saved, folder: &Path) -> bool {
    let canonical = |path: &Path| path.canonicalize().ok();
    canonical(saved.path())
        .as_deref()
        .and_then(Path::parent)
        .is_some_and(|parent| canonical(folder).as_deref() == Some(parent))
}

/// Writes the checkpoints of a run in the background while the training continues. Also decides whether a signal or
/// `--stop-after` ends the training.
pub struct Keeper {
    writer: Option<Writer>,
    identity: Identity,
    /// The number of training steps between two checkpoints.
    every: usize,
    stop_after: Option<usize>,
    /// The handlers of signals; `None` for a run without checkpoints.
    signals: Option<Signals>,
    /// The latest checkpoint, as its number of completed training steps and its path; `None` if there is no checkpoint
    /// yet. The path is known only for a checkpoint of an earlier run.
    kept: Option<(u64, Option<PathBuf>)>,
}

impl Keeper {
    /// Starts the background writer of checkpoints. Without `place`, no checkpoints are written. `resumed` is the
    /// checkpoint from which the run resumes; it is not written again if it is in the same folder.
    ///
    /// # Errors
    /// Returns an error if the writer cannot be started.
    pub fn new(keeping: &Keeping, place: Option<Place>, identity: Identity, resumed: Option<&Saved>) -> Result<Self> {
        let (store, signals) = place.map(|Place { store, signals }| (store, signals)).unzip();
        let is_in_folder = |saved: &&Saved| keeping.folder.as_deref().is_some_and(|folder| is_in(saved, folder));
        let kept = |saved: &Saved| (saved.manifest().progress.steps, Some(saved.path().to_owned()));
        Ok(Self {
            writer: store.map(Writer::new).transpose().context("--checkpoint")?,
            identity,
            every: keeping.every,
            stop_after: keeping.stop_after,
            signals,
            kept: resumed.filter(is_in_folder).map(kept),
        })
    }

    /// Returns the flag that the first SIGINT or SIGTERM sets. Waits check the flag, so that a signal ends them.
    /// Without checkpoints the flag stays unset, because then a signal ends the process.
    pub fn stop_signal(&self) -> Arc<AtomicBool> {
        self.signals.as_ref().map(Signals::signalled).unwrap_or_default()
    }

    /// Whether the training ends after `steps` completed steps, because of a signal or because of `--stop-after`.
    pub fn stops(&self, steps: usize) -> bool {
        let is_signalled = self.signals.as_ref().is_some_and(Signals::is_signalled);
        is_signalled || self.stop_after.is_some_and(|last| steps >= last)
    }

    /// Returns the number of completed steps after which the next checkpoint is due or `--stop-after` ends the
    /// training, whichever comes first. It is greater than `steps`, the current number of completed steps.
    pub fn due_after(&self, steps: usize) -> usize {
        let next = (steps / self.every + 1).saturating_mul(self.every);
        self.stop_after.filter(|last| *last > steps).map_or(next, |last| next.min(last))
    }

    /// Saves a checkpoint of the pipeline if one is due: before the first step of the training, and after every
    /// `--every` steps. `steps` is the number of completed steps.
    pub fn step<In, Out, Target>(&mut self, pipeline: &mut Pipeline<In, Out, Target>, steps: usize) -> Result<()>
    where
        In: Payload,
        Out: Payload,
        Target: Payload,
    {
        if steps.is_multiple_of(self.every) { self.save(pipeline) } else { Ok(()) }
    }

    /// Saves a checkpoint of the pipeline now. Does nothing if checkpoints are off, or if the latest checkpoint has the
    /// same number of completed steps.
    pub fn save<In, Out, Target>(&mut self, pipeline: &mut Pipeline<In, Out, Target>) -> Result<()>
    where
        In: Payload,
        Out: Payload,
        Target: Payload,
    {
        let Some(writer) = &mut self.writer else { return Ok(()) };
        let steps = pipeline.steps_done() as u64;
        if self.kept.as_ref().is_some_and(|(kept, _)| *kept == steps) {
            return Ok(());
        }
        // The previous copy of the state is freed before the next one is made: the host may have room for one only.
        if let Err(error) = writer.wait() {
            tracing::warn!("{:#}; the training continues", anyhow!(error));
        }
        let mut checkpoint = pipeline.checkpoint()?;
        self.kept = Some((steps, None));
        self.identity.write(&mut checkpoint, pipeline.plan().to_csv());
        writer.write(checkpoint)?;
        Ok(())
    }

    /// Waits until the last checkpoint of the run is on disk. Returns the line that tells the user how to resume from
    /// it. If the run wrote no checkpoint, the line names the one from which the run resumed, if that is in the same
    /// folder; otherwise the result is `None`. No checkpoint can be saved after this call.
    ///
    /// # Errors
    /// Returns an error if the last checkpoint could not be written. If it was written and only older ones could not be
    /// removed, there is a warning instead.
    pub fn finish(&mut self) -> Result<Option<String>> {
        let finished = self.writer.take().map_or(Ok(None), Writer::finish);
        let written = finished.or_else(|error| published(error).map(Some))?;
        let Some((steps, before)) = self.kept.take() else { return Ok(None) };
        let line =
            |path: PathBuf| format!("checkpoint after {steps} steps; to resume from it: --resume {}", path.display());
        Ok(written.or(before).map(line))
    }
}

/// Returns the path of a checkpoint that is saved, although older ones could not be removed. That error becomes a
/// warning.
///
/// # Errors
/// Returns any other error of a save.
fn published(error: CheckpointError) -> Result<PathBuf> {
    let CheckpointError::Prune { published, .. } = &error else { return Err(error.into()) };
    let published = published.clone();
    tracing::warn!("{:#}", anyhow!(error));
    Ok(published)
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn a_checkpoint_is_on_disk_although_an_old_one_remains() {
        let source = || io::Error::from(io::ErrorKind::PermissionDenied);
        let pruned = CheckpointError::Prune {
            published: "kept/step-9".into(),
            doing: "remove",
            path: "kept/step-3".into(),
            source: source(),
        };
        assert_eq!(published(pruned).unwrap(), PathBuf::from("kept/step-9"));
        let lost = CheckpointError::NotDurable { published: "kept/step-9".into(), source: source(), undo: source() };
        assert!(published(lost).is_err());
    }
}
