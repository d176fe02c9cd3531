//! The errors of reading and writing checkpoints. Every message ends with the fix.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::{fmt, io};

use safetensors::Dtype;

use crate::damage::Damage;
use crate::printable::{Printable, number};

/// The most bytes of a path in a message.
const MOST_PATH: usize = 600;
/// The most bytes of each path in a message with two paths.
const MOST_OF_TWO: usize = 300;
/// The most bytes of a reason that contains text from elsewhere.
const MOST_REASON: usize = 500;

/// Why a checkpoint cannot be read or written.
///
/// `Display` is safe to print, whatever the checkpoint contains: names and paths are shown as [`Printable`], and the
/// message has at most [`MOST_BYTES`](Self::MOST_BYTES). `Debug` adds the causes to the message, under the same rules.
/// The fields contain names and paths unchanged.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The path does not exist.
    #[error("{} does not exist; give the path of a checkpoint, or of a folder of checkpoints", alone(path))]
    PathNotFound {
        /// The requested path.
        path: PathBuf,
    },
    /// The path cannot be accessed.
    #[error("cannot access {}; make it readable", alone(path))]
    Look {
        /// The requested path.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The path, or a part of it, is not a folder.
    #[error("{} is not a folder; give the path of a checkpoint, or of a folder of checkpoints", alone(path))]
    NotAFolder {
        /// The requested path, or the part of it that is not a folder.
        path: PathBuf,
    },
    /// The folder has no checkpoint yet.
    #[error("no checkpoint in {}; train with --checkpoint first", alone(path))]
    NoCheckpoint {
        /// The folder.
        path: PathBuf,
    },
    /// The folder contains only other things.
    #[error(
        "{} is neither a checkpoint (there is no manifest.json) nor a folder of checkpoints (with names such as \
         000001-step-100); give the path of one",
        alone(path)
    )]
    Neither {
        /// The folder.
        path: PathBuf,
    },
    /// The format is newer than this version can read.
    #[error(
        "{} was written by a newer stageline: its format is {found}, and this version reads formats up to {known}; \
         resume with the newer stageline",
        alone(path)
    )]
    Newer {
        /// The path of the manifest.
        path: PathBuf,
        /// The format of the manifest.
        found: u64,
        /// The newest format that this version can read.
        known: u32,
    },
    /// A file of the checkpoint was damaged or changed.
    #[error("{} {damage}; {}", one_of_two(path), recovery(damage, older.as_deref()))]
    Damaged {
        /// The path of the file.
        path: PathBuf,
        /// The reason why the file is refused.
        damage: Box<Damage>,
        /// The next older checkpoint in the same folder, which has not been validated.
        older: Option<PathBuf>,
    },
    /// Another store writes into the folder.
    #[error("{} is in use by another run that writes checkpoints; end it, or give another folder", alone(path))]
    InUse {
        /// The folder.
        path: PathBuf,
    },
    /// The folder cannot be created, because it or a part of its path is something else.
    #[error("{} is {found}; give the path of a folder, which is created if it does not exist", alone(path))]
    InTheWay {
        /// The path of the folder, or the part of it that is something else.
        path: PathBuf,
        /// The kind of thing at that path.
        found: &'static str,
    },
    /// The operating system refuses a write.
    #[error(
        "cannot {doing} {}; free space on its disk, or make the folder writable; earlier checkpoints are untouched",
        alone(path)
    )]
    Write {
        /// The failed operation, as a verb.
        doing: &'static str,
        /// The file or folder of the operation.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The new checkpoint is complete and has its name, but a power loss may remove it: the folder could not be synced,
    /// and the rename could not be undone. No old checkpoint is removed.
    #[error(
        "{} is complete, but a power loss may remove it: its folder cannot be synced; check the disk, then write \
         another checkpoint; earlier checkpoints are untouched",
        alone(published)
    )]
    NotDurable {
        /// The path of the new checkpoint.
        published: PathBuf,
        /// The error of the operating system when the folder was synced.
        source: io::Error,
        /// The error of the operating system when the rename was undone.
        undo: io::Error,
    },
    /// The new checkpoint is complete, but an old one could not be removed.
    #[error(
        "{} is written, but old checkpoints remain: cannot {doing} {}; make the folder writable, or keep more \
         checkpoints",
        one_of_two(published),
        one_of_two(path)
    )]
    Prune {
        /// The path of the new checkpoint.
        published: PathBuf,
        /// The failed operation, as a verb.
        doing: &'static str,
        /// The folder of the operation.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The sequence numbers of the folder are used up.
    #[error(
        "{} has the highest possible sequence number; move it out of the folder, or give another folder",
        alone(path)
    )]
    LastNumber {
        /// The path of the last checkpoint.
        path: PathBuf,
    },
    /// The bytes of a tensor do not match its type and shape.
    #[error(
        "the tensor `{}` has {found} bytes, but {dtype} of shape {} takes {}; pass exactly the bytes of its elements",
        Printable::new(tensor),
        Printable::new(format!("{shape:?}")),
        bytes(*expected)
    )]
    Length {
        /// The name of the tensor.
        tensor: String,
        /// The type of an element.
        dtype: Dtype,
        /// The length of each dimension.
        shape: Vec<usize>,
        /// The bytes of the tensor.
        found: usize,
        /// The bytes that type and shape ask for; `None` if they overflow or are not whole.
        expected: Option<usize>,
    },
    /// The format reserves the name of a tensor.
    #[error("no tensor can be named `{}`: the format reserves this name; rename the tensor", Printable::new(tensor))]
    Reserved {
        /// The name of the tensor.
        tensor: String,
    },
    /// A value is infinite or not a number.
    #[error(
        "the tensor `{}` has {} at index {index}; no checkpoint is written, and earlier ones stay: resume from the \
         latest with a lower learning rate, or with gradients clipped",
        Printable::new(tensor),
        number(*value)
    )]
    NotFinite {
        /// The name of the tensor.
        tensor: String,
        /// The index of the element, in row-major order.
        index: usize,
        /// The value of the element.
        value: f64,
    },
    /// The step count is above its limit.
    #[error("the step count is {steps}; it must be at most {most}")]
    Steps {
        /// The step count.
        steps: u64,
        /// The largest valid step count.
        most: u64,
    },
    /// The optimizer made more steps than the training.
    #[error("the optimizer's step count is {optimizer_steps}; it must be at most the step count, which is {steps}")]
    OptimizerSteps {
        /// The optimizer's step count.
        optimizer_steps: u64,
        /// The step count, skipped steps included.
        steps: u64,
    },
    /// The loss scale is not a positive number.
    #[error("the loss scale is {}; it must be a positive number", number(*scale))]
    LossScale {
        /// The loss scale.
        scale: f64,
    },
    /// The header of a tensor file, or the index, cannot be written.
    #[error(
        "cannot write {} as safetensors: {}; spread its tensors over more groups, or shorten their names",
        Printable::new(file),
        Printable::new(reason).at_most(MOST_REASON)
    )]
    Header {
        /// The name of the file.
        file: String,
        /// The reason.
        reason: String,
    },
    /// The manifest could not be read back.
    #[error(
        "the manifest of {bytes} bytes could not be read back: {}; make `run` smaller and less deeply nested",
        Printable::new(reason).at_most(MOST_REASON)
    )]
    Manifest {
        /// The bytes of the manifest; 0 if it has no JSON form at all.
        bytes: usize,
        /// The reason.
        reason: String,
    },
    /// The thread that writes could not be started.
    #[error("cannot start the thread that writes checkpoints; raise the limit on threads (ulimit -u)")]
    Thread {
        /// The error of the operating system.
        source: io::Error,
    },
    /// The thread that writes panicked.
    #[error(
        "the thread that writes checkpoints panicked: {}; resume from the latest checkpoint",
        Printable::new(message).at_most(MOST_REASON)
    )]
    Panicked {
        /// The message of the panic.
        message: String,
    },
}

