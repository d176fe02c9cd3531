//! Decides when a run's checkpoints are written, and when training ends early ([`Keeper`]).

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Result, ensure};
use stageline::checkpoint::{Checkpoint, Saved};
use stageline::{Batch, Payload, Pipeline};

use crate::data::batch_fingerprint::fingerprint_of;
use crate::settings::job::Job;
use crate::settings::keeping::Keeping;
use crate::training::checkpoints::background::Background;
use crate::training::checkpoints::best::Best;
use crate::training::checkpoints::identity::Identity;
use crate::training::checkpoints::place::{Place, is_in};
use crate::training::patience::Patience;
use crate::training::signals::Signals;

/// Name of the checkpoint entry with the state of the early-stopping counter ([`Patience`]).
const PATIENCE: &str = "patience";

/// Writes a run's checkpoints in the background while training continues. Also decides whether a signal, `--stop-after`
/// or `--patience` ends the run.
pub struct Keeper {
    identity: Identity,
    /// The folder of `--checkpoint`, with the thread that writes into it; `None` for a run without such a folder.
    folder: Option<Background>,
    /// The number of training steps between two checkpoints.
    every: usize,
    stop_after: Option<usize>,
    /// SIGINT and SIGTERM handlers, which request the end of the run; `None` for a run without a folder of
    /// `--checkpoint`.
    signals: Option<Signals>,
    /// The folder of `--best-checkpoint`; `None` if the flag is unset.
    best: Option<Best>,
    /// The early-stopping counter of evaluations without a lower loss; `None` without `--patience`.
    patience: Option<Patience>,
}

/// Results of the last checkpoint writes at the end of a run. Each is a line that tells the user where the checkpoint
/// is (`None` if there is no checkpoint), or an error.
pub struct Finished {
    /// Result of writing the run's latest checkpoint, from which a run can resume: a line for the user, or an error.
    pub latest: Result<Option<String>>,
    /// Result of writing the checkpoint with the lowest validation loss: a line for the user, or an error.
    pub best: Result<Option<String>>,
}

impl Keeper {
    /// Starts the thread that writes checkpoints to `place`; writes none if `place` is `None`. `resumed` is the
    /// checkpoint to resume from, which is not written again if it is in the same folder.
    ///
    /// # Errors
    /// Returns an error if the thread cannot be started.
    pub fn new(keeping: &Keeping, place: Option<Place>, identity: Identity, resumed: Option<&Saved>) -> Result<Self> {
        let (store, signals) = place.map(|Place { store, signals }| (store, signals)).unzip();
        let is_in_folder = |saved: &&Saved| keeping.folder.as_deref().is_some_and(|folder| is_in(saved, folder));
        let before = |saved: &Saved| (saved.manifest().progress.steps, saved.path().to_owned());
        let before = resumed.filter(is_in_folder).map(before);
        let folder = store.map(|store| Background::new(store, "--checkpoint", before)).transpose()?;
        let (every, stop_after) = (keeping.every, keeping.stop_after);
        Ok(Self { identity, folder, every, stop_after, signals, best: None, patience: None })
    }

    /// Enables `--best-checkpoint` and `--patience`, which compare validation losses, also with those of earlier runs
    /// of the training. `held_out` are the held-out batches, and `resumed` is the checkpoint to resume from. Logs a
    /// warning if `--validate-every` is given but no samples are held out.
    ///
    /// # Errors
    /// Returns an error if one of the flags is given but no samples are held out, and the errors of [`Best::open`].
    pub fn compare<In: Payload, Target: Payload>(
        &mut self,
        job: &Job,
        held_out: &[Batch<In, Target>],
        resumed: Option<&Checkpoint>,
    ) -> Result<()> {
        if job.training.validate_every > 0 && held_out.is_empty() {
            tracing::warn!("--validate-every has no effect: the data has no held-out samples; hold out some");
        }
        let (best, patience) = (job.keeping.best.as_deref(), job.training.patience);
        let given = [("--best-checkpoint", best.is_some()), ("--patience", patience.is_some())];
        let Some((flag, _)) = given.into_iter().find(|(_, is_given)| *is_given) else { return Ok(()) };
        ensure!(
            !held_out.is_empty(),
            "{flag}: the data has no held-out samples whose loss could be compared; hold out some"
        );
        let samples = fingerprint_of(held_out);
        let open = |folder| Best::open(folder, samples.clone(), resumed, &self.identity);
        self.best = best.map(open).transpose()?;
        let counted = resumed.and_then(|checkpoint| checkpoint.run.get(PATIENCE));
        self.patience = patience.map(|most| {
            let patience = Patience::new(most, samples);
            counted.into_iter().fold(patience, Patience::resume)
        });
        Ok(())
    }

    /// Returns the flag that becomes true at the first SIGINT or SIGTERM, so that waits can end early. In a run without
    /// a folder of `--checkpoint` it stays false, because a signal then ends the process.
    pub fn stop_signal(&self) -> Arc<AtomicBool> {
        self.signals.as_ref().map(Signals::signalled).unwrap_or_default()
    }

    /// Whether a signal or `--stop-after` interrupts the training after `steps` completed steps.
    pub fn interrupts(&self, steps: usize) -> bool {
        let is_signalled = self.signals.as_ref().is_some_and(Signals::is_signalled);
        is_signalled || self.stop_after.is_some_and(|last| steps >= last)
    }

