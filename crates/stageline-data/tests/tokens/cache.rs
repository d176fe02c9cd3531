//! Tests that a source (the text files to tokenise) is tokenised once, and again only after a change.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, SystemTime};

use stageline_data::{Bytes, Encode, SpecialTokens, TokenError, TokenFile, prepare};

use crate::{Room, documents, tokens};

/// A test encoding that fails to encode any text and to decode any tokens. It has a fingerprint, a vocabulary and
/// special tokens that come before a text.
struct Failing {
    fingerprint: &'static str,
    before: &'static [u32],
}

impl Encode for Failing {
    fn encode(&self, _: &str) -> Result<Vec<u32>, TokenError> {
        Err(TokenError::Encoding { message: "asked for tokens".into() })
    }

    fn special_tokens(&self) -> SpecialTokens {
        SpecialTokens { before: self.before.to_vec(), after: Vec::new() }
    }

    fn decode(&self, _: &[u32]) -> Result<String, TokenError> {
        Err(TokenError::Encoding { message: "asked for text".into() })
    }

    fn vocabulary(&self) -> usize {
        256
    }

    fn fingerprint(&self) -> String {
        self.fingerprint.into()
    }
}

fn set_modified(path: &Path, time: SystemTime) {
    File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
}

#[test]
fn the_second_call_reads_the_token_file_and_not_the_source() {
    let room = Room::with("a.txt", "some text");
    let first = room.prepare().unwrap();
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 30);
    set_modified(first.path(), long_ago);
    let second = prepare(&room.source, &Failing { fingerprint: "bytes", before: &[] }, &room.options).unwrap();
    assert_eq!((second.path(), tokens(&second)), (first.path(), tokens(&first)));
    assert_eq!(fs::metadata(second.path()).unwrap().modified().unwrap(), long_ago, "the file was not written again");
    assert_eq!(room.names().len(), 1);
}

#[test]
fn another_encoding_has_tokens_of_its_own() {
    let room = Room::with("a.txt", "some text");
    room.prepare().unwrap();
    for encoding in [Failing { fingerprint: "other", before: &[] }, Failing { fingerprint: "bytes", before: &[0] }] {
        let other = prepare(&room.source, &encoding, &room.options);
        assert!(matches!(other, Err(TokenError::Document { line: None, .. })));
    }
    assert_eq!(room.names().len(), 1, "the failed call left nothing");
}

#[test]
fn a_changed_source_is_tokenised_again_and_an_open_file_stays_as_it_is() {
    let room = Room::with("a.txt", "some text");
    let first = room.prepare().unwrap();
    fs::write(&room.source, "another text").unwrap();
    let second = room.prepare().unwrap();
    assert_eq!((documents(&first), documents(&second)), (vec!["some text".into()], vec!["another text".into()]));
    assert_ne!(first.fingerprint(), second.fingerprint());

    // A text with the same length but a later modification time is tokenised again.
    let time = fs::metadata(&room.source).unwrap().modified().unwrap();
    fs::write(&room.source, "ANOTHER TEXT").unwrap();
    set_modified(&room.source, time + Duration::from_secs(1));
    assert_eq!(documents(&room.prepare().unwrap()), ["ANOTHER TEXT"]);
}

#[test]
fn a_new_file_in_a_folder_changes_its_tokens() {
    let mut room = Room::with("unused.txt", "x");
    room.source = room.root.path().join("source");
    fs::create_dir(&room.source).unwrap();
    fs::write(room.source.join("b.txt"), "b").unwrap();
    assert_eq!(documents(&room.prepare().unwrap()), ["b"]);
    fs::write(room.source.join("a.txt"), "a").unwrap();
    assert_eq!(documents(&room.prepare().unwrap()), ["a", "b"]);
}

#[test]
fn the_fingerprint_is_of_the_tokens_and_not_of_the_place() {
    let [a, b] = ["a.txt", "b.md"].map(|name| Room::with(name, "some text").prepare().unwrap());
    assert_ne!(a.path().file_name(), b.path().file_name());
    assert_eq!(a.fingerprint(), b.fingerprint());
    assert_eq!(a.fingerprint().len(), 64);
    let lines = "{\"text\": \"some \"}\n{\"text\": \"text\"}\n";
    let other_documents = Room::with("a.jsonl", lines).prepare().unwrap();
    assert_eq!(tokens(&other_documents), tokens(&a));
    assert_ne!(other_documents.fingerprint(), a.fingerprint());
}

#[test]
fn a_damaged_or_foreign_token_file_is_written_again() {
    let room = Room::with("a.txt", "some text");
    let path = room.prepare().unwrap().path().to_path_buf();
    let other = Room::with("b.txt", "other");
    let foreign = fs::read(other.prepare().unwrap().path()).unwrap();
    let old_version = {
        let mut bytes = fs::read(&path).unwrap();
        bytes[8] = 0;
        bytes
    };
    for contents in [vec![], b"garbage".to_vec(), foreign, old_version] {
        fs::remove_file(&path).unwrap();
        fs::write(&path, contents).unwrap();
        assert_eq!(documents(&room.prepare().unwrap()), ["some text"]);
    }
}

/// Flips a bit in each byte of a token file in turn. Each time, the file must be written again with the right tokens.
#[test]
fn a_token_file_with_any_wrong_bit_is_written_again() {
    let room = Room::with("a.jsonl", "{\"text\": \"ab\"}\n{\"text\": \"c\"}\n");
    let path = room.prepare().unwrap().path().to_path_buf();
    let whole = fs::read(&path).unwrap();
    for at in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 1 << (at % 8);
        fs::remove_file(&path).unwrap();
        fs::write(&path, damaged).unwrap();
        assert_eq!(documents(&room.prepare().unwrap()), ["ab", "c"], "byte {at}");
        assert!(fs::read(&path).unwrap() == whole, "byte {at}");
    }
}

#[test]
fn threads_that_prepare_at_once_get_the_same_tokens() {
    let text = "x".repeat(100_000);
    let room = Room::with("a.txt", &text);
    let start = Barrier::new(8);
    thread::scope(|scope| {
        let threads = [(); 8].map(|()| {
            scope.spawn(|| {
                start.wait();
                Bytes.decode(&tokens(&room.prepare().unwrap())).unwrap()
            })
        });
        for thread in threads {
            assert!(thread.join().unwrap() == text);
        }
    });
    assert_eq!(room.names().len(), 1, "no temporary file is left");
}

#[cfg(unix)]
#[test]
fn a_folder_that_cannot_be_written_is_an_error_with_its_path() {
    let mut room = Room::with("a.txt", "some text");
    room.options.folder = Some(room.source.join("tokens"));
    let error = room.prepare().unwrap_err();
    assert!(matches!(error, TokenError::Io { .. } | TokenError::Write { .. }), "{error:?}");
    assert!(error.to_string().contains("a.txt/tokens"), "{error}");
}

#[cfg(unix)]
#[test]
fn a_link_to_nothing_in_the_place_of_a_token_file_is_replaced() {
    let room = Room::with("a.txt", "some text");
    let path = room.prepare().unwrap().path().to_path_buf();
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("nowhere", &path).unwrap();
    assert!(matches!(TokenFile::open(&path), Err(TokenError::DanglingLink { .. })));
    assert_eq!(documents(&room.prepare().unwrap()), ["some text"]);
    assert!(fs::symlink_metadata(&path).unwrap().is_file());
}
