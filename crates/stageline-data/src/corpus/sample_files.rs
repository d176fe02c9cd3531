//! Samples the files of a corpus in random order, up to the limits on files and bytes.

use std::fs;
use std::path::{Path, PathBuf};

use crate::corpus::draws::draws;
use crate::corpus::options::CorpusOptions;
use crate::error::CorpusError;
use crate::file_change::Stamp;
use crate::file_range::FileRange;
use crate::walk::relative_name;

/// A file that was sampled for the corpus: the byte range that the corpus uses, and the random number that assigns the
/// file to training or validation.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SampledFile {
    pub(crate) range: FileRange,
    /// Uniform random number in `[0, 1)` ([`Draws::share`](crate::corpus::draws::Draws::share)): the sampled file is
    /// held out for validation if it is below the validation fraction.
    pub(crate) share: f64,
}

/// Samples non-empty files from `files` in random order (ascending `Draws::rank`), until the options' `max_files` or
/// `max_bytes` is reached. The last file may be truncated to fit `max_bytes`. The random numbers depend on the files'
/// paths relative to the corpus folder `root`.
///
/// The order is random, so the result is an unbiased sample of all files.
///
/// # Errors
/// Returns [`CorpusError::Io`] if the length of a file cannot be read.
pub(crate) fn sample_files(
    root: &Path,
    files: Vec<PathBuf>,
    options: &CorpusOptions,
) -> Result<Vec<SampledFile>, CorpusError> {
    let drawn = files.into_iter().map(|path| (draws(options.seed, &relative_name(root, &path)), path));
    let mut drawn: Vec<_> = drawn.collect();
    // Equal ranks are ordered by path, because the order of a directory listing is undefined.
    drawn.sort_unstable_by(|(a, a_path), (b, b_path)| (a.rank, a_path).cmp(&(b.rank, b_path)));

    let mut room = options.max_bytes;
    let mut sampled = Vec::new();
    for (draws, path) in drawn {
        if room == 0 || sampled.len() == options.max_files {
            break;
        }
        let stamp = Stamp::new(&fs::metadata(&path).map_err(CorpusError::io(&path))?);
        let length = stamp.length.min(room);
        if length > 0 {
            room -= length;
            sampled.push(SampledFile { range: FileRange { path, bytes: 0..length, stamp }, share: draws.share });
        }
    }
    Ok(sampled)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Creates a temporary folder with `files` files of 10 bytes each and one empty file. Returns the folder and the
    /// paths of all files in it.
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

    fn lengths(sampled: &[SampledFile]) -> Vec<u64> {
        sampled.iter().map(|file| file.range.bytes.end).collect()
    }

    #[test]
    fn all_but_empty_files_are_sampled_in_an_order_that_the_listing_does_not_change() {
        let (root, mut paths) = folder(20);
        let options = CorpusOptions::default();
        let sampled = sample_files(root.path(), paths.clone(), &options).unwrap();
        let names: BTreeSet<_> = sampled.iter().map(|file| file.range.path.clone()).collect();
        assert_eq!(names, paths[1..].iter().cloned().collect());
        paths.reverse();
        assert_eq!(sampled, sample_files(root.path(), paths, &options).unwrap());
    }

    #[test]
    fn a_limit_on_files_samples_the_first_of_the_same_order() {
        let (root, paths) = folder(20);
        let all = sample_files(root.path(), paths.clone(), &CorpusOptions::default()).unwrap();
        let few = CorpusOptions { max_files: 7, ..CorpusOptions::default() };
        assert_eq!(sample_files(root.path(), paths, &few).unwrap(), all[..7]);
    }

    #[test]
    fn the_limit_on_bytes_is_met_exactly() {
        let (root, paths) = folder(20);
        let capped = |max_bytes| {
            let options = CorpusOptions { max_bytes, ..CorpusOptions::default() };
            lengths(&sample_files(root.path(), paths.clone(), &options).unwrap())
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
            sample_files(root.path(), paths.clone(), &options).unwrap()
        };
        assert_ne!(chosen(1), chosen(2));
    }

    #[test]
    fn a_file_that_is_gone_is_an_error_with_its_path() {
        let (root, mut paths) = folder(1);
        let gone = root.path().join("gone");
        paths.push(gone.clone());
        let error = sample_files(root.path(), paths, &CorpusOptions::default()).unwrap_err();
        assert!(matches!(error, CorpusError::Io { path, .. } if path == gone));
    }
}
