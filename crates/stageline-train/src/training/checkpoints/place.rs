//! Opens a run's checkpoint folder ([`Place`]).

use std::path::Path;

use anyhow::{Context, Error, Result, bail, ensure};
use stageline::checkpoint::{CheckpointError, Saved, Store};

use crate::settings::keeping::{BEST, Keeping};
use crate::training::signals::Signals;

/// A run's opened checkpoint folder, with the SIGINT and SIGTERM handlers that end the run with a checkpoint at the
/// first signal.
pub struct Place {
    pub(super) store: Store,
    pub(super) signals: Signals,
}

/// Opens the folder of `--checkpoint`, and installs SIGINT and SIGTERM handlers until the run ends. Returns `None` if
/// `--checkpoint` is unset. `keeping` holds the checkpoint settings, and `resumed` is the checkpoint to resume from.
///
/// The first signal ends the run with a checkpoint, and the second ends the process.
///
/// # Errors
/// Returns an error in these cases:
///
/// - The folder cannot be used, or is a folder of `--best-checkpoint`.
/// - The folder already contains checkpoints from which the run does not resume. The run would later delete them as old
///   checkpoints.
/// - `--resume` does not name the checkpoint itself, and another run has meanwhile saved a newer one.
/// - The signal handlers cannot be installed.
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
                "--checkpoint: {0} has checkpoints of an earlier run; resume it with --resume {0}, or give another folder",
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

/// Checks that `resumed`, the checkpoint to resume from, is still the newest in `folder`, unless `--resume` names it
/// explicitly. Before the folder was locked, another run may have saved a newer one.
fn check_newest(keeping: &Keeping, resumed: &Path, folder: &Path) -> Result<()> {
    let named = keeping.resume.as_deref().and_then(|named| named.canonicalize().ok());
    let is_named = named.as_deref() == Some(resumed);
    let newest = match Saved::open(folder) {
        Ok(newest) => newest,
        Err(_) if is_named => return Ok(()), // a later checkpoint may be damaged, so the user names this one
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

/// Whether a checkpoint is in `folder`, comparing normalised paths.
pub(super) fn is_in(saved: &Saved, folder: &Path) -> bool {
    let canonical = |path: &Path| path.canonicalize().ok();
    canonical(saved.path())
        .as_deref()
        .and_then(Path::parent)
        .is_some_and(|parent| canonical(folder).as_deref() == Some(parent))
}