impl CheckpointError {
    /// The most bytes of a message, as `Display` and as `Debug`.
    pub const MOST_BYTES: usize = 1_000;

    /// Makes a [`CheckpointError::Write`] for `map_err`.
    pub(crate) fn write(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Write { doing, path: path.to_path_buf(), source }
    }
}

impl fmt::Debug for CheckpointError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = self.to_string();
        let mut cause = self.source();
        while let Some(error) = cause {
            text.push_str(&format!(": {error}"));
            cause = error.source();
        }
        write!(f, "{}", Printable::new(text).at_most(Self::MOST_BYTES))
    }
}

/// Shows the only path of a message.
fn alone(path: &Path) -> Printable<'_> {
    Printable::new(path.to_string_lossy()).at_most(MOST_PATH)
}

/// Shows one of the two paths of a message.
fn one_of_two(path: &Path) -> Printable<'_> {
    Printable::new(path.to_string_lossy()).at_most(MOST_OF_TWO)
}

/// Returns the advice for a damaged checkpoint.
fn recovery(damage: &Damage, older: Option<&Path>) -> String {
    match older {
        _ if matches!(damage, Damage::Io(error) if error.kind() == io::ErrorKind::PermissionDenied) => {
            "make it and its folder readable".into()
        }
        Some(older) => format!("resume from an older checkpoint, such as {}", one_of_two(older)),
        None => "the folder has no older checkpoint: restore this one from a copy, or start a new training".into(),
    }
}

fn bytes(expected: Option<usize>) -> String {
    expected.map_or_else(|| "a number of bytes that overflows or is not whole".into(), |bytes| bytes.to_string())
}
