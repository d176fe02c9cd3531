//! A checkpoint on disk.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::checkpoint::Checkpoint;
use crate::damage::Damage;
use crate::error::CheckpointError;
use crate::folder::{self, Name};
use crate::manifest::{FileEntry, MOST_BYTES, Manifest, Refused, TensorEntry, VERSION};
use crate::names::{INDEX, LOCK, MANIFEST, OPTIMIZER};
use crate::{check, disk, hash, index, shard};

/// A checkpoint on disk whose manifest is sound and whose files have the right sizes.
#[derive(Clone, Debug)]
pub struct Saved {
    path: PathBuf,
    manifest: Manifest,
}

impl Saved {
    /// Looks at a checkpoint without reading its tensors. `path` is a checkpoint, or a folder of checkpoints, of which
    /// the latest is taken; if it is empty, it is the current folder.
    ///
    /// # Errors
    /// If there is none at `path`, if it was written by a newer version, or if it is damaged: then with the file and
    /// the next older checkpoint. It is never passed over silently.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        let path = checkpoint_at(disk::or_here(path))?;
        let manifest = read_manifest(&path)?;
        let saved = Self { path, manifest };
        if !saved.manifest.optimizer.is_empty() {
            let folder = saved.path.join(OPTIMIZER);
            disk::folder(&folder).map_err(|damage| saved.damaged(&folder, damage))?;
        }
        for FileEntry { name, bytes, .. } in &saved.manifest.files {
            let file = saved.path.join(name);
            match disk::size(&file) {
                Ok(found) if found == *bytes => {}
                Ok(found) => return Err(saved.damaged(&file, Damage::Size { found, expected: *bytes })),
                Err(damage) => return Err(saved.damaged(&file, damage)),
            }
        }
        Ok(saved)
    }

    /// The folder of the checkpoint.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The folder of checkpoints that it is in; none if it has no longer the name that a store gave it.
    pub fn store(&self) -> Option<&Path> {
        Name::of(&self.path)?;
        self.path.parent()
    }

    /// What the checkpoint says of itself.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Reads everything: hashes, names, types, shapes, and that all values are finite. All or nothing.
    ///
    /// The tensors of a file share one allocation, which lives as long as any of them.
    ///
    /// # Errors
    /// [`CheckpointError::Damaged`], with the file and the next older checkpoint.
    pub fn read(&self) -> Result<Checkpoint, CheckpointError> {
        let Manifest { progress, run, parameters, optimizer, .. } = &self.manifest;
        let mut checkpoint = Checkpoint {
            progress: *progress,
            run: run.clone(),
            parameters: BTreeMap::new(),
            optimizer: BTreeMap::new(),
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
                debug_assert_eq!(file.name, INDEX, "a sound manifest lists no other file");
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

fn damaged(checkpoint: &Path, file: &Path, damage: Damage) -> CheckpointError {
    CheckpointError::Damaged { path: file.to_path_buf(), damage: damage.into(), older: folder::older(checkpoint) }
}

/// The checkpoint that `path` is, or the latest in it.
fn checkpoint_at(path: &Path) -> Result<PathBuf, CheckpointError> {
    let owned = || path.to_path_buf();
    let look = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => CheckpointError::PathNotFound { path: owned() },
        _ => match disk::in_the_way(path) {
            Some((part, _)) => CheckpointError::NotAFolder { path: part },
            None => CheckpointError::Look { path: owned(), source },
        },
    };
    if !fs::metadata(path).map_err(look)?.is_dir() {
        return Err(CheckpointError::NotAFolder { path: owned() });
    }
    let exists = |name: &str| fs::symlink_metadata(path.join(name)).is_ok();
    if Name::of(path).is_some() || exists(MANIFEST) {
        return Ok(owned());
    }
    if let Some(latest) = folder::checkpoints(path).map_err(look)?.pop() {
        return Ok(latest);
    }
    if exists(LOCK) || fs::read_dir(path).map_err(look)?.next().is_none() {
        return Err(CheckpointError::NoCheckpoint { path: owned() });
    }
    Err(CheckpointError::Neither { path: owned() })
}

fn read_manifest(checkpoint: &Path) -> Result<Manifest, CheckpointError> {
    let path = checkpoint.join(MANIFEST);
    let text = (|| {
        let bytes = disk::size(&path)?;
        if bytes > MOST_BYTES {
            return Err(Damage::TooLong { found: bytes, most: MOST_BYTES });
        }
        disk::read(&path, bytes)
    })();
    let text = text.map_err(|damage| damaged(checkpoint, &path, damage))?;
    check::sound(&text).map_err(|refused| match refused {
        Refused::Newer(found) => CheckpointError::Newer { path: path.clone(), found, known: VERSION },
        Refused::Damaged(damage) => damaged(checkpoint, &path, damage),
    })
}

fn read_hashed(path: &Path, file: &FileEntry) -> Result<Vec<u8>, Damage> {
    let contents = disk::read(path, file.bytes)?;
    let found = hash::of(&contents);
    if found == file.sha256 { Ok(contents) } else { Err(Damage::Hash { found, expected: file.sha256.clone() }) }
}

fn check_index(text: &[u8], parameters: &BTreeMap<String, TensorEntry>) -> Result<(), Damage> {
    match index::is_of(text, parameters) {
        Ok(true) => Ok(()),
        Ok(false) => Err(Damage::Index),
        Err(error) => Err(Damage::form(error)),
    }
}

/// The entries of each file.
fn by_file(entries: &BTreeMap<String, TensorEntry>) -> BTreeMap<&str, Vec<(&str, &TensorEntry)>> {
    let mut files = BTreeMap::<_, Vec<_>>::new();
    for (name, entry) in entries {
        files.entry(entry.file.as_str()).or_default().push((name.as_str(), entry));
    }
    files
}