    /// Returns the range of step indices that this run trains unless a signal or `--patience` ends it. It begins with
    /// `start`, and ends with the training's number of steps or with `--stop-after`, whichever is first.
    pub fn range(&self, start: usize, steps: usize) -> Range<usize> {
        start..self.stop_after.map_or(steps, |last| steps.min(last.max(start + 1)))
    }

    /// Returns a message with the reason if training stops early after `steps` steps, because the validation loss has
    /// not fallen for `--patience` evaluations. Returns `None` if training continues.
    pub fn completes(&self, steps: usize) -> Option<String> {
        self.patience.as_ref()?.end(steps)
    }

    /// Returns the number of completed steps, greater than `steps`, at which the next checkpoint is due or
    /// `--stop-after` ends the run, whichever is first.
    pub fn due_after(&self, steps: usize) -> usize {
        let next = (steps / self.every + 1).saturating_mul(self.every);
        self.stop_after.filter(|last| *last > steps).map_or(next, |last| next.min(last))
    }

    /// Saves a checkpoint if one is due after `steps` completed steps: before the first step of a run whose folder has
    /// none, and every `--every` steps. So a run that resumes into a new folder can be resumed from there at once. Logs
    /// a warning if an earlier save has failed.
    pub fn step<In, Out, Target>(&mut self, pipeline: &mut Pipeline<In, Out, Target>, steps: usize) -> Result<()>
    where
        In: Payload,
        Out: Payload,
        Target: Payload,
    {
        self.folder.iter_mut().for_each(Background::poll);
        self.best.iter_mut().for_each(Best::poll);
        let is_first = self.folder.as_ref().is_some_and(Background::is_empty);
        if is_first || steps.is_multiple_of(self.every) { self.save(pipeline) } else { Ok(()) }
    }

    /// Copies the pipeline's state, and starts to write it as a checkpoint, whether or not one is due. Does nothing if
    /// checkpoints are off, or if the latest checkpoint has the same number of completed steps.
    pub fn save<In, Out, Target>(&mut self, pipeline: &mut Pipeline<In, Out, Target>) -> Result<()>
    where
        In: Payload,
        Out: Payload,
        Target: Payload,
    {
        let steps = pipeline.steps_done() as u64;
        if self.folder.as_ref().is_none_or(|folder| folder.has(steps)) {
            return Ok(());
        }
        let checkpoint = self.copy(pipeline)?;
        self.folder.as_mut().map_or(Ok(()), |folder| folder.write(checkpoint))
    }

    /// Saves the run's last checkpoint, after its last step or an error. Does nothing if a checkpoint with the same
    /// number of completed steps is on disk.
    pub fn save_last<In, Out, Target>(&mut self, pipeline: &mut Pipeline<In, Out, Target>) -> Result<()>
    where
        In: Payload,
        Out: Payload,
        Target: Payload,
    {
        // If an earlier write of the same step failed, the checkpoint is written again.
        self.folder.iter_mut().for_each(Background::wait);
        self.save(pipeline)
    }

    /// Records the pipeline's validation loss. If it is the lowest so far, saves a checkpoint in the folder of
    /// `--best-checkpoint`. Does nothing without `--best-checkpoint` and `--patience`.
    pub fn evaluated<In, Out, Target>(&mut self, pipeline: &mut Pipeline<In, Out, Target>, loss: f64) -> Result<()>
    where
        In: Payload,
        Out: Payload,
        Target: Payload,
    {
        self.patience.iter_mut().for_each(|patience| patience.add(loss, pipeline.steps_done()));
        if !self.best.as_mut().is_some_and(|best| best.is_lower(loss)) {
            return Ok(());
        }
        let checkpoint = self.copy(pipeline)?;
        self.best.as_mut().map_or(Ok(()), |best| best.save(checkpoint, loss))
    }

    /// Copies the pipeline's state into a new checkpoint.
    fn copy<In, Out, Target>(&mut self, pipeline: &mut Pipeline<In, Out, Target>) -> Result<Checkpoint>
    where
        In: Payload,
        Out: Payload,
        Target: Payload,
    {
        // Frees the previous copies of the state first, because host memory may have room for only one.
        self.folder.iter_mut().for_each(Background::wait);
        self.best.iter_mut().for_each(Best::wait);
        let mut checkpoint = pipeline.checkpoint()?;
        self.identity.write(&mut checkpoint, pipeline.plan().to_csv());
        if let Some(patience) = &self.patience {
            checkpoint.run.insert(PATIENCE.to_owned(), patience.stored());
        }
        Ok(checkpoint)
    }

    /// Waits until the run's last checkpoints are on disk; no checkpoint can be saved afterwards. If the run wrote
    /// none, the returned line names the checkpoint that the run resumed from, if it is in the same folder.
    ///
    /// A failure to delete older checkpoints is only logged as a warning.
    pub fn finish(&mut self) -> Finished {
        let latest = self.folder.take().map_or(Ok(None), Background::finish);
        let line = |(steps, path): (u64, PathBuf)| {
            format!("checkpoint after {steps} steps; to resume from it: --resume {}", path.display())
        };
        let latest = latest.map(|kept| kept.map(line));
        Finished { latest, best: self.best.take().map_or(Ok(None), Best::finish) }
    }
}
