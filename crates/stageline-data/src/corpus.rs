//! A path becomes a text for training and one for validation.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use memmap2::{Mmap, MmapOptions};

use crate::error::CorpusError;
use crate::options::CorpusOptions;
use crate::split::split;
use crate::take::{Extent, take};
use crate::text::Text;
use crate::walk::walk;

/// A memory-mapped byte corpus, split into a text for training and one for validation.
#[derive(Debug)]
pub struct Corpus {
    train: Text,
    validation: Text,
}

impl Corpus {
    /// Opens a text file, or all files of a folder and the folders in it.
    ///
    /// **The files must not be truncated while the corpus is open**: reading a part of a memory map that its file no
    /// longer has ends the process with a signal, and bytes that are overwritten change under the reader.
    ///
    /// In a folder, symbolic links, hidden entries (such as `.git`), folders named `target` and empty files are
    /// skipped. Each file has two random draws, which depend on nothing but the seed and its path relative to the
    /// folder:
    ///
    /// - Files are taken in the order of the first draw, so that whatever the caps leave is an unbiased sample.
    /// - A file is held out if its second draw is below the validation fraction. Adding or removing other files never
    ///   moves it to the other side, with one exception: if two files or more leave a side empty, the file nearest to
    ///   the border moves over.
    ///
    /// Where only one file is read, the last bytes of it are held out instead. A text is in the order of the first
    /// draw.
    ///
    /// # Errors
    /// - [`CorpusError::OutOfRange`]: an option is outside its range.
    /// - [`CorpusError::PathNotFound`]: the path does not exist.
    /// - [`CorpusError::NothingToRead`]: there is no file of these extensions that has a byte in it.
    /// - [`CorpusError::Io`]: a file or folder is unreadable.
    /// - [`CorpusError::Map`]: the operating system refused a memory map, most likely because they are too many.
    pub fn open(path: &Path, options: &CorpusOptions) -> Result<Self, CorpusError> {
        options.check()?;
        let metadata = fs::metadata(path).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => CorpusError::PathNotFound { path: path.to_path_buf() },
            _ => CorpusError::io(path)(source),
        })?;
        let (files, extensions) = if metadata.is_dir() {
            (walk(path, options.extensions.as_deref())?, options.extensions.clone())
        } else {
            (vec![path.to_path_buf()], None)
        };
        let taken = take(path, files, options)?;
        if taken.is_empty() {
            return Err(CorpusError::NothingToRead { path: path.to_path_buf(), extensions });
        }
        let sides = split(taken, options.validation_fraction);
        Ok(Self { train: map_all(&sides.train)?, validation: map_all(&sides.validation)? })
    }

    /// What to train on; never empty.
    pub fn train(&self) -> &Text {
        &self.train
    }

    /// What is held out; empty only if the validation fraction is 0 or the corpus is a single byte.
    pub fn validation(&self) -> &Text {
        &self.validation
    }
}

/// The text of `extents`, in their order.
fn map_all(extents: &[Extent]) -> Result<Text, CorpusError> {
    let maps = extents.iter().enumerate().map(|(maps, extent)| map(extent, maps));
    Ok(Text::new(maps.collect::<Result<Vec<_>, _>>()?))
}

