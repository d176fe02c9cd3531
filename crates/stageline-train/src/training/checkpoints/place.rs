//! Opens the folder for the checkpoints of a run ([`Place`]).

use std::path::Path;

use anyhow::{Context, Error, Result, bail, ensure};
use stageline::checkpoint::{CheckpointError, Saved, Store};

use crate::settings::keeping::{BEST, Keeping};
use crate::training::signals::Signals;

/// The opened folder for the checkpoints of a run, and the handlers of SIGINT and SIGTERM. The first of these signals
/// ends the training with a checkpoint.
pub struct Place {
    pub(super) store: Store,
    pub(super) signals: Signals,
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
    ensure!(
        !resumed.is_some_and(|saved| saved.manifest().run.contains_key(BEST)),
        "--checkpoint: {} is a folder of --best-checkpoint, which keeps one checkpoint; give another folder",
        folder.display()
    );
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
        let resumed = resumed.path().canonicalize().context("--resume")?; // a link may have another name
        check_newest(keeping, &resumed, folder)?;
        store = store.resuming(&resumed);
    }
    Ok(Some(Place { store, signals: Signals::handle()? }))
}

/// Checks that the checkpoint from which the run resumes is still the newest one in `folder`, unless `--resume` names
/// it. The folder is locked only now, so a run that was still ending may have saved another checkpoint meanwhile.
fn check_newest(keeping: &Keeping, resumed: &Path, folder: &Path) -> Result<()> {
    let named = keeping.resume.as_deref().and_then(|named| named.canonicalize().ok());
    let is_named = named.as_deref() == Some(resumed);
    let newest = match Saved::open(folder) {
        Ok(newest) => newest,
        Err(_) if is_named => return Ok(()), // a later one may be damaged, which is why this one is named
        Err(error) => return Err(Error::new(error).context("--resume")),
    };
    if is_named {
        if newest.path().file_name() != resumed.file_name() {
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
        newest.path().file_name() == resumed.file_name(),
        "--resume: another run has meanwhile saved {}; start again to resume from it",
        newest.path().display()
    );
    Ok(())
}

/// Whether a checkpoint is in the folder `folder`, in whatever way the two paths are written.
pub(super) fn is_in(saved: &Saved, folder: &Path) -> bool {
    let canonical = |path: &Path| path.canonicalize().ok();
    canonical(saved.path())
        .as_deref()
        .and_then(Path::parent)
        .is_some_and(|parent| canonical(folder).as_deref() == Some(parent))
}
