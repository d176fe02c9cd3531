//! A checkpoint folder into which a thread writes while training continues ([`Background`]).

use std::path::PathBuf;

use anyhow::{Context, Error, Result, anyhow};
use stageline::checkpoint::{Checkpoint, CheckpointError, Store, Writer};

/// A checkpoint folder with a thread that writes checkpoints in the background.
pub struct Background {
    writer: Writer,
    latest: Latest,
}

/// State of a folder's latest checkpoint, with the number of completed training steps in it.
enum Latest {
    Nothing,
    Writing(u64),
    Written(u64, PathBuf),
    Failed(Error),
}

impl Background {
    /// Starts a thread that writes checkpoints into the folder of `store`. `flag` names the folder's flag, for error
    /// messages. `before` is the folder's latest checkpoint from earlier runs: its number of completed steps, and its
    /// path.
    ///
    /// # Errors
    /// Returns an error if the thread cannot be started.
    pub fn new(store: Store, flag: &'static str, before: Option<(u64, PathBuf)>) -> Result<Self> {
        let latest = before.map_or(Latest::Nothing, |(steps, path)| Latest::Written(steps, path));
        Ok(Self { writer: Writer::new(store).context(flag)?, latest })
    }

    /// Whether the folder's latest checkpoint has `steps` completed steps, even if it is still being written.
    pub fn has(&self, steps: u64) -> bool {
        match self.latest {
            Latest::Nothing | Latest::Failed(_) => false,
            Latest::Writing(latest) | Latest::Written(latest, _) => latest == steps,
        }
    }

    /// Whether the folder has no checkpoint of this training, and none is being written.
    pub fn is_empty(&self) -> bool {
        matches!(self.latest, Latest::Nothing)
    }

    /// Whether the last write failed; the folder then still has the previous checkpoint.
    pub fn has_failed(&self) -> bool {
        matches!(self.latest, Latest::Failed(_))
    }

    /// Logs a warning if a write has failed since the last call. Does not wait for the write in progress.
    pub fn poll(&mut self) {
        if self.writer.has_ended() {
            self.wait();
        }
    }

    /// Waits until the checkpoint that is being written is on disk, so that its memory is free. A failed write is only
    /// logged as a warning, because training continues.
    pub fn wait(&mut self) {
        let is_writing = matches!(self.latest, Latest::Writing(_));
        self.settle();
        if let Latest::Failed(error) = &self.latest
            && is_writing
        {
            tracing::warn!("{error:#}; the training continues");
        }
    }

    /// Waits for the write in progress, and records whether it succeeded.
    fn settle(&mut self) {
        let Latest::Writing(steps) = self.latest else { return };
        self.latest = match self.writer.wait().or_else(|error| published(error).map(Some)) {
            Ok(Some(path)) => Latest::Written(steps, path),
            Ok(None) => Latest::Nothing,
            Err(error) => Latest::Failed(error),
        };
    }

    /// Starts to write a checkpoint. The previous write must have ended: see [`wait`](Self::wait).
    ///
    /// # Errors
    /// Returns an error if the writing thread has panicked.
    pub fn write(&mut self, checkpoint: Checkpoint) -> Result<()> {
        self.latest = Latest::Writing(checkpoint.progress.steps);
        self.writer.write(checkpoint)?;
        Ok(())
    }

    /// Waits until the latest checkpoint is on disk, and returns its number of completed steps and its path. If this
    /// run wrote none, the result is an earlier run's latest one; `None` if there is no checkpoint.
    ///
    /// # Errors
    /// Returns an error if the latest checkpoint could not be written. If it was written, but older ones could not be
    /// removed, a warning is logged instead.
    pub fn finish(mut self) -> Result<Option<(u64, PathBuf)>> {
        self.settle();
        match self.latest {
            Latest::Written(steps, path) => Ok(Some((steps, path))),
            Latest::Failed(error) => Err(error),
            Latest::Nothing | Latest::Writing(_) => Ok(None),
        }
    }
}

/// Returns the path of a checkpoint that was saved although older ones could not be deleted, and logs that error as a
/// warning.
///
/// # Errors
/// Returns `error` itself if it is any other error, because the checkpoint was then not saved.
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
