//! Tests the messages of errors about checkpoints: each names the problem, the file and the fix.

use std::error::Error;
use std::fs;
use std::io;
use std::num::NonZero;
use std::os::unix::fs::symlink;
use std::path::Path;

use stageline_checkpoint::{Checkpoint, CheckpointError, Damage, Dtype, Store, Tensor};

use crate::{error_texts, toy};

/// Returns the message of an error about a checkpoint, with `DIR` in place of the folder's path.
fn shown(error: &CheckpointError, dir: &Path) -> String {
    error_texts::check(error);
    error.to_string().replace(&dir.display().to_string(), "DIR")
}

fn read_message(path: &Path, dir: &Path) -> String {
    shown(&toy::read(path).unwrap_err(), dir)
}

#[test]
fn a_path_without_a_checkpoint_is_named_with_the_fix() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let message = |name: &str| read_message(&dir.join(name), dir);
    assert_eq!(message("x"), "DIR/x does not exist; give the path of a checkpoint, or of a folder of checkpoints");
    fs::write(dir.join("file"), "").unwrap();
    assert_eq!(
        message("file"),
        "DIR/file is not a folder; give the path of a checkpoint, or of a folder of checkpoints"
    );
    fs::create_dir(dir.join("empty")).unwrap();
    assert_eq!(message("empty"), "no checkpoint in DIR/empty; train with --checkpoint first");
    drop(toy::store(&dir.join("store"), 1));
    assert_eq!(message("store"), "no checkpoint in DIR/store; train with --checkpoint first");
    assert_eq!(
        message("."),
        "DIR/. is neither a checkpoint (there is no manifest.json) nor a folder of checkpoints (with names such as \
         000001-step-100); give the path of one"
    );
    for below in ["file/", "file/x", "file/x/y"] {
        assert_eq!(message(below), message("file"), "the message names the part that is no folder");
    }
    symlink("loop", dir.join("loop")).unwrap();
    assert_eq!(message("loop"), "cannot access DIR/loop; make it readable");
}

#[test]
fn damage_is_reported_with_an_older_checkpoint_if_there_is_one() {
    let (folder, path) = toy::two();
    let dir = folder.path();
    fs::write(path.join("manifest.json"), "").unwrap();
    assert_eq!(
        read_message(dir, dir),
        "DIR/000002-step-20/manifest.json does not end with its own SHA-256: it was cut short or changed; resume from \
         an older checkpoint, such as DIR/000001-step-10"
    );
    fs::remove_file(path.join("manifest.json")).unwrap();
    assert_eq!(
        read_message(&path, dir),
        "DIR/000002-step-20/manifest.json is missing; resume from an older checkpoint, such as DIR/000001-step-10"
    );
    fs::remove_file(dir.join("000001-step-10/head.safetensors")).unwrap();
    fs::create_dir(dir.join("000001-step-10/head.safetensors")).unwrap();
    assert_eq!(
        read_message(&dir.join("000001-step-10"), dir),
        "DIR/000001-step-10/head.safetensors is a folder, where a checkpoint has a file; no older checkpoint \
         was found: restore this one from a copy, or start a new training"
    );
}

#[test]
fn damage_by_the_machine_is_reported_with_its_cause() {
    let memory = Damage::Memory { bytes: 1 << 60 };
    assert_eq!(memory.to_string(), "has 1152921504606846976 bytes, which do not fit into memory");
    let io = Damage::Io(io::Error::other("disk on fire"));
    assert_eq!(io.to_string(), "cannot be read: disk on fire");
    let damaged = |kind: io::ErrorKind| {
        let (damage, older) = (Damage::Io(kind.into()).into(), Some("a/000001-step-1".into()));
        CheckpointError::Damaged { path: "a/000002-step-2/manifest.json".into(), damage, older }.to_string()
    };
    assert_eq!(
        damaged(io::ErrorKind::PermissionDenied),
        "a/000002-step-2/manifest.json cannot be read: permission denied; make it and its folder readable"
    );
    let error = CheckpointError::Look { path: "a\nb".into(), source: io::Error::other("disk on fire") };
    assert_eq!(format!("{error:?}"), r"cannot access a\nb; make it readable: disk on fire");
    assert_eq!(
        damaged(io::ErrorKind::TimedOut),
        "a/000002-step-2/manifest.json cannot be read: timed out; resume from an older checkpoint, such as a/000001-step-1"
    );
}

/// Makes a checkpoint invalid with the closure `change`, tries to save it, and returns the error message of the failed
/// save.
fn save_message(change: impl FnOnce(&mut Checkpoint)) -> String {
    let dir = tempfile::tempdir().unwrap();
    let mut checkpoint = toy::checkpoint(1);
    change(&mut checkpoint);
    shown(&toy::store(dir.path(), 1).save(&checkpoint).unwrap_err(), dir.path())
}

