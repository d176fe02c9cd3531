//! Opens a file or folder as a [`Corpus`], which stays on disk and is split into a training text and a validation text.
//!
//! - Input: the path of a file or folder, and [`CorpusOptions`].
//! - Output: two [`Text`]s and a fingerprint.
//! - The same files, seed and options must give the same texts on every machine. So the code here must not depend on
//!   the order of a directory listing.
//!
//! The files that [`walk`](crate::walk) finds pass through the modules in this order:
//!
//! - `options`: [`CorpusOptions`], which select the files to read and the part to hold out.
//! - `draws`: two random numbers for each file: `rank` orders the files, and `share` decides between training and
//!   validation.
//! - `sample_files`: selects files in ascending order of `rank`, up to the limits on files and bytes.
//! - `split`: divides the files into training and validation by their `share`, or a single file by its bytes.
//! - `fingerprint`: hashes the selected file ranges and their bytes, so that a resumed run can check that its text is
//!   the same.

mod draws;
mod fingerprint;
mod options;
mod sample_files;
mod split;

use std::fs;
use std::io;
use std::path::Path;

use self::fingerprint::fingerprint;
pub use self::options::CorpusOptions;
use self::sample_files::sample_files;
use self::split::split;
use crate::error::CorpusError;
use crate::text::Text;
use crate::walk::walk;

/// A corpus of text files for a byte-level language model, split into a training text and a validation text. The bytes
/// are read from the files on request, so the files must not change.
#[derive(Debug)]
pub struct Corpus {
    train: Text,
    validation: Text,
    fingerprint: String,
}

