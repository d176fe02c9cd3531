//! Tests files that change while their corpus is open: a read returns an error that names the change, and never changed
//! text.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use stageline_data::{Change, Corpus, CorpusError, CorpusOptions};

/// A test's temporary folder with one file of ten bytes, and the corpus that was opened from that file.
struct Opened {
    _root: tempfile::TempDir,
    file: PathBuf,
    corpus: Corpus,
}

fn opened() -> Opened {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("one.txt");
    fs::write(&file, "0123456789").unwrap();
    let corpus = Corpus::open(&file, &CorpusOptions::default()).unwrap();
    Opened { _root: root, file, corpus }
}

impl Opened {
    /// Reads the first byte of the training text, which lies in the file that a test changes.
    fn read(&self) -> Result<u8, CorpusError> {
        let mut byte = [0];
        self.corpus.train().read(0, &mut byte)?;
        Ok(byte[0])
    }

    /// Reads the first byte of the training text, which must fail because a test has changed the file. Returns the
    /// change that the error reports.
    fn refused(&self) -> Change {
        match self.read().unwrap_err() {
            CorpusError::Changed { path, had: 10, now } if path == self.file => now,
            other => panic!("{other:?}"),
        }
    }
}

fn truncate(file: &Path, length: u64) {
    File::options().write(true).open(file).unwrap().set_len(length).unwrap();
}

#[test]
fn a_truncated_file_is_an_error_wherever_it_is_read() {
    for length in [0, 5, 9] {
        let opened = opened();
        assert_eq!(opened.read().unwrap(), b'0');
        truncate(&opened.file, length);
        assert_eq!(opened.refused(), Change::Length(length));
        for text in [opened.corpus.train(), opened.corpus.validation()] {
            for failed in [text.read(0, &mut [0]), text.byte_counts().map(drop), text.unigram_entropy().map(drop)] {
                assert!(matches!(failed, Err(CorpusError::Changed { had: 10, .. })), "{failed:?}");
            }
        }
    }
}

#[test]
fn a_truncation_beyond_the_limit_on_bytes_is_detected_too() {
    let opened = opened();
    let capped = Corpus::open(&opened.file, &CorpusOptions { max_bytes: 4, ..Default::default() }).unwrap();
    truncate(&opened.file, 5);
    assert!(matches!(capped.train().read(0, &mut [0]), Err(CorpusError::Changed { had: 10, .. })));
}

#[test]
fn a_deleted_file_is_gone_and_so_is_a_file_whose_folder_became_a_file() {
    let opened = opened();
    fs::remove_file(&opened.file).unwrap();
    assert_eq!(opened.refused(), Change::Gone);

    let opened = self::opened();
    let folder = opened.file.parent().unwrap();
    fs::remove_dir_all(folder).unwrap();
    fs::write(folder, "a file").unwrap();
    assert_eq!(opened.refused(), Change::Gone);
    fs::remove_file(folder).unwrap();
}

#[test]
fn a_longer_file_in_its_place_is_detected() {
    let opened = opened();
    let other = opened.file.with_extension("new");
    fs::write(&other, "0123456789 and more").unwrap();
    fs::rename(&other, &opened.file).unwrap();
    assert_eq!(opened.refused(), Change::Length(19));
}

#[test]
fn a_folder_in_its_place_is_no_file() {
    let opened = opened();
    fs::remove_file(&opened.file).unwrap();
    fs::create_dir(&opened.file).unwrap();
    assert_eq!(opened.refused(), Change::NoFile);
}

/// Tests a named pipe in the place of a corpus file. A read must return the error that the path no longer leads to a
/// file. It must not open the pipe, because that would block until another process writes to the pipe.
#[cfg(unix)]
#[test]
fn a_pipe_in_its_place_is_no_file_and_does_not_block() {
    let opened = opened();
    fs::remove_file(&opened.file).unwrap();
    assert!(Command::new("mkfifo").arg(&opened.file).status().unwrap().success());
    assert_eq!(opened.refused(), Change::NoFile);
}

#[test]
fn other_bytes_of_the_same_length_are_detected_by_their_time_only() {
    let opened = opened();
    let time = fs::metadata(&opened.file).unwrap().modified().unwrap();
    fs::write(&opened.file, "abcdefghij").unwrap();
    let set_time = |time| File::options().write(true).open(&opened.file).unwrap().set_modified(time).unwrap();
    set_time(time + Duration::from_secs(1));
    assert_eq!(opened.refused(), Change::Written);
    // An earlier modification time counts as a change, too: it may come from a copy that keeps modification times.
    set_time(time - Duration::from_secs(1));
    assert_eq!(opened.refused(), Change::Written);
    set_time(time);
    assert_eq!(opened.read().unwrap(), b'a', "as the docs of Corpus::open say");
}