#[test]
fn a_refused_checkpoint_is_reported_with_its_values_and_the_fix() {
    let put = |name: &'static str, tensor: Tensor| {
        save_message(move |checkpoint| _ = checkpoint.parameters.insert(name.to_owned(), tensor))
    };
    assert_eq!(
        put("w", toy::f32s(&[2], f32::NEG_INFINITY)),
        "the tensor `w` has -inf at index 0; no checkpoint is written, and earlier ones stay: resume from the latest \
         with a lower learning rate, or with gradients clipped"
    );
    assert_eq!(
        put("w", Tensor::new(Dtype::F32, vec![2, 3], vec![0; 23].into())),
        "the tensor `w` has 23 bytes, but F32 of shape [2, 3] takes 24; pass exactly the bytes of its elements"
    );
    assert_eq!(
        put("w", Tensor::new(Dtype::F32, vec![usize::MAX], vec![].into())),
        "the tensor `w` has 0 bytes, but F32 of shape [18446744073709551615] takes a number of bytes that overflows or \
         is not whole; pass exactly the bytes of its elements"
    );
    assert_eq!(
        put("__metadata__", toy::f32s(&[], 0.0)),
        "no tensor can be named `__metadata__`: the format reserves this name; rename the tensor"
    );
    assert_eq!(
        save_message(|checkpoint| checkpoint.progress.loss_scale.as_mut().unwrap().scale = f64::NAN),
        "the loss scale is NaN; it must be a positive number"
    );
    assert_eq!(
        save_message(|checkpoint| checkpoint.progress.steps = (1 << 53) + 1),
        "the step count is 9007199254740993; it must be at most 9007199254740992"
    );
    assert_eq!(
        save_message(|checkpoint| checkpoint.progress.optimizer_steps = 2),
        "the optimizer's step count is 2; it must be at most the step count, which is 1"
    );
    let deep = (0..200).fold(serde_json::json!(1), |inner, _| serde_json::json!([inner]));
    let message = save_message(|checkpoint| _ = checkpoint.run.insert("deep".to_owned(), deep));
    assert!(
        message.starts_with("the manifest of ") && message.contains(" bytes could not be read back: it is malformed: ")
    );
    assert!(message.ends_with("; make `run` smaller and less deeply nested"), "{message}");
}

#[test]
fn a_folder_that_cannot_be_written_is_named_with_the_fix() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let open = |path: &Path| Store::open(path, NonZero::<usize>::MIN);
    let first = open(dir).unwrap();
    let in_use = open(dir).unwrap_err();
    assert_eq!(
        shown(&in_use, dir),
        "DIR is in use by another run that writes checkpoints; end it, or give another folder"
    );
    drop(first);
    fs::write(dir.join("file"), "").unwrap();
    for path in ["file", "file/", "file/x", "file/x/y"] {
        assert_eq!(
            shown(&open(&dir.join(path)).unwrap_err(), dir),
            "DIR/file is a file; give the path of a folder, which is created if it does not exist"
        );
    }
    symlink("nothing", dir.join("link")).unwrap();
    assert_eq!(
        shown(&open(&dir.join("link/x")).unwrap_err(), dir),
        "DIR/link is a symbolic link to nothing; give the path of a folder, which is created if it does not exist"
    );
    let long = "x".repeat(300);
    let error = open(&dir.join(&long)).unwrap_err();
    assert_eq!(
        shown(&error, dir),
        format!(
            "cannot create the folder DIR/{long}; free space on its disk, or make the folder writable; earlier \
             checkpoints are untouched"
        )
    );
    assert_eq!(error.source().unwrap().downcast_ref::<io::Error>().unwrap().kind(), io::ErrorKind::InvalidFilename);
    let last = format!("{}-step-1", u64::MAX);
    fs::create_dir(dir.join(&last)).unwrap();
    assert_eq!(
        shown(&open(dir).unwrap().save(&toy::checkpoint(1)).unwrap_err(), dir),
        format!(
            "DIR/{last} has the highest possible sequence number; move it out of the folder, or give another folder"
        )
    );
}

#[test]
fn rare_failures_are_reported_with_the_fix() {
    let source = || io::Error::other("disk on fire");
    let (published, path) = ("a/000002-step-2".into(), "a/000001-step-1".into());
    for (error, expected) in [
        (
            CheckpointError::Prune { published, doing: "rename", path, source: source() },
            "a/000002-step-2 is written, but old checkpoints remain: cannot rename a/000001-step-1; make the folder \
             writable, or keep more checkpoints",
        ),
        (
            CheckpointError::Header { file: "a.safetensors".into(), reason: "its header is too long".into() },
            "cannot write a.safetensors as safetensors: its header is too long; give its tensors shorter names, or \
             names of more layers, because each layer has a file",
        ),
        (
            CheckpointError::Thread { source: source() },
            "cannot start the thread that writes checkpoints; raise the limit on threads (ulimit -u)",
        ),
        (
            CheckpointError::Panicked { message: "out of luck".into() },
            "the thread that writes checkpoints panicked: out of luck; resume from the latest checkpoint",
        ),
    ] {
        assert_eq!(shown(&error, Path::new("DIR")), expected);
    }
}
