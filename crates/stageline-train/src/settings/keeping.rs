//! The settings for a run's checkpoints ([`Keeping`]).

use std::num::NonZero;
use std::path::PathBuf;

use super::flags::TrainingFlags;

/// Name of the checkpoint's manifest entry with its validation loss. Only checkpoints of `--best-checkpoint` have it.
pub const BEST: &str = "best";

/// The settings for a run's checkpoints: their folder, the interval between them, and how many to keep.
pub struct Keeping {
    /// The folder of `--checkpoint` for the latest checkpoints; `None` writes none of them.
    pub folder: Option<PathBuf>,
    /// The value of `--resume`: a checkpoint's path; or a folder, `latest` or `auto`, each of which selects the newest
    /// checkpoint.
    pub resume: Option<PathBuf>,
    /// The folder for the checkpoint with the lowest validation loss; `None` keeps none.
    pub best: Option<PathBuf>,
    /// The number of training steps between two checkpoints.
    pub every: usize,
    /// Number of checkpoints to keep in the folder; older ones are deleted.
    pub keep: NonZero<usize>,
    /// Number of training steps, counted from the start of the training (including runs before a resume), after which
    /// this run ends early with a checkpoint. `None` trains to the last step.
    pub stop_after: Option<usize>,
}

impl Keeping {
    /// Whether the run writes checkpoints.
    pub fn has_folder(&self) -> bool {
        self.folder.is_some() || self.best.is_some()
    }

    /// Returns the checkpoint settings in a run's flags.
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
