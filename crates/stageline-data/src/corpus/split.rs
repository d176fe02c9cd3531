//! Splits the sampled files of a corpus, or the bytes of a single file, into training and validation.

use std::ops::Range;

use crate::corpus::sample_files::SampledFile;
use crate::file_range::FileRange;

/// A corpus's file ranges (whole files, or parts of files), split into training and validation.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Split {
    pub(crate) train: Vec<FileRange>,
    pub(crate) validation: Vec<FileRange>,
}

/// Splits the sampled files of a corpus into training and validation. `fraction`, in `[0, 1)`, is the part to hold out
/// for validation: of the files, or of the bytes if there is only one file.
pub(crate) fn split(mut files: Vec<SampledFile>, fraction: f64) -> Split {
    match files.len() {
        0 => Split::default(),
        1 => split_bytes(files.remove(0).range, fraction),
        _ => split_files(files, fraction),
    }
}

/// Splits a corpus that is a single file: holds out the last `fraction` of the bytes in `whole` for validation, and
/// keeps the rest for training. Neither side is empty if the file has two or more bytes and `fraction` is above 0.
fn split_bytes(whole: FileRange, fraction: f64) -> Split {
    let bytes = whole.bytes.clone();
    let most = whole.len() - 1; // does not underflow: a file range is never empty
    let least = u64::from(fraction > 0.0).min(most);
    let border = bytes.end - ((whole.len() as f64 * fraction) as u64).clamp(least, most);
    let side = |bytes: Range<u64>| {
        let range = (!bytes.is_empty()).then(|| FileRange { bytes, ..whole.clone() });
        range.into_iter().collect()
    };
    Split { train: side(bytes.start..border), validation: side(border..bytes.end) }
}

/// Splits two or more files: a file is held out for validation if its random number `share` is below `fraction`. If no
/// file is left for training, the file whose `share` is nearest to `fraction` is moved to training. If no file is held
/// out although `fraction` is above 0, the nearest file is moved to validation.
fn split_files(files: Vec<SampledFile>, fraction: f64) -> Split {
    let (mut validation, mut train): (Vec<_>, Vec<_>) = files.into_iter().partition(|file| file.share < fraction);
    // With few files, training or validation may get no file by chance. The file whose `share` is nearest to `fraction`
    // is then moved there.
    if train.is_empty() {
        train.extend(remove_nearest(&mut validation, fraction));
    } else if validation.is_empty() && fraction > 0.0 {
        validation.extend(remove_nearest(&mut train, fraction));
    }
    let ranges = |side: Vec<SampledFile>| side.into_iter().map(|file| file.range).collect();
    Split { train: ranges(train), validation: ranges(validation) }
}

/// Removes the file whose random number `share` is nearest to `fraction` from `side` (the training or validation
/// files), so that the caller can move it to the other side, which is empty. Returns `None` if `side` is empty.
fn remove_nearest(side: &mut Vec<SampledFile>, fraction: f64) -> Option<SampledFile> {
    let distance = |i: &usize| (side[*i].share - fraction).abs();
    let nearest = (0..side.len()).min_by(|a, b| distance(a).total_cmp(&distance(b)))?;
    Some(side.remove(nearest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file_change::Stamp;

    fn file(name: &str, length: u64, share: f64) -> SampledFile {
        SampledFile { range: FileRange { path: name.into(), bytes: 0..length, stamp: Stamp::default() }, share }
    }

    /// Splits test files, and returns the names of those for training and of those for validation. The files have the
    /// names `0`, `1` and so on, and the random numbers in `shares`.
    fn names(shares: &[f64], fraction: f64) -> (Vec<String>, Vec<String>) {
        let files = shares.iter().enumerate().map(|(i, &share)| file(&i.to_string(), 9, share));
        let sides = split(files.collect(), fraction);
        let names = |side: Vec<FileRange>| side.iter().map(|range| range.path.display().to_string()).collect();
        (names(sides.train), names(sides.validation))
    }

    fn owned(train: &[&str], validation: &[&str]) -> (Vec<String>, Vec<String>) {
        let owned = |names: &[&str]| names.iter().map(ToString::to_string).collect();
        (owned(train), owned(validation))
    }

    #[test]
    fn files_are_split_by_their_share_and_keep_their_order() {
        assert_eq!(names(&[0.5, 0.1, 0.3, 0.0], 0.3), owned(&["0", "2"], &["1", "3"]));
    }

    #[test]
    fn an_empty_side_gets_the_file_nearest_to_the_border() {
        assert_eq!(names(&[0.9, 0.4, 0.6], 0.1), owned(&["0", "2"], &["1"]));
        assert_eq!(names(&[0.1, 0.8, 0.7], 0.9), owned(&["1"], &["0", "2"]));
    }

    #[test]
    fn the_fraction_0_holds_nothing_out() {
        assert_eq!(names(&[0.0, 0.5], 0.0), owned(&["0", "1"], &[]));
        let sides = split(vec![file("one", 10, 0.5)], 0.0);
        assert_eq!((sides.train[0].bytes.clone(), sides.validation), (0..10, vec![]));
    }

    #[test]
    fn a_single_file_is_split_by_position() {
        let borders = |length, fraction| {
            let sides = split(vec![file("one", length, 0.0)], fraction);
            (sides.train[0].bytes.clone(), sides.validation[0].bytes.clone())
        };
        assert_eq!(borders(1_000, 0.25), (0..750, 750..1_000));
        assert_eq!(borders(2, 0.01), (0..1, 1..2));
        assert_eq!(borders(2, 0.99), (0..1, 1..2));
    }

    #[test]
    fn a_single_byte_is_for_training() {
        let sides = split(vec![file("one", 1, 0.0)], 0.9);
        assert_eq!((sides.train[0].bytes.clone(), sides.validation), (0..1, vec![]));
    }
}
