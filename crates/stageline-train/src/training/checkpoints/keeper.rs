//! Decides when the checkpoints of a run are written, and when the training ends early ([`Keeper`]).

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

/// The entry of a checkpoint with the count of [`Patience`].
const PATIENCE: &str = "patience";

/// Writes the checkpoints of a run in the background while the training continues. Also decides whether a signal,
/// `--stop-after` or `--patience` ends the training.
pub struct Keeper {
    identity: Identity,
    /// The folder of `--checkpoint`; `None` for a run without checkpoints.
    folder: Option<Background>,
    /// The number of training steps between two checkpoints.
    every: usize,
    stop_after: Option<usize>,
    /// The handlers of signals; `None` for a run without checkpoints.
    signals: Option<Signals>,
    /// The folder of `--best-checkpoint`; `None` if the flag is unset.
    best: Option<Best>,
    /// The count of evaluations without a lower loss; `None` without `--patience`.
    patience: Option<Patience>,
}

/// The ends of the last writes of checkpoints: the lines that tell the user where they are, or the errors. A line is
/// `None` if there is no checkpoint.
pub struct Finished {
    /// The end of the latest checkpoint, from which a run resumes.
    pub latest: Result<Option<String>>,
    /// The end of the checkpoint with the lowest validation loss.
    pub best: Result<Option<String>>,
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
        let before = |saved: &Saved| (saved.manifest().progress.steps, saved.path().to_owned());
        let before = resumed.filter(is_in_folder).map(before);
        let folder = store.map(|store| Background::new(store, "--checkpoint", before)).transpose()?;
        let (every, stop_after) = (keeping.every, keeping.stop_after);
        Ok(Self { identity, folder, every, stop_after, signals, best: None, patience: None })
    }

    /// Compares the validation losses of the run, as `--best-checkpoint` and `--patience` say, with each other and with
    /// those of earlier runs of the training. `held_out` are the batches of held-out samples, and `resumed` is the
    /// checkpoint from which the run resumes.
    ///
    /// # Errors
    /// Returns an error if one of the flags is given and no sample is held out, or as [`Best::open`] does.
    pub fn compare<In: Payload, Target: Payload>(
        &mut self,
        job: &Job,
        held_out: &[Batch<In, Target>],
        resumed: Option<&Checkpoint>,
    ) -> Result<()> {
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

    /// Returns the flag that the first SIGINT or SIGTERM sets. Waits check the flag, so that a signal ends them.
    /// Without checkpoints the flag stays unset, because then a signal ends the process.
    pub fn stop_signal(&self) -> Arc<AtomicBool> {
        self.signals.as_ref().map(Signals::signalled).unwrap_or_default()
    }

    /// Whether the training is interrupted after `steps` completed steps, by a signal or by `--stop-after`.
    pub fn interrupts(&self, steps: usize) -> bool {
        let is_signalled = self.signals.as_ref().is_some_and(Signals::is_signalled);
        is_signalled || self.stop_after.is_some_and(|last| steps >= last)
    }

    /// Returns the text that tells why the training is complete after `steps` steps, before its last step: by
    /// `--patience`, the validation loss no longer falls. Returns `None` if it is not complete.
    pub fn completes(&self, steps: usize) -> Option<String> {
        self.patience.as_ref()?.end(steps)
    }

    /// Returns the number of completed steps after which the next checkpoint is due or `--stop-after` ends the
    /// training, whichever comes first. It is greater than `steps`, the current number of completed steps.
    pub fn due_after(&self, steps: usize) -> usize {
        let next = (steps / self.every + 1).saturating_mul(self.every);
        self.stop_after.filter(|last| *last > steps).map_or(next, |last| next.min(last))
    }

    /// Saves a checkpoint of the pipeline if one is due: before the first step of the training, and after every
    /// `--every` steps. `steps` is the number of completed steps. Logs a warning if an earlier save has failed.
    pub fn step<In, Out, Target>(&mut self, pipeline: &mut Pipeline<In, Out, Target>, steps: usize) -> Result<()>
    where
        In: Payload,
        Out: Payload,
        Target: Payload,
    {
        self.folder.iter_mut().for_each(Background::poll);
        self.best.iter_mut().for_each(Best::poll);
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
        let steps = pipeline.steps_done() as u64;
        if self.folder.as_ref().is_none_or(|folder| folder.has(steps)) {
            return Ok(());
        }
        let checkpoint = self.copy(pipeline)?;
        self.folder.as_mut().map_or(Ok(()), |folder| folder.write(checkpoint))
    }

    /// Saves the last checkpoint of the run, after the pipeline has made its last step or has failed. Does nothing if
    /// there is one with the same number of completed steps on disk.
    pub fn save_last<In, Out, Target>(&mut self, pipeline: &mut Pipeline<In, Out, Target>) -> Result<()>
    where
        In: Payload,
        Out: Payload,
        Target: Payload,
    {
        // If the write of this step fails, it is tried again.
        self.folder.iter_mut().for_each(Background::wait);
        self.save(pipeline)
    }

    /// Takes note of the validation loss of the pipeline. If it is the lowest so far, saves a checkpoint in the folder
    /// of `--best-checkpoint`. Does nothing without `--best-checkpoint` and `--patience`.
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

    /// Copies the state of the pipeline to a new checkpoint.
    fn copy<In, Out, Target>(&mut self, pipeline: &mut Pipeline<In, Out, Target>) -> Result<Checkpoint>
    where
        In: Payload,
        Out: Payload,
        Target: Payload,
    {
        // The previous copies of the state are freed before the next one is made: the host may have room for one only.
        self.folder.iter_mut().for_each(Background::wait);
        self.best.iter_mut().for_each(Best::wait);
        let mut checkpoint = pipeline.checkpoint()?;
        self.identity.write(&mut checkpoint, pipeline.plan().to_csv());
        if let Some(patience) = &self.patience {
            checkpoint.run.insert(PATIENCE.to_owned(), patience.stored());
        }
        Ok(checkpoint)
    }

    /// Waits until the last checkpoints of the run are on disk. If the run wrote no checkpoint, the line names the one
    /// from which the run resumed, if that is in the same folder. No checkpoint can be saved after this call.
    ///
    /// If a checkpoint was written and only older ones could not be removed, there is a warning instead of an error.
    pub fn finish(&mut self) -> Finished {
        let latest = self.folder.take().map_or(Ok(None), Background::finish);
        let line = |(steps, path): (u64, PathBuf)| {
            format!("checkpoint after {steps} steps; to resume from it: --resume {}", path.display())
        };
        let latest = latest.map(|kept| kept.map(line));
        Finished { latest, best: self.best.take().map_or(Ok(None), Best::finish) }
    }
}
