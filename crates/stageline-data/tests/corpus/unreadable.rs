//! Tests a corpus at a path that is unreadable or has no byte to read.

use std::error::Error;
use std::fs;
use std::path::Path;

use stageline_data::{Corpus, CorpusError, CorpusOptions};

fn refused(path: &Path) -> CorpusError {
    Corpus::open(path, &CorpusOptions::default()).unwrap_err()
}

fn io_message(path: &Path) -> String {
    format!("cannot read {}; make it readable, or move it out of the corpus", path.display())
}

#[cfg(unix)]
#[test]
fn a_file_without_permission_is_refused_at_the_start_and_later() {
    use std::os::unix::fs::PermissionsExt;

    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("one.txt");
    fs::write(&file, "0123456789").unwrap();
    let before = Corpus::open(&file, &CorpusOptions::default()).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o000)).unwrap();
    if fs::read(&file).is_ok() {
        // Root may read every file. The test then only checks that new permissions do not count as a change of the
        // file.
        before.train().read(0, &mut [0]).unwrap();
        return;
    }
    for error in [refused(&file), refused(root.path()), before.train().read(0, &mut [0]).unwrap_err()] {
        assert_eq!(error.to_string(), io_message(&file));
        assert_eq!(error.source().unwrap().to_string(), "Permission denied (os error 13)");
    }
}

#[test]
fn a_path_that_no_file_system_allows_is_refused_with_its_cause() {
    let path = Path::new("a name with a \0 in it");
    let error = refused(path);
    assert_eq!(error.to_string(), io_message(Path::new(r"a name with a \u{0} in it")));
    assert!(error.source().is_some());
}

#[test]
fn a_corpus_of_one_empty_file_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("empty.txt");
    fs::write(&file, "").unwrap();
    for path in [file.as_path(), root.path()] {
        let expected = format!("nothing to read at {}: found no non-empty file; give another path", path.display());
        assert_eq!(refused(path).to_string(), expected);
    }
}

#[test]
fn an_empty_file_among_others_is_skipped_even_if_it_is_filled_later() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("empty.txt"), "").unwrap();
    fs::write(root.path().join("a.txt"), "aaa").unwrap();
    fs::write(root.path().join("b.txt"), "bbb").unwrap();
    let corpus = Corpus::open(root.path(), &CorpusOptions { validation_fraction: 0.0, ..Default::default() }).unwrap();
    fs::write(root.path().join("empty.txt"), "filled").unwrap();
    let mut whole = [0; 6];
    corpus.train().read(0, &mut whole).unwrap();
    whole.sort_unstable();
    assert_eq!((corpus.train().files(), corpus.train().len(), &whole), (2, 6, b"aaabbb"));
}
