//! Tests every kind of error about checkpoints with hostile text in each of its fields.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use stageline_checkpoint::{CheckpointError, Damage, Dtype, Printable};

use crate::error_texts::{self, texts};

/// Returns one [`Damage`] of every kind, for tests. Each field that holds text has the value `text`.
fn damages(text: &str) -> Vec<Damage> {
    let t = || text.to_owned();
    let (shape, dtype, max) = (vec![usize::MAX; 100_000], Dtype::F8_E8M0, u64::MAX);
    vec![
        Damage::Missing,
        Damage::Kind { found: "a device, a pipe or a socket", expected: "a folder" },
        Damage::Io(io::Error::other(t())),
        Damage::Size { found: max, expected: max },
        Damage::TooLong { found: max, most: max },
        Damage::Memory { bytes: max },
        Damage::Hash { found: t(), expected: t() },
        Damage::NoSeal,
        Damage::Form(t()),
        Damage::Foreign { file: t() },
        Damage::Twice { file: t() },
        Damage::Unlisted { file: t() },
        Damage::Place { tensor: t(), found: t(), expected: t() },
        Damage::Shape { tensor: t(), dtype, shape },
        Damage::Total { file: t(), found: max, tensors: max },
        Damage::Lacks { tensor: t() },
        Damage::Count { found: usize::MAX, expected: usize::MAX },
        Damage::Differs { tensor: t(), found: t(), expected: t() },
        Damage::NotFinite { tensor: t(), index: usize::MAX, value: f64::MIN },
        Damage::Steps { steps: max, most: max },
        Damage::OptimizerSteps { optimizer_steps: max, steps: max },
        Damage::LossScale { scale: -f64::MIN_POSITIVE },
        Damage::Index,
    ]
}

/// Returns one [`CheckpointError`] of every kind, for tests. Each field that holds text has the value `text`, and each
/// field that holds a path has the value `path`.
fn errors(text: &str, path: &OsStr) -> Vec<CheckpointError> {
    let (t, path) = (|| text.to_owned(), || PathBuf::from(path));
    let (source, max) = (|| io::Error::from_raw_os_error(28), u64::MAX);
    let (dtype, shape) = (Dtype::F8_E8M0, vec![usize::MAX; 100_000]);
    let damaged = damages(text).into_iter().flat_map(|damage| {
        let older = if matches!(damage, Damage::Index) { None } else { Some(path()) };
        [CheckpointError::Damaged { path: path(), damage: damage.into(), older }]
    });
    let others = [
        CheckpointError::PathNotFound { path: path() },
        CheckpointError::Look { path: path(), source: source() },
        CheckpointError::NotAFolder { path: path() },
        CheckpointError::NoCheckpoint { path: path() },
        CheckpointError::Neither { path: path() },
        CheckpointError::LatestIsNoFolder { path: path(), found: "a device, a pipe or a socket" },
        CheckpointError::Removed { path: path() },
        CheckpointError::Newer { path: path(), found: max, known: u32::MAX },
        CheckpointError::InUse { path: path() },
        CheckpointError::InTheWay { path: path(), found: "a symbolic link to nothing" },
        CheckpointError::Write { doing: "rename a finished checkpoint to", path: path(), source: source() },
        CheckpointError::NotDurable { published: path(), source: source(), undo: source() },
        CheckpointError::Prune { published: path(), doing: "rename", path: path(), source: source() },
        CheckpointError::LastNumber { path: path() },
        CheckpointError::Length { tensor: t(), dtype, shape, found: usize::MAX, expected: None },
        CheckpointError::Reserved { tensor: t() },
        CheckpointError::NotFinite { tensor: t(), index: usize::MAX, value: f64::MIN },
        CheckpointError::Steps { steps: max, most: max },
        CheckpointError::OptimizerSteps { optimizer_steps: max, steps: max },
        CheckpointError::LossScale { scale: -f64::MIN_POSITIVE },
        CheckpointError::Header { file: t(), reason: t() },
        CheckpointError::Manifest { bytes: usize::MAX, reason: t() },
        CheckpointError::Thread { source: source() },
        CheckpointError::Panicked { message: t() },
    ];
    damaged.chain(others).collect()
}

#[test]
fn every_kind_of_error_keeps_to_the_rules() {
    for text in texts() {
        for path in [OsStr::new(&text), OsStr::from_bytes(b"\x1b[2J\xff\x9b\n"), OsStr::new("kept/000001-step-1")] {
            errors(&text, path).iter().for_each(error_texts::check);
        }
    }
}

#[test]
fn printable_text_has_no_hidden_character() {
    for char in ('\0'..=char::MAX).filter(|&char| error_texts::is_hidden(char)) {
        let shown = Printable::new(char.to_string()).to_string();
        assert!(shown.is_ascii() && !shown.chars().any(error_texts::is_hidden), "{char:?} is {shown:?}");
    }
    for text in texts() {
        let shown = Printable::new(&text).to_string();
        assert!(shown.len() <= 100 && !shown.chars().any(error_texts::is_hidden), "{shown:?}");
    }
}
