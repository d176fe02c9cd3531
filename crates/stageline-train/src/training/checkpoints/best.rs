//! Keeps the best checkpoint, the one with the lowest validation loss ([`Best`]).

use std::num::NonZero;
use std::path::{Path, PathBuf};

use anyhow::{Context, Error, Result, bail, ensure};
use serde_json::{Value, json};
use stageline::checkpoint::{Checkpoint, CheckpointError, Saved, Store};

use crate::settings::keeping::BEST;
use crate::training::checkpoints::background::Background;
use crate::training::checkpoints::identity::Identity;

const FLAG: &str = "--best-checkpoint";

/// The folder of `--best-checkpoint`, which holds one checkpoint: the one with the lowest validation loss.
pub struct Best {
    folder: Background,
    /// Fingerprint of the held-out samples, stored in checkpoints so that a resumed run compares losses only if the
    /// samples are the same.
    held_out: String,
    /// Validation loss of the latest checkpoint written or being written; infinite if there is none.
    loss: f64,
    /// Validation loss of the previous checkpoint, which remains in the folder if the current write fails.
    before: f64,
}

impl Best {
    /// Opens the folder of `--best-checkpoint`, which may hold the best checkpoint of an earlier run of this training.
    /// `held_out` is the fingerprint of the held-out samples, and `resumed` is the checkpoint to resume from.
    ///
    /// # Errors
    /// Returns an error if the folder cannot be used, or has checkpoints of another training, of `--checkpoint`, or
    /// chosen on different held-out samples.
    pub fn open(folder: &Path, held_out: String, resumed: Option<&Checkpoint>, identity: &Identity) -> Result<Self> {
        let shown = folder.display();
        let mut loss = f64::INFINITY;
        let before = match Saved::open(folder) {
            Err(
                CheckpointError::PathNotFound { .. }
                | CheckpointError::NoCheckpoint { .. }
                | CheckpointError::Neither { .. }
                | CheckpointError::NotAFolder { .. },
            ) => None,
            Err(damaged) => {
                return Err(Error::new(damaged).context(format!("{FLAG}: {shown} cannot be used; give another folder")));
            }
            Ok(saved) => {
                let manifest = saved.manifest();
                let best = manifest.run.get(BEST).filter(|_| resumed.is_some() && identity.is_of(manifest));
                let Some(best) = best else {
                    bail!(
                        "{FLAG}: {shown} has checkpoints of another training or of --checkpoint; give another folder"
                    );
                };
                ensure!(
                    best["held_out"] == json!(held_out),
                    "{FLAG}: the checkpoint in {shown} was the best on other held-out samples, and losses on different samples cannot \
                     be compared; give another folder, or the former --eval-data or held-out share"
                );
                loss = best["loss"].as_f64().unwrap_or(f64::INFINITY);
                let (steps, start) =
                    (manifest.progress.steps, resumed.map_or(0, |checkpoint| checkpoint.progress.steps));
                if steps > start {
                    tracing::warn!(
                        "{shown} has the best checkpoint so far, with the validation loss {loss:.4} after {steps} steps; this run resumes \
                         after {start} steps, so give another folder if its settings differ"
                    );
                }
                Some((manifest.progress.steps, PathBuf::from(saved.path())))
            }
        };
        let store = Store::open(folder, NonZero::<usize>::MIN).context(FLAG)?;
        Ok(Self { folder: Background::new(store, FLAG, before)?, held_out, loss, before: loss })
    }

    /// Whether `loss` is lower than that of the folder's checkpoint; false for NaN. First waits for a write in
    /// progress, which may fail and leave the previous checkpoint.
    pub fn is_lower(&mut self, loss: f64) -> bool {
        self.folder.wait();
        if self.folder.has_failed() {
            self.loss = self.before;
        }
        loss < self.loss
    }

    /// Starts to write a checkpoint with the validation loss `loss`, which replaces the folder's checkpoint.
    ///
    /// # Errors
    /// Returns an error if the writing thread has panicked.
    pub fn save(&mut self, mut checkpoint: Checkpoint, loss: f64) -> Result<()> {
        let best: Value = json!({ "loss": loss, "held_out": self.held_out });
        checkpoint.run.insert(BEST.to_owned(), best);
        (self.before, self.loss) = (self.loss, loss);
        self.folder.write(checkpoint)
    }

    /// Logs a warning if a write has failed since the last call. Does not wait for the write in progress.
    pub fn poll(&mut self) {
        self.folder.poll();
    }

    /// Waits until the checkpoint that is being written is on disk.
    pub fn wait(&mut self) {
        self.folder.wait();
    }

    /// Waits until the best checkpoint is on disk. Returns a line that tells the user where it is; `None` if there is
    /// none.
    ///
    /// # Errors
    /// Returns an error if the last checkpoint could not be written.
    pub fn finish(self) -> Result<Option<String>> {
        let (kept, loss) = (self.folder.finish().context(FLAG)?, self.loss);
        let line = |(steps, path): (u64, PathBuf)| {
            format!("lowest validation loss {loss:.4} after {steps} steps: {}", path.display())
        };
        Ok(kept.map(line))
    }
}