/// Maps one extent; `maps` were mapped before it.
fn map(extent: &Extent, maps: usize) -> Result<Mmap, CorpusError> {
    let Extent { path, bytes } = extent;
    let file = File::open(path).map_err(CorpusError::io(path))?;
    if file.metadata().map_err(CorpusError::io(path))?.len() < bytes.end {
        let shrunk = io::Error::new(io::ErrorKind::UnexpectedEof, "it was truncated while it was opened");
        return Err(CorpusError::io(path)(shrunk));
    }
    let failed = |source| CorpusError::Map { path: path.clone(), maps, source };
    let length = usize::try_from(bytes.end - bytes.start)
        .map_err(|_| failed(io::Error::other("it is larger than the address space")))?;
    // SAFETY: the map is only read, and ends within the file, as checked above. That nobody truncates or overwrites
    // the file while it is mapped cannot be checked; `Corpus::open` asks it of the caller.
    unsafe { MmapOptions::new().offset(bytes.start).len(length).map(&file) }.map_err(failed)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// A folder of `files` files, `0.txt` and so on, each with a line of its own.
    fn folder(files: usize) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for i in 0..files {
            fs::write(root.path().join(format!("{i}.txt")), format!("line {i}\n")).unwrap();
        }
        root
    }

    fn open(path: &Path, options: CorpusOptions) -> Corpus {
        Corpus::open(path, &options).unwrap()
    }

    fn contents(text: &Text) -> String {
        let mut bytes = vec![0; text.len() as usize];
        text.read(0, &mut bytes);
        String::from_utf8(bytes).unwrap()
    }

    fn lines(text: &Text) -> BTreeSet<String> {
        contents(text).lines().map(str::to_string).collect()
    }

    #[test]
    fn every_file_is_whole_and_on_one_side() {
        let root = folder(200);
        let corpus = open(root.path(), CorpusOptions::default());
        let (train, validation) = (lines(corpus.train()), lines(corpus.validation()));
        assert!(train.is_disjoint(&validation));
        let all: BTreeSet<String> = (0..200).map(|i| format!("line {i}")).collect();
        assert_eq!(train.union(&validation).cloned().collect::<BTreeSet<_>>(), all);
        assert_eq!(corpus.train().files(), train.len());
        assert_eq!(corpus.validation().files(), validation.len());
    }

    #[test]
    fn the_fraction_is_of_the_files() {
        let root = folder(1_000);
        for (fraction, expected, slack) in [(0.1, 100, 48), (0.5, 500, 80)] {
            let options = CorpusOptions { validation_fraction: fraction, ..CorpusOptions::default() };
            let held_out = open(root.path(), options).validation().files();
            // Five standard deviations.
            assert!(held_out.abs_diff(expected) < slack, "{held_out} and not about {expected}");
        }
    }

    #[test]
    fn other_files_and_the_place_of_the_folder_do_not_move_a_file() {
        let (root, elsewhere) = (folder(100), folder(100));
        let before = open(root.path(), CorpusOptions::default());
        let moved = open(elsewhere.path(), CorpusOptions::default());
        assert_eq!(contents(before.train()), contents(moved.train()));
        assert_eq!(contents(before.validation()), contents(moved.validation()));

        fs::create_dir(root.path().join("more")).unwrap();
        for i in 0..50 {
            fs::write(root.path().join(format!("more/{i}.txt")), format!("more {i}\n")).unwrap();
        }
        fs::remove_file(root.path().join("7.txt")).unwrap();
        let after = open(root.path(), CorpusOptions::default());
        assert!(lines(after.train()).contains("more 1") || lines(after.validation()).contains("more 1"));
        let old = |text: &Text| {
            let mut lines = lines(text);
            lines.retain(|line| line.starts_with("line") && line != "line 7");
            lines
        };
        assert_eq!(old(before.train()), old(after.train()));
        assert_eq!(old(before.validation()), old(after.validation()));
    }

    #[test]
    fn seeds_hold_out_different_files() {
        let root = folder(100);
        let held_out = |seed| lines(open(root.path(), CorpusOptions { seed, ..Default::default() }).validation());
        assert_eq!(held_out(1), held_out(1));
        assert_ne!(held_out(1), held_out(2));
    }

    #[test]
    fn two_files_leave_no_side_empty() {
        let root = folder(2);
        for (seed, fraction) in (0..20).flat_map(|seed| [(seed, 0.01), (seed, 0.99)]) {
            let options = CorpusOptions { seed, validation_fraction: fraction, ..Default::default() };
            let corpus = open(root.path(), options);
            assert_eq!((corpus.train().files(), corpus.validation().files()), (1, 1));
        }
    }

    #[test]
    fn a_single_file_holds_out_its_end() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("one.txt");
        // Longer than a page, with a border that is not at one.
        let whole: String = (0..3_000).map(|i| format!("{i:04}\n")).collect();
        fs::write(&file, &whole).unwrap();
        for path in [file.as_path(), root.path()] {
            let corpus = open(path, CorpusOptions::default());
            assert_eq!(contents(corpus.train()), whole[..13_500]);
            assert_eq!(contents(corpus.validation()), whole[13_500..]);
        }
    }

    #[test]
    fn a_single_file_is_capped_before_it_is_split_and_read_whatever_its_extension() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("one.txt");
        fs::write(&file, "0123456789abcdef").unwrap();
        let extensions = Some(vec!["rs".to_string()]);
        let options = CorpusOptions { max_bytes: 10, validation_fraction: 0.2, extensions, ..Default::default() };
        let corpus = open(&file, options);
        assert_eq!((contents(corpus.train()), contents(corpus.validation())), ("01234567".into(), "89".into()));
    }

    #[test]
    fn the_caps_count_both_sides() {
        let root = folder(100); // 7 or 8 bytes each
        let totals = |options| {
            let corpus = open(root.path(), options);
            let (train, validation) = (corpus.train(), corpus.validation());
            (train.files() + validation.files(), train.len() + validation.len())
        };
        assert_eq!(totals(CorpusOptions { max_files: 30, ..Default::default() }).0, 30);
        assert_eq!(totals(CorpusOptions { max_bytes: 101, ..Default::default() }).1, 101);
    }

    #[test]
    fn nothing_is_held_out_at_the_fraction_0() {
        let root = folder(50);
        let corpus = open(root.path(), CorpusOptions { validation_fraction: 0.0, ..Default::default() });
        assert_eq!((corpus.train().files(), corpus.validation().len()), (50, 0));
    }

    #[test]
    fn a_path_that_does_not_exist_is_named() {
        let root = folder(0);
        let gone = root.path().join("gone");
        let error = Corpus::open(&gone, &CorpusOptions::default()).unwrap_err();
        assert!(matches!(&error, CorpusError::PathNotFound { path } if *path == gone));
        assert!(error.to_string().contains(&*gone.to_string_lossy()), "{error}");
    }

    #[test]
    fn nothing_to_read_is_an_error() {
        let root = folder(3);
        let options = CorpusOptions { extensions: Some(vec!["rs".into()]), ..Default::default() };
        let error = Corpus::open(root.path(), &options).unwrap_err();
        assert!(error.to_string().contains("extension rs"), "{error}");

        let empty = root.path().join("empty");
        fs::write(&empty, "").unwrap();
        let error = Corpus::open(&empty, &options).unwrap_err();
        assert!(matches!(error, CorpusError::NothingToRead { path, extensions: None } if path == empty));
    }

    #[test]
    fn options_out_of_range_are_refused_by_name() {
        let refused = |options| match Corpus::open(Path::new("."), &options).unwrap_err() {
            CorpusError::OutOfRange { name, value, .. } => (name, value),
            other => panic!("{other}"),
        };
        let default = CorpusOptions::default;
        assert_eq!(refused(CorpusOptions { max_bytes: 0, ..default() }), ("max_bytes", "0".into()));
        assert_eq!(refused(CorpusOptions { max_files: 0, ..default() }), ("max_files", "0".into()));
        for fraction in [-0.1, 1.0, f64::NAN] {
            let options = CorpusOptions { validation_fraction: fraction, ..default() };
            assert_eq!(refused(options), ("validation_fraction", fraction.to_string()));
        }
    }

    #[test]
    fn a_file_that_shrank_since_it_was_taken_is_an_error() {
        let root = folder(1);
        let path = root.path().join("0.txt");
        let extent = Extent { path: path.clone(), bytes: 0..8 }; // the file has 7
        let error = map(&extent, 0).unwrap_err();
        assert!(matches!(error, CorpusError::Io { path: named, .. } if named == path));
    }
}
