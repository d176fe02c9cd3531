//! Tests that a checkpoint with any damage in any file is refused, with the name of the file.

use std::fs;
use std::num::NonZero;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

use stageline_checkpoint::{CheckpointError, Store};

use crate::toy;

/// Whether a damaged checkpoint is refused with an error that names the damaged file `file` and the older checkpoint in
/// the same folder.
fn refused(checkpoint: &Path, file: &str) -> bool {
    match toy::read(checkpoint) {
        Err(CheckpointError::Damaged { path, older, .. }) => {
            path == checkpoint.join(file) && older == Some(checkpoint.with_file_name("000001-step-10"))
        }
        _ => false,
    }
}

/// Damages each file of a checkpoint in turn. The closure `damaged` makes several damaged contents from the original
/// ones. Returns the number of attempts to open the checkpoint and the number of refusals.
fn try_all(damaged: impl Fn(&[u8]) -> Vec<Vec<u8>>) -> (usize, usize) {
    let (_dir, checkpoint) = toy::two();
    let (mut tried, mut count) = (0, 0);
    for file in toy::files(&checkpoint) {
        let path = checkpoint.join(&file);
        let good = fs::read(&path).unwrap();
        for contents in damaged(&good) {
            fs::write(&path, &contents).unwrap();
            tried += 1;
            count += usize::from(refused(&checkpoint, &file));
        }
        fs::write(&path, &good).unwrap();
    }
    assert_eq!(toy::read(&checkpoint).unwrap(), toy::checkpoint(20), "the damage was undone");
    (tried, count)
}

fn bytes_of_all_files() -> usize {
    let (_dir, checkpoint) = toy::two();
    toy::files(&checkpoint).iter().map(|file| fs::read(checkpoint.join(file)).unwrap().len()).sum()
}

#[test]
fn every_file_cut_short_at_every_length_is_refused() {
    let (tried, refused) = try_all(|good| (0..good.len()).map(|length| good[..length].to_vec()).collect());
    assert_eq!((tried, refused), (bytes_of_all_files(), bytes_of_all_files()));
    println!("{refused} files cut short were refused");
}

#[test]
fn every_file_with_a_flipped_bit_in_any_byte_is_refused() {
    let flipped = |good: &[u8], i: usize| {
        let mut bytes = good.to_vec();
        bytes[i] ^= 1 << (i % 8);
        bytes
    };
    let (tried, refused) = try_all(|good| (0..good.len()).map(|i| flipped(good, i)).collect());
    assert_eq!((tried, refused), (bytes_of_all_files(), bytes_of_all_files()));
    println!("{refused} files with a flipped bit were refused");
}

#[test]
fn a_manifest_with_any_bit_flipped_is_refused() {
    let (_dir, checkpoint) = toy::two();
    let path = checkpoint.join("manifest.json");
    let good = fs::read(&path).unwrap();
    for bit in 0..good.len() * 8 {
        let mut bytes = good.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        fs::write(&path, bytes).unwrap();
        assert!(refused(&checkpoint, "manifest.json"), "bit {bit}");
    }
}

#[test]
fn every_file_made_longer_is_refused() {
    let longer = |good: &[u8]| vec![[good, b"\n"].concat(), [good, good].concat(), [b" ", good].concat()];
    assert_eq!(try_all(longer), (18, 18));
}

#[test]
fn every_file_replaced_by_something_else_is_refused() {
    let (dir, checkpoint) = toy::two();
    let aside = dir.path().join("aside");
    let (mut tried, mut count) = (0, 0);
    for file in toy::files(&checkpoint) {
        let path = checkpoint.join(&file);
        fs::rename(&path, &aside).unwrap();
        let mut check = || {
            tried += 1;
            count += usize::from(refused(&checkpoint, &file));
        };
        check(); // the file is missing
        fs::create_dir(&path).unwrap();
        check();
        fs::remove_dir(&path).unwrap();
        symlink(&aside, &path).unwrap();
        check();
        fs::remove_file(&path).unwrap();
        symlink("nowhere", &path).unwrap();
        check();
        fs::remove_file(&path).unwrap();
        let socket = UnixListener::bind(&path).unwrap();
        check();
        drop(socket);
        fs::remove_file(&path).unwrap();
        make_pipe(&path);
        check();
        fs::remove_file(&path).unwrap();
        fs::rename(&aside, &path).unwrap();
    }
    assert_eq!(toy::read(&checkpoint).unwrap(), toy::checkpoint(20), "the damage was undone");
    assert_eq!((tried, count), (36, 36));
}

/// Makes a pipe whose other end nobody opens, so that opening it as a file would wait forever.
fn make_pipe(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success(), "{}", path.display());
}

/// Tests that a named pipe in place of the lock file is refused without waiting for a process at its other end.
#[test]
fn a_pipe_in_place_of_the_lock_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    make_pipe(&dir.path().join(".lock"));
    let error = Store::open(dir.path(), NonZero::<usize>::MIN).unwrap_err();
    assert!(matches!(&error, CheckpointError::Write { path, .. } if path.ends_with(".lock")), "{error}");
}

#[test]
fn an_optimizer_folder_that_is_missing_a_link_or_a_file_is_refused() {
    let (dir, checkpoint) = toy::two();
    let (folder, aside) = (checkpoint.join("optimizer"), dir.path().join("aside"));
    fs::rename(&folder, &aside).unwrap();
    assert!(refused(&checkpoint, "optimizer"));
    symlink(&aside, &folder).unwrap();
    assert!(refused(&checkpoint, "optimizer"));
    fs::remove_file(&folder).unwrap();
    fs::write(&folder, "x").unwrap();
    assert!(refused(&checkpoint, "optimizer"));
}

#[test]
fn a_manifest_that_is_too_long_is_not_read() {
    let (_dir, checkpoint) = toy::two();
    let manifest = fs::OpenOptions::new().write(true).open(checkpoint.join("manifest.json")).unwrap();
    manifest.set_len((64 << 20) + 1).unwrap();
    let error = toy::read(&checkpoint).unwrap_err().to_string();
    assert!(error.contains("manifest.json has 67108865 bytes, but such a file has at most 67108864"), "{error}");
}

#[test]
fn files_that_the_manifest_does_not_list_are_ignored() {
    let (_dir, checkpoint) = toy::two();
    fs::write(checkpoint.join("config.json"), "{}").unwrap();
    fs::create_dir(checkpoint.join("tokenizer")).unwrap();
    assert_eq!(toy::read(&checkpoint).unwrap(), toy::checkpoint(20));
}
