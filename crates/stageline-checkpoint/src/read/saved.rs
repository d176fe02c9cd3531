//! A checkpoint on disk: opened with its manifest, then read as a whole.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::damage::Damage;
use crate::disk;
use crate::error::CheckpointError;
use crate::format::checkpoint::Checkpoint;
use crate::format::folder;
use crate::format::manifest::{FileEntry, MOST_BYTES, Manifest, ManifestError, TensorEntry, VERSION};
use crate::format::names::{INDEX, MANIFEST, OPTIMIZER};
use crate::format::{index, seal, shard, validate};
use crate::read::{file, locate};

/// Number of attempts to open the latest checkpoint in a folder. If another process removes that checkpoint before it
/// is open, the next attempt opens the checkpoint that is the latest by then.
const TRIES: usize = 10;

/// A checkpoint on disk that was opened, but whose tensors are not read yet. Its manifest is valid, and its files have
/// the lengths that the manifest lists.
#[derive(Clone, Debug)]
pub struct Saved {
    path: PathBuf,
    manifest: Manifest,
}

impl Saved {
    /// Opens a checkpoint without reading its tensors.
    ///
    /// `path` is the folder of a checkpoint, or a folder of checkpoints. In a folder of checkpoints, the latest one is
    /// opened. An empty path is the current folder.
    ///
    /// # Errors
    /// - [`CheckpointError::PathNotFound`], [`CheckpointError::Look`], [`CheckpointError::NotAFolder`],
    ///   [`CheckpointError::NoCheckpoint`] or [`CheckpointError::Neither`] if `path` names no checkpoint.
    /// - [`CheckpointError::LatestIsNoFolder`] if a file or link has the name of the latest checkpoint.
    /// - [`CheckpointError::Removed`] if the checkpoint is removed while it is being opened. In a folder of
    ///   checkpoints, the next latest checkpoint is tried, up to ten times in total, before this error is returned.
    /// - [`CheckpointError::Newer`] if a newer version of this crate wrote the checkpoint.
    /// - [`CheckpointError::Damaged`] if the checkpoint is damaged, with the damaged file and the next older
    ///   checkpoint. A damaged checkpoint is never skipped silently.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        let given = disk::or_here(path);
        for _ in 1..TRIES {
            let located = locate::locate(given)?;
            match Self::open_located(located) {
                Err(CheckpointError::Removed { path }) if path != given => {}
                opened => return opened,
            }
        }
        Self::open_located(locate::locate(given)?)
    }

    /// Opens the checkpoint folder `path`: validates its manifest, and checks that each file exists and has the length
    /// in the manifest. File hashes are compared only by [`read`](Self::read).
    fn open_located(path: PathBuf) -> Result<Self, CheckpointError> {
        let manifest = read_manifest(&path)?;
        let saved = Self { path, manifest };
        if !saved.manifest.optimizer.is_empty() {
            let folder = saved.path.join(OPTIMIZER);
            file::require_folder(&folder).map_err(|damage| saved.damaged(&folder, damage))?;
        }
        for FileEntry { name, bytes, .. } in &saved.manifest.files {
            let path = saved.path.join(name);
            match file::size(&path) {
                Ok(found) if found == *bytes => {}
                Ok(found) => return Err(saved.damaged(&path, Damage::Size { found, expected: *bytes })),
                Err(damage) => return Err(saved.damaged(&path, damage)),
            }
        }
        Ok(saved)
    }

    /// Returns the path of the checkpoint folder, which contains the checkpoint's files.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the folder of checkpoints that contains this checkpoint, even if the checkpoint was opened through a
    /// link or as `.`. Returns `None` if the checkpoint does not have a name such as `000007-step-100`, for example
    /// because it was renamed.
    pub fn store(&self) -> Option<PathBuf> {
        let (_, path) = folder::named(&self.path)?;
        path.parent().map(|folder| disk::or_here(folder).to_owned())
    }

    /// Returns the manifest of the checkpoint: everything but the tensors.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Reads the whole checkpoint. Validates the files' hashes, the tensors' names, dtypes and shapes, and that all
    /// tensor values are finite.
    ///
    /// The tensors of a file share one allocation, which lives as long as any of these tensors.
    ///
    /// # Errors
    /// - [`CheckpointError::Damaged`], with the damaged file and the next older checkpoint.
    /// - [`CheckpointError::Removed`] if the checkpoint has been removed since it was opened.
    ///
    /// After an error, no part of the checkpoint is returned.
    pub fn read(&self) -> Result<Checkpoint, CheckpointError> {
        let Manifest { progress, run, parameters, optimizer, frozen, .. } = &self.manifest;
        let mut checkpoint = Checkpoint {
            progress: *progress,
            run: run.clone(),
            parameters: BTreeMap::new(),
            optimizer: BTreeMap::new(),
            frozen: frozen.clone(),
        };
        let parameters_by_file = by_file(parameters);
        let optimizer_by_file = by_file(optimizer);
        for file in &self.manifest.files {
            let path = self.path.join(&file.name);
            let contents = read_hashed(&path, file).map_err(|damage| self.damaged(&path, damage))?;
            let read = if let Some(entries) = parameters_by_file.get(file.name.as_str()) {
                shard::read(contents, entries, &mut checkpoint.parameters)
            } else if let Some(entries) = optimizer_by_file.get(file.name.as_str()) {
                shard::read(contents, entries, &mut checkpoint.optimizer)
            } else {
                debug_assert_eq!(file.name, INDEX, "a valid manifest lists no other file");
                check_index(&contents, parameters)
            };
            read.map_err(|damage| self.damaged(&path, damage))?;
        }
        Ok(checkpoint)
    }

    fn damaged(&self, file: &Path, damage: Damage) -> CheckpointError {
        damaged(&self.path, file, damage)
    }
}

