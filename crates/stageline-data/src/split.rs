//! Files by their share, or the bytes of a single file, become training and validation.

use std::ops::Range;

use crate::extent::Extent;
use crate::take::Taken;

/// What is read on each side.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Sides {
    pub(crate) train: Vec<Extent>,
    pub(crate) validation: Vec<Extent>,
}

/// Holds out `fraction`, in `[0, 1)`: of the bytes of a single file, or else of the files.
pub(crate) fn split(mut taken: Vec<Taken>, fraction: f64) -> Sides {
    match taken.len() {
        0 => Sides::default(),
        1 => split_bytes(taken.remove(0).extent, fraction),
        _ => split_files(taken, fraction),
    }
}

/// Holds out the end of a file; of its bytes, at least one stays on each side where there are two.
fn split_bytes(whole: Extent, fraction: f64) -> Sides {
    let bytes = whole.bytes.clone();
    let most = whole.len() - 1; // an extent is never empty
    let least = u64::from(fraction > 0.0).min(most);
    let border = bytes.end - ((whole.len() as f64 * fraction) as u64).clamp(least, most);
    let side = |bytes: Range<u64>| {
        let extent = (!bytes.is_empty()).then(|| Extent { bytes, ..whole.clone() });
        extent.into_iter().collect()
    };
    Sides { train: side(bytes.start..border), validation: side(border..bytes.end) }
}

/// Holds out the files whose share is below `fraction`, which no other file can change, unless a side is left empty.
fn split_files(taken: Vec<Taken>, fraction: f64) -> Sides {
    let (mut validation, mut train): (Vec<_>, Vec<_>) = taken.into_iter().partition(|taken| taken.share < fraction);
    // With few files chance can leave a side empty: the file nearest to the border then moves over.
    if train.is_empty() {
        train.extend(remove_nearest(&mut validation, fraction));
    } else if validation.is_empty() && fraction > 0.0 {
        validation.extend(remove_nearest(&mut train, fraction));
    }
    let extents = |side: Vec<Taken>| side.into_iter().map(|taken| taken.extent).collect();
    Sides { train: extents(train), validation: extents(validation) }
}

/// Takes out the file whose share is nearest to `fraction`.
fn remove_nearest(side: &mut Vec<Taken>, fraction: f64) -> Option<Taken> {
    let distance = |i: &usize| (side[*i].share - fraction).abs();
    let nearest = (0..side.len()).min_by(|a, b| distance(a).total_cmp(&distance(b)))?;
    Some(side.remove(nearest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::Stamp;

    fn taken(name: &str, length: u64, share: f64) -> Taken {
        Taken { extent: Extent { path: name.into(), bytes: 0..length, stamp: Stamp::default() }, share }
    }

    /// The names on each side, for files with the given shares, named `0`, `1`, and so on.
    fn names(shares: &[f64], fraction: f64) -> (Vec<String>, Vec<String>) {
        let files = shares.iter().enumerate().map(|(i, &share)| taken(&i.to_string(), 9, share));
        let sides = split(files.collect(), fraction);
        let names = |side: Vec<Extent>| side.iter().map(|extent| extent.path.display().to_string()).collect();
        (names(sides.train), names(sides.validation))
    }

    fn owned(train: &[&str], validation: &[&str]) -> (Vec<String>, Vec<String>) {
        let owned = |names: &[&str]| names.iter().map(ToString::to_string).collect();
        (owned(train), owned(validation))
    }

    #[test]
    fn files_go_by_their_share_and_keep_their_order() {
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
        let sides = split(vec![taken("one", 10, 0.5)], 0.0);
        assert_eq!((sides.train[0].bytes.clone(), sides.validation), (0..10, vec![]));
    }

    #[test]
    fn a_single_file_is_split_by_position() {
        let borders = |length, fraction| {
            let sides = split(vec![taken("one", length, 0.0)], fraction);
            (sides.train[0].bytes.clone(), sides.validation[0].bytes.clone())
        };
        assert_eq!(borders(1_000, 0.25), (0..750, 750..1_000));
        assert_eq!(borders(2, 0.01), (0..1, 1..2));
        assert_eq!(borders(2, 0.99), (0..1, 1..2));
    }

    #[test]
    fn a_single_byte_is_for_training() {
        let sides = split(vec![taken("one", 1, 0.0)], 0.9);
        assert_eq!((sides.train[0].bytes.clone(), sides.validation), (0..1, vec![]));
    }
}
