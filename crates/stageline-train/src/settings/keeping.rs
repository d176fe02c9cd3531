//! The settings of the checkpoints that a run writes ([`Keeping`]).

use std::num::NonZero;
use std::path::PathBuf;

use super::flags::TrainingFlags;

/// The entry that only the checkpoints of `--best-checkpoint` have, with their validation loss.
pub const BEST: &str = "best";

/// The settings of the checkpoints that a run writes: their folder, the interval between them, and how many to keep.
pub struct Keeping {
    /// The folder for checkpoints; `None` writes no checkpoints.
    pub folder: Option<PathBuf>,
    /// The value of `--resume`: a checkpoint, or `latest`, `auto` or a folder, which stand for the newest checkpoint.
    pub resume: Option<PathBuf>,
    /// The folder for the checkpoint with the lowest validation loss; `None` keeps none.
    pub best: Option<PathBuf>,
    /// The number of training steps between two checkpoints.
    pub every: usize,
    /// The number of newest checkpoints that stay in the folder; older ones are deleted.
    pub keep: NonZero<usize>,
    /// The number of steps after which the training ends early with a checkpoint, counted over all its runs. `None`
    /// trains to the last step.
    pub stop_after: Option<usize>,
}

impl Keeping {
    /// Whether the run writes checkpoints.
    pub fn has_folder(&self) -> bool {
        self.folder.is_some() || self.best.is_some()
    }

    /// Returns the settings of checkpoints in the flags of a run.
    pub fn of(flags: &TrainingFlags) -> Self {
        Self {
            folder: flags.checkpoint.clone(),
            best: flags.best_checkpoint.clone(),
            resume: flags.resume.clone(),
            every: flags.every,
            keep: flags.keep,
            stop_after: flags.stop_after,
        }
    }
}
