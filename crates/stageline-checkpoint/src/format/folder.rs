//! The names of checkpoints, such as `000007-step-100`, and the list of checkpoints that a folder contains.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::disk;
use crate::format::names::{REMOVING, WRITING};

/// The name of a checkpoint folder, such as `000007-step-100`. Names are ordered by sequence number, the order in which
/// the checkpoints were saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CheckpointName {
    /// The sequence number of the checkpoint in its folder of checkpoints; the first checkpoint has 1.
    pub(crate) sequence: u64,
    pub(crate) steps: u64,
}

impl CheckpointName {
    /// Parses the last component of `path` as a checkpoint name; `None` if it is not such a name.
    pub(crate) fn parse(path: &Path) -> Option<Self> {
        let text = path.file_name()?.to_str()?;
        let (sequence, steps) = text.split_once("-step-")?;
        let name = Self { sequence: sequence.parse().ok()?, steps: steps.parse().ok()? };
        // Only one spelling of a name is accepted: a folder with `+1` or `01` was not written by a store.
        (name.to_text() == text).then_some(name)
    }

    pub(crate) fn to_text(self) -> String {
        format!("{:06}-step-{}", self.sequence, self.steps)
    }
}

/// Whether `name` is the name of a temporary folder where a store writes a checkpoint, such as `.writing-4711-000008`.
pub(crate) fn is_being_written(name: &OsStr) -> bool {
    let numbers = name.to_str().and_then(|name| name.strip_prefix(WRITING)?.split_once('-'));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    numbers.is_some_and(|(process, sequence)| is_number(process) && is_number(sequence))
}

/// Whether `name` is the name of an old checkpoint that a store removes, such as `.removing-000005-step-50`.
pub(crate) fn is_being_removed(name: &OsStr) -> bool {
    let checkpoint = name.to_str().and_then(|name| name.strip_prefix(REMOVING));
    checkpoint.is_some_and(|name| CheckpointName::parse(Path::new(name)).is_some())
}

/// A file system entry with a checkpoint name, such as `000007-step-100`; usually a checkpoint folder.
pub(crate) struct Found {
    pub(crate) name: CheckpointName,
    pub(crate) path: PathBuf,
    /// Whether the entry with a checkpoint name is a folder, and so a checkpoint. False for a file and for any link,
    /// even a link to a folder.
    pub(crate) is_folder: bool,
}

/// Lists all entries (files, folders and links) with a checkpoint name, such as `000007-step-100`, in the folder `dir`,
/// oldest first.
pub(crate) fn list(dir: &Path) -> io::Result<Vec<Found>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if let Some(name) = CheckpointName::parse(&entry.path()) {
            found.push(Found { name, path: entry.path(), is_folder: entry.file_type()?.is_dir() });
        }
    }
    found.sort_by_key(|found| found.name);
    Ok(found)
}

/// Returns the paths of the checkpoint folders in the folder `dir`, oldest first: the subfolders that have a checkpoint
/// name.
pub(crate) fn checkpoints(dir: &Path) -> io::Result<Vec<PathBuf>> {
    Ok(list(dir)?.into_iter().filter(|found| found.is_folder).map(|found| found.path).collect())
}

/// Returns the name of the checkpoint at `path`, and a path that ends with this name, even if `path` leads to the
/// checkpoint through a link or is `.`. Returns `None` if the checkpoint's folder does not have such a name.
pub(crate) fn named(path: &Path) -> Option<(CheckpointName, PathBuf)> {
    let of = |path: PathBuf| Some((CheckpointName::parse(&path)?, path));
    of(path.to_owned()).or_else(|| of(path.canonicalize().ok()?))
}

/// Returns the path of the next older checkpoint than the one at `path`, in the same folder, to suggest it after
/// damage. `path` may lead to the checkpoint through a link, or be `.`. Returns `None` if no checkpoint is older, if
/// the checkpoint's folder was renamed, or if the folder that contains it cannot be listed.
pub(crate) fn older(path: &Path) -> Option<PathBuf> {
    let (name, path) = named(path)?;
    let found = list(disk::or_here(path.parent()?)).ok()?;
    found.into_iter().rfind(|found| found.is_folder && found.name < name).map(|found| found.path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for (sequence, steps, text) in [(7, 100, "000007-step-100"), (12_345_678, 0, "12345678-step-0")] {
            let name = CheckpointName { sequence, steps };
            assert_eq!(name.to_text(), text);
            assert_eq!(CheckpointName::parse(&Path::new("some/folder").join(text)), Some(name));
        }
    }

    #[test]
    #[cfg(unix)]
    fn the_older_checkpoint_is_found_through_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        let [older_one, newer] = ["000006-step-90", "000007-step-100"].map(|name| dir.join(name));
        [&older_one, &newer].into_iter().for_each(|folder| fs::create_dir(folder).unwrap());
        let link = dir.join("best");
        std::os::unix::fs::symlink(&newer, &link).unwrap();
        assert_eq!([newer.as_path(), link.as_path()].map(older), [Some(older_one.clone()), Some(older_one.clone())]);
        assert_eq!(older(&older_one), None);
    }

    #[test]
    fn other_names_are_not_parsed() {
        let others =
            ["7-step-1", "0000007-step-1", "000007-step-01", "+00007-step-1", "000007-step-", "000007", "best"];
        for other in
            others.into_iter().chain(["000007-step-1.bak", ".removing-000007-step-1", "99999999999999999999-step-1"])
        {
            assert_eq!(CheckpointName::parse(Path::new(other)), None, "{other}");
        }
    }

    #[test]
    fn names_are_ordered_by_number() {
        let name = |sequence, steps| CheckpointName { sequence, steps };
        assert!(name(999_999, 9) < name(1_000_000, 1) && name(1, 9) < name(1, 10));
    }

    #[test]
    fn the_next_older_checkpoint_is_the_nearest_folder() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["000001-step-9", "000002-step-5", "000004-step-1", "000005-step-2"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        fs::write(dir.path().join("000003-step-7"), "a file").unwrap();
        let older_than = |name: &str| older(&dir.path().join(name));
        assert_eq!(older_than("000004-step-1"), Some(dir.path().join("000002-step-5")));
        assert_eq!(older_than("000001-step-9"), None);
        assert_eq!(older_than("best"), None);
    }
}