#[test]
fn a_file_that_is_restored_with_its_time_is_read_again() {
    let opened = opened();
    let time = fs::metadata(&opened.file).unwrap().modified().unwrap();
    truncate(&opened.file, 0);
    assert_eq!(opened.refused(), Change::Length(0));
    fs::write(&opened.file, "0123456789").unwrap();
    File::options().write(true).open(&opened.file).unwrap().set_modified(time).unwrap();
    assert_eq!(opened.read().unwrap(), b'0');
}

#[test]
fn only_windows_in_the_changed_file_fail_and_opening_again_reads_the_new_contents() {
    let root = tempfile::tempdir().unwrap();
    for i in 0..5 {
        fs::write(root.path().join(format!("{i}.txt")), i.to_string().repeat(10)).unwrap();
    }
    let options = CorpusOptions { validation_fraction: 0.0, ..Default::default() };
    let corpus = Corpus::open(root.path(), &options).unwrap();
    truncate(&root.path().join("3.txt"), 5);
    let mut windows = Vec::new();
    for offset in (0..50).step_by(10) {
        let mut window = [0; 10];
        match corpus.train().read(offset, &mut window) {
            Ok(()) => windows.push(window[0]),
            Err(CorpusError::Changed { path, now: Change::Length(5), .. }) => {
                assert_eq!(path, root.path().join("3.txt"));
            }
            Err(other) => panic!("{other:?}"),
        }
    }
    windows.sort_unstable();
    assert_eq!(windows, b"0124");
    // A read of all files includes the changed file, so it fails.
    assert!(corpus.train().read(0, &mut [0; 50]).is_err());

    let again = Corpus::open(root.path(), &options).unwrap();
    assert_ne!(again.fingerprint(), corpus.fingerprint());
    let mut whole = [0; 45];
    again.train().read(0, &mut whole).unwrap();
    assert_eq!(whole.iter().filter(|&&byte| byte == b'3').count(), 5);
}

/// Tests reads of a corpus file while another thread shortens and restores it. Every read must be complete, or return
/// the error that the file changed.
#[test]
fn a_file_that_shrinks_during_reads_is_at_most_an_error() {
    let opened = opened();
    let time = fs::metadata(&opened.file).unwrap().modified().unwrap();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for _ in 0..2_000 {
                let file = File::options().write(true).open(&opened.file).unwrap();
                file.set_len(0).unwrap();
                file.set_len(10).unwrap();
                file.set_modified(time).unwrap();
            }
        });
        while !writer.is_finished() {
            for result in [opened.corpus.train().read(0, &mut [0; 9]), opened.corpus.validation().read(0, &mut [0])] {
                assert!(matches!(result, Ok(()) | Err(CorpusError::Changed { had: 10, .. })), "{result:?}");
            }
        }
    });
    assert_eq!(opened.read().unwrap(), 0, "the file has its length and time again, and is full of zeros");
}

/// Tests reads of a corpus file while another thread rewrites it once. Each read checks the file before and after. The
/// check after the read detects a change that came between the first check and the read.
#[test]
fn no_byte_of_a_rewritten_file_is_ever_returned() {
    for _ in 0..300 {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("one.txt");
        fs::write(&path, "0123456789").unwrap();
        // The file gets a modification time long ago, so that the write below changes it, however coarse the clock is.
        let file = File::options().write(true).open(&path).unwrap();
        file.set_modified(std::time::UNIX_EPOCH + Duration::from_secs(1 << 30)).unwrap();
        let corpus = Corpus::open(&path, &CorpusOptions::default()).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| (&file).write_all(b"abcdefghij").unwrap());
            let mut buffer = [0; 9];
            while corpus.train().read(0, &mut buffer).is_ok() {
                assert_eq!(&buffer, b"012345678");
            }
        });
    }
}

#[test]
fn every_change_is_reported_with_the_file_its_lengths_and_the_fix() {
    let message = |now| CorpusError::Changed { path: "some/one.txt".into(), had: 10, now }.to_string();
    let fix = "put it back as it was, with its modification time, or open the corpus again; train on a copy if it \
                   is still written to";
    for (now, what) in [
        (Change::Length(4), "has 4 now"),
        (Change::Written, "was written to since"),
        (Change::NoFile, "is no file now"),
        (Change::Gone, "is gone now"),
    ] {
        let expected = format!("some/one.txt had 10 bytes when the corpus was opened, and {what}; {fix}");
        assert_eq!(message(now), expected);
    }
}
