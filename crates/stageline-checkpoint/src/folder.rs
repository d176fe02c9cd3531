//! The names of checkpoints in their folder.

use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::disk;

/// What makes the order of checkpoints: the number of its publication, and the steps done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Name {
    pub(crate) sequence: u64,
    pub(crate) steps: u64,
}

impl Name {
    /// The name of the folder `path`, if it is one of a checkpoint.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let text = path.file_name()?.to_str()?;
        let (sequence, steps) = text.split_once("-step-")?;
        let name = Self { sequence: sequence.parse().ok()?, steps: steps.parse().ok()? };
        // There is one way to write each: `+1` or `01` are someone else's.
        (name.text() == text).then_some(name)
    }

    pub(crate) fn text(self) -> String {
        format!("{:06}-step-{}", self.sequence, self.steps)
    }
}

/// A checkpoint's name in a folder, and whether it is a folder itself, not a link or a file.
pub(crate) struct Found {
    pub(crate) name: Name,
    pub(crate) path: PathBuf,
    pub(crate) is_folder: bool,
}

/// All that has the name of a checkpoint in `dir`, oldest first.
pub(crate) fn list(dir: &Path) -> io::Result<Vec<Found>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if let Some(name) = Name::of(&entry.path()) {
            found.push(Found { name, path: entry.path(), is_folder: entry.file_type()?.is_dir() });
        }
    }
    found.sort_by_key(|found| found.name);
    Ok(found)
}

/// The checkpoints in `dir`, oldest first.
pub(crate) fn checkpoints(dir: &Path) -> io::Result<Vec<PathBuf>> {
    Ok(list(dir)?.into_iter().filter(|found| found.is_folder).map(|found| found.path).collect())
}

/// The next older checkpoint beside `path`.
pub(crate) fn older(path: &Path) -> Option<PathBuf> {
    let name = Name::of(path)?;
    let found = list(disk::or_here(path.parent()?)).ok()?;
    found.into_iter().rfind(|found| found.is_folder && found.name < name).map(|found| found.path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for (sequence, steps, text) in [(7, 100, "000007-step-100"), (12_345_678, 0, "12345678-step-0")] {
            let name = Name { sequence, steps };
            assert_eq!(name.text(), text);
            assert_eq!(Name::of(&Path::new("some/folder").join(text)), Some(name));
        }
    }

    #[test]
    fn other_names_are_someone_elses() {
        let others =
            ["7-step-1", "0000007-step-1", "000007-step-01", "+00007-step-1", "000007-step-", "000007", "best"];
        for other in
            others.into_iter().chain(["000007-step-1.bak", ".removing-000007-step-1", "99999999999999999999-step-1"])
        {
            assert_eq!(Name::of(Path::new(other)), None, "{other}");
        }
    }

    #[test]
    fn the_order_is_that_of_numbers() {
        let of = |sequence, steps| Name { sequence, steps };
        assert!(of(999_999, 9) < of(1_000_000, 1) && of(1, 9) < of(1, 10));
    }

    #[test]
    fn the_next_older_one_is_a_folder_and_the_nearest() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["000001-step-9", "000002-step-5", "000004-step-1", "000005-step-2"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        fs::write(dir.path().join("000003-step-7"), "a file").unwrap();
        let of = |name: &str| older(&dir.path().join(name));
        assert_eq!(of("000004-step-1"), Some(dir.path().join("000002-step-5")));
        assert_eq!(of("000001-step-9"), None);
        assert_eq!(of("best"), None);
    }
}