impl Corpus {
    /// Opens a corpus at `path`: a text file, or all files of a folder and its subfolders. Reads the selected bytes
    /// once, to compute the [fingerprint](Self::fingerprint).
    ///
    /// # Selection
    /// In a folder, symbolic links to folders, hidden entries (such as `.git`), folders with a `CACHEDIR.TAG` (build
    /// outputs and caches) and empty files are skipped. For each file, two random numbers are drawn, which depend only
    /// on the seed and on the file's path relative to the folder:
    ///
    /// - The first number orders the files. They are selected in this order until the options' `max_files` or
    ///   `max_bytes` is reached, so the selected files are an unbiased sample. The training and validation texts keep
    ///   this order.
    /// - The second number, from 0 to below 1, splits training from validation: a file is held out if its number is
    ///   below the validation fraction. Adding or removing other files never moves a file between training and
    ///   validation, with one exception. If two or more files would all be held out, the file whose number is nearest
    ///   to the validation fraction is moved to training. Likewise, if the fraction is above 0 and no file would be
    ///   held out, the nearest file is moved to validation.
    ///
    /// If the corpus is a single file, its last bytes are held out instead.
    ///
    /// # Changes
    /// The files must not change while the corpus is open, so that a run continues with the text that it began with. If
    /// a file is deleted, or its length or modification time changes, the next read of that file returns
    /// [`CorpusError::Changed`]. Windows in other files can still be read. A change that keeps both the length and the
    /// modification time is not detected. Examples are a second write within the resolution of the file system's clock
    /// (some milliseconds), and a write after which the modification time was set back. Every read opens files by
    /// `path`, so a relative path ties the process to its working directory.
    ///
    /// # Errors
    /// - [`CorpusError::OutOfRange`] if an option is outside its range.
    /// - [`CorpusError::PathNotFound`] if the path does not exist.
    /// - [`CorpusError::NothingToRead`] if no file with one of the requested extensions contains a byte.
    /// - [`CorpusError::Io`] if a file or folder is unreadable.
    /// - [`CorpusError::Changed`] if a file changes while the corpus is being opened.
    pub fn open(path: &Path, options: &CorpusOptions) -> Result<Self, CorpusError> {
        options.validate()?;
        let metadata = fs::metadata(path).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => CorpusError::PathNotFound { path: path.to_path_buf() },
            _ => CorpusError::io(path)(source),
        })?;
        let (files, extensions) = if metadata.is_dir() {
            (walk(path, options.extensions.as_deref())?, options.extensions.clone())
        } else {
            (vec![path.to_path_buf()], None)
        };
        let sampled = sample_files(path, files, options)?;
        if sampled.is_empty() {
            return Err(CorpusError::NothingToRead { path: path.to_path_buf(), extensions });
        }
        let split = split(sampled, options.validation_fraction);
        // Reads each file, so an unreadable file is reported here, and not when a training step first needs it.
        let fingerprint = fingerprint(path, &split)?;
        Ok(Self { train: Text::new(split.train), validation: Text::new(split.validation), fingerprint })
    }

    /// Returns the corpus's training text, which is never empty.
    pub fn train(&self) -> &Text {
        &self.train
    }

    /// Returns the corpus's validation text, which is held out from training. It is empty only if the validation
    /// fraction is 0 or the corpus is a single byte.
    pub fn validation(&self) -> &Text {
        &self.validation
    }

    /// Returns the corpus's fingerprint, a SHA-256 hash as 64 hexadecimal digits. A resumed run compares it to check
    /// that it trains on the same text.
    ///
    /// The fingerprint covers the selected bytes of all training and validation files, in order, and the files' paths
    /// relative to the folder. It therefore changes when a file is added, removed, renamed or rewritten, and when the
    /// options select other files or another split.
    ///
    /// The fingerprint does not cover modification times and the folder's own path, which differ in a copy of the
    /// corpus. If the corpus is a single file, its name is not covered either.
    pub fn fingerprint(&self) -> String {
        self.fingerprint.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Creates a temporary folder for the tests to open as a corpus: `files` files, `0.txt` and so on, each with a
    /// different line of text.
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
        text.read(0, &mut bytes).unwrap();
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
    fn the_fraction_is_a_share_of_the_files() {
        let root = folder(1_000);
        for (fraction, expected, slack) in [(0.1, 100, 48), (0.5, 500, 80)] {
            let options = CorpusOptions { validation_fraction: fraction, ..CorpusOptions::default() };
            let held_out = open(root.path(), options).validation().files();
            // The slack is five standard deviations of the number of held-out files.
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
        assert_eq!(old(moved.train()), old(after.train()));
        assert_eq!(old(moved.validation()), old(after.validation()));
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
        // The file is longer than a memory page, and its split point is not at a page boundary.
        let whole: String = (0..3_000).map(|i| format!("{i:04}\n")).collect();
        fs::write(&file, &whole).unwrap();
        for path in [file.as_path(), root.path()] {
            let corpus = open(path, CorpusOptions::default());
            assert_eq!(contents(corpus.train()), whole[..13_500]);
            assert_eq!(contents(corpus.validation()), whole[13_500..]);
        }
    }

    #[test]
    fn a_single_file_is_limited_before_it_is_split_and_read_whatever_its_extension() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("one.txt");
        fs::write(&file, "0123456789abcdef").unwrap();
        let extensions = Some(vec!["rs".to_string()]);
        let options = CorpusOptions { max_bytes: 10, validation_fraction: 0.2, extensions, ..Default::default() };
        let corpus = open(&file, options);
        assert_eq!((contents(corpus.train()), contents(corpus.validation())), ("01234567".into(), "89".into()));
    }

    #[test]
    fn the_limits_count_both_sides() {
        let root = folder(100); // each file has 7 or 8 bytes
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
    fn the_fingerprint_covers_names_and_bytes_but_not_the_place() {
        let (root, elsewhere) = (folder(20), folder(20));
        let fingerprint_of = |path: &Path| open(path, CorpusOptions::default()).fingerprint();
        let before = fingerprint_of(root.path());
        assert_eq!(before.len(), 64);
        assert_eq!(before, fingerprint_of(elsewhere.path()));
        fs::write(root.path().join("7.txt"), "LINE 7\n").unwrap();
        assert_ne!(before, fingerprint_of(root.path()), "other bytes of the same length");
        fs::write(root.path().join("7.txt"), "line 7").unwrap();
        assert_ne!(before, fingerprint_of(root.path()));
        fs::write(root.path().join("7.txt"), "line 7\n").unwrap();
        assert_eq!(before, fingerprint_of(root.path()), "the same text with another modification time");
        fs::rename(elsewhere.path().join("7.txt"), elsewhere.path().join("seven.txt")).unwrap();
        assert_ne!(before, fingerprint_of(elsewhere.path()));
    }

    #[test]
    fn the_fingerprint_covers_the_selected_files_and_not_the_options() {
        let root = folder(20);
        let fingerprint_of = |options| open(root.path(), options).fingerprint();
        let default = fingerprint_of(CorpusOptions::default());
        assert_eq!(default, fingerprint_of(CorpusOptions { max_files: 20, ..Default::default() }));
        assert_ne!(default, fingerprint_of(CorpusOptions { max_files: 19, ..Default::default() }));
        assert_ne!(default, fingerprint_of(CorpusOptions { seed: 1, ..Default::default() }));
        assert_ne!(default, fingerprint_of(CorpusOptions { validation_fraction: 0.9, ..Default::default() }));
    }

    #[test]
    fn the_fingerprint_of_a_single_file_covers_its_length_and_its_split() {
        let root = tempfile::tempdir().unwrap();
        let fingerprint_of = |name: &str, length, validation_fraction| {
            let path = root.path().join(name);
            fs::write(&path, vec![b'x'; length]).unwrap();
            open(&path, CorpusOptions { validation_fraction, ..Default::default() }).fingerprint()
        };
        assert_eq!(fingerprint_of("a.txt", 100, 0.1), fingerprint_of("b.txt", 100, 0.1));
        assert_ne!(fingerprint_of("a.txt", 100, 0.1), fingerprint_of("a.txt", 101, 0.1));
        assert_ne!(fingerprint_of("a.txt", 100, 0.1), fingerprint_of("a.txt", 100, 0.2));
    }
}