/// Returns the error for a damaged `file` in the checkpoint folder `checkpoint`: [`CheckpointError::Removed`] if this
/// folder is gone, because pruning renames a checkpoint before it removes the files, or else
/// [`CheckpointError::Damaged`].
fn damaged(checkpoint: &Path, file: &Path, damage: Damage) -> CheckpointError {
    if fs::symlink_metadata(checkpoint).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
        return CheckpointError::Removed { path: checkpoint.to_path_buf() };
    }
    CheckpointError::Damaged { path: file.to_path_buf(), damage: damage.into(), older: folder::older(checkpoint) }
}

fn read_manifest(checkpoint: &Path) -> Result<Manifest, CheckpointError> {
    let path = checkpoint.join(MANIFEST);
    let text = (|| {
        let bytes = file::size(&path)?;
        if bytes > MOST_BYTES {
            return Err(Damage::TooLong { found: bytes, most: MOST_BYTES });
        }
        file::read(&path, bytes)
    })();
    let text = text.map_err(|damage| damaged(checkpoint, &path, damage))?;
    validate::parse(&text).map_err(|error| match error {
        ManifestError::Newer(found) => CheckpointError::Newer { path: path.clone(), found, known: VERSION },
        ManifestError::Damaged(damage) => damaged(checkpoint, &path, damage),
    })
}

fn read_hashed(path: &Path, file: &FileEntry) -> Result<Vec<u8>, Damage> {
    let contents = file::read(path, file.bytes)?;
    let found = seal::sha256(&contents);
    if found == file.sha256 { Ok(contents) } else { Err(Damage::Hash { found, expected: file.sha256.clone() }) }
}

fn check_index(text: &[u8], parameters: &BTreeMap<String, TensorEntry>) -> Result<(), Damage> {
    match index::matches(text, parameters) {
        Ok(true) => Ok(()),
        Ok(false) => Err(Damage::Index),
        Err(error) => Err(Damage::malformed(error)),
    }
}

/// Groups a manifest's tensor entries by file, so that each checkpoint file is read once. Maps a file's name to the
/// names and entries of its tensors.
fn by_file(entries: &BTreeMap<String, TensorEntry>) -> BTreeMap<&str, Vec<(&str, &TensorEntry)>> {
    let mut files = BTreeMap::<_, Vec<_>>::new();
    for (name, entry) in entries {
        files.entry(entry.file.as_str()).or_default().push((name.as_str(), entry));
    }
    files
}
