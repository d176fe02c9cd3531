//! Keeps the checkpoint with the lowest validation loss ([`Best`]).

use std::num::NonZero;
use std::path::{Path, PathBuf};

use anyhow::{Context, Error, Result, bail, ensure};
use serde_json::{Value, json};
use stageline::checkpoint::{Checkpoint, CheckpointError, Saved, Store};

use crate::settings::keeping::BEST;
use crate::training::checkpoints::background::Background;
use crate::training::checkpoints::identity::Identity;

const FLAG: &str = "--best-checkpoint";

/// The folder of `--best-checkpoint`, with one checkpoint: the one with the lowest validation loss.
pub struct Best {
    folder: Background,
    /// The fingerprint of the held-out samples. Losses on other samples cannot be compared.
    held_out: String,
    /// The validation loss of the checkpoint that was last written, or is being written; infinite without one.
    loss: f64,
    /// The validation loss of the checkpoint before that one, which stays in the folder if the write fails.
    before: f64,
}

impl Best {
    /// Opens the folder, which may have the best checkpoint of an earlier run of this training. `held_out` is the
    /// fingerprint of the held-out samples, and `resumed` the checkpoint from which the run resumes.
    ///
    /// # Errors
    /// Returns an error if the folder cannot be used, has checkpoints of another training or of `--checkpoint`, or has
    /// one that was chosen on other held-out samples.
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

    /// Whether a validation loss is lower than that of the checkpoint in the folder. A loss that is NaN never is. Waits
    /// for the checkpoint that is being written, which may fail.
    pub fn is_lower(&mut self, loss: f64) -> bool {
        self.folder.wait();
        if self.folder.has_failed() {
            self.loss = self.before;
        }
        loss < self.loss
    }

    /// Starts to write a checkpoint with the validation loss `loss`, which replaces the one in the folder.
    ///
    /// # Errors
    /// Returns an error if the thread that writes has panicked.
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

    /// Waits until the checkpoint is on disk. Returns the line that tells the user where it is; `None` if there is none.
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
