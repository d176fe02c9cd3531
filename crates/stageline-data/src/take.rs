//! Files in order of rank, up to the caps on files and bytes.

use std::fs;
use std::path::{Path, PathBuf};

use crate::change::Stamp;
use crate::error::CorpusError;
use crate::extent::Extent;
use crate::hash::draws;
use crate::options::CorpusOptions;
use crate::walk::relative_name;

/// A file that is in the corpus.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Taken {
    pub(crate) extent: Extent,
    /// The draw that decides its side; see [`crate::hash::Draws::share`].
    pub(crate) share: f64,
}

/// The non-empty ones of `files` in order of rank, until a cap is reached; the last may be cut to fit.
///
/// The rank is random, so whatever the caps leave is an unbiased sample of the files.
///
/// # Errors
/// [`CorpusError::Io`] for a file whose length cannot be read.
pub(crate) fn take(root: &Path, files: Vec<PathBuf>, options: &CorpusOptions) -> Result<Vec<Taken>, CorpusError> {
    let drawn = files.into_iter().map(|path| (draws(options.seed, &relative_name(root, &path)), path));
    let mut drawn: Vec<_> = drawn.collect();
    // By path where ranks are equal, because the order of a directory listing is not defined.
    drawn.sort_unstable_by(|(a, a_path), (b, b_path)| (a.rank, a_path).cmp(&(b.rank, b_path)));

    let mut room = options.max_bytes;
    let mut taken = Vec::new();
    for (draws, path) in drawn {
        if room == 0 || taken.len() == options.max_files {
            break;
        }
        let stamp = Stamp::of(&fs::metadata(&path).map_err(CorpusError::io(&path))?);
        let length = stamp.length.min(room);
        if length > 0 {
            room -= length;
            taken.push(Taken { extent: Extent { path, bytes: 0..length, stamp }, share: draws.share });
        }
    }
    Ok(taken)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Files of 10 bytes each, and one empty file.
    fn folder(files: usize) -> (tempfile::TempDir, Vec<PathBuf>) {
        let root = tempfile::tempdir().unwrap();
        let mut paths = vec![root.path().join("empty")];
        fs::write(&paths[0], "").unwrap();
        for i in 0..files {
            let path = root.path().join(format!("{i}.txt"));
            fs::write(&path, "0123456789").unwrap();
            paths.push(path);
        }
        (root, paths)
    }

    fn lengths(taken: &[Taken]) -> Vec<u64> {
        taken.iter().map(|taken| taken.extent.bytes.end).collect()
    }

    #[test]
    fn takes_all_but_the_empty_in_an_order_that_the_listing_does_not_change() {
        let (root, mut paths) = folder(20);
        let options = CorpusOptions::default();
        let taken = take(root.path(), paths.clone(), &options).unwrap();
        let names: BTreeSet<_> = taken.iter().map(|taken| taken.extent.path.clone()).collect();
        assert_eq!(names, paths[1..].iter().cloned().collect());
        paths.reverse();
        assert_eq!(taken, take(root.path(), paths, &options).unwrap());
    }

    #[test]
    fn a_cap_takes_the_first_of_the_same_order() {
        let (root, paths) = folder(20);
        let all = take(root.path(), paths.clone(), &CorpusOptions::default()).unwrap();
        let few = CorpusOptions { max_files: 7, ..CorpusOptions::default() };
        assert_eq!(take(root.path(), paths, &few).unwrap(), all[..7]);
    }

    #[test]
    fn the_cap_on_bytes_is_met_exactly() {
        let (root, paths) = folder(20);
        let capped = |max_bytes| {
            let options = CorpusOptions { max_bytes, ..CorpusOptions::default() };
            lengths(&take(root.path(), paths.clone(), &options).unwrap())
        };
        assert_eq!(capped(25), [10, 10, 5]);
        assert_eq!(capped(20), [10, 10]);
        assert_eq!(capped(3), [3]);
    }

    #[test]
    fn seeds_choose_different_files() {
        let (root, paths) = folder(20);
        let chosen = |seed| {
            let options = CorpusOptions { max_files: 5, seed, ..CorpusOptions::default() };
            take(root.path(), paths.clone(), &options).unwrap()
        };
        assert_ne!(chosen(1), chosen(2));
    }

    #[test]
    fn a_file_that_is_gone_is_an_error_with_its_path() {
        let (root, mut paths) = folder(1);
        let gone = root.path().join("gone");
        paths.push(gone.clone());
        let error = take(root.path(), paths, &CorpusOptions::default()).unwrap_err();
        assert!(matches!(error, CorpusError::Io { path, .. } if path == gone));
    }
}
