//! The errors of reading and writing checkpoints: [`CheckpointError`]. Every error message ends with the fix.
//!
//! Input: the details of a failure, such as a path and a [`Damage`]. Output: an error with a message of bounded length.
//! The code here must not access the disk, or print untrusted text other than as [`Printable`].

use std::path::{Path, PathBuf};
use std::{fmt, io};

use safetensors::Dtype;

use crate::damage::Damage;
use crate::printable::{Printable, number};

/// Length limit, in bytes, for the only path in an error message about a checkpoint; a longer path is truncated.
const MOST_PATH: usize = 600;
/// Length limit, in bytes, for each of two paths in an error message about a checkpoint; a longer path is truncated.
const MOST_OF_TWO: usize = 300;
/// Length limit, in bytes, for a quoted reason, such as a parser's message, in an error message about a checkpoint; a
/// longer reason is truncated.
const MOST_REASON: usize = 500;

/// The error of all functions of this crate that access checkpoints: why a checkpoint cannot be read or written.
///
/// `Display` is safe to print, whatever the checkpoint contains: names and paths are shown as [`Printable`], and the
/// message has at most [`MOST_BYTES`](Self::MOST_BYTES). `Debug` adds the causes to the message, under the same rules.
/// The fields contain names and paths unchanged.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// Nothing exists at the path of the checkpoint to read. Give the path of a checkpoint, or of a folder of
    /// checkpoints.
    #[error("{} does not exist; give the path of a checkpoint, or of a folder of checkpoints", alone(path))]
    PathNotFound {
        /// The path that the caller gave for reading a checkpoint. Nothing exists there.
        path: PathBuf,
    },
    /// The path of a checkpoint to read cannot be accessed, for example for lack of permission. Make it readable.
    #[error("cannot access {}; make it readable", alone(path))]
    Look {
        /// Inaccessible path of the checkpoint to read.
        path: PathBuf,
        /// The operating system's error from accessing the path of a checkpoint.
        source: io::Error,
    },
    /// The path of a checkpoint to read, or one of its parents, is not a folder. Give the path of a checkpoint, or of a
    /// folder of checkpoints.
    #[error("{} is not a folder; give the path of a checkpoint, or of a folder of checkpoints", alone(path))]
    NotAFolder {
        /// The path of the checkpoint to read, or that of its parent that is not a folder.
        path: PathBuf,
    },
    /// The folder of checkpoints to read from contains no checkpoint yet. Train with `--checkpoint` first.
    #[error("no checkpoint in {}; train with --checkpoint first", alone(path))]
    NoCheckpoint {
        /// The path of the folder that contains no checkpoint yet.
        path: PathBuf,
    },
    /// The folder to read from is neither a checkpoint (it has no `manifest.json`) nor a folder of checkpoints (with
    /// names such as `000001-step-100`). Give the path of one.
    #[error(
        "{} is neither a checkpoint (there is no manifest.json) nor a folder of checkpoints (with names such as \
         000001-step-100); give the path of one",
        alone(path)
    )]
    Neither {
        /// The path of the folder that is neither a checkpoint nor a folder of checkpoints.
        path: PathBuf,
    },
    /// The file system entry with the name of the latest checkpoint is not a folder. For example, the checkpoint was
    /// moved, and a symbolic link to it was left behind. No older checkpoint is read silently instead.
    #[error(
        "{}, which has the name of the latest checkpoint, is {found} and not a folder; give the path of the checkpoint \
         to read, or move this entry away",
        alone(path)
    )]
    LatestIsNoFolder {
        /// The path of the file or link that has the latest checkpoint's name.
        path: PathBuf,
        /// The kind of entry that has the latest checkpoint's name instead of a folder, such as "a symbolic link".
        found: &'static str,
    },
    /// The checkpoint was removed while it was being opened or read, for example by a run that saves newer ones. Read
    /// the latest checkpoint in its folder instead.
    #[error("{} was removed while it was read; read the latest checkpoint of its folder", alone(path))]
    Removed {
        /// The path of the checkpoint that was removed while it was being opened or read.
        path: PathBuf,
    },
    /// The checkpoint's format version is newer than the versions that this release of the crate can read. Resume with
    /// a newer release.
    #[error(
        "{} was written by a newer stageline: its format is {found}, and this version reads formats up to {known}; \
         resume with the newer stageline",
        alone(path)
    )]
    Newer {
        /// The path of the checkpoint's `manifest.json`.
        path: PathBuf,
        /// The version of the checkpoint format according to the manifest.
        found: u64,
        /// The newest version of the checkpoint format that this release of the crate can read.
        known: u32,
    },
    /// A file of the checkpoint is missing, unreadable, damaged or was changed after it was written. Resume from an
    /// older checkpoint, or restore this one from a copy.
    #[error("{} {damage}; {}", one_of_two(path), recovery(damage, older.as_deref()))]
    Damaged {
        /// The path of the damaged checkpoint file.
        path: PathBuf,
        /// The problem with the damaged checkpoint file, such as a length that differs from the recorded one.
        damage: Box<Damage>,
        /// Next older checkpoint in the same folder as the damaged one, as a suggestion to resume from; `None` if there
        /// is none. It has not been validated.
        older: Option<PathBuf>,
    },
    /// Another [`Store`](crate::Store) has locked the folder of checkpoints, because it writes into the folder. End the
    /// other run, or give another folder.
    #[error("{} is in use by another run that writes checkpoints; end it, or give another folder", alone(path))]
    InUse {
        /// The path of the folder of checkpoints that another process, or another store of this process, has locked.
        path: PathBuf,
    },
    /// The folder of checkpoints cannot be created, because something other than a folder is at its path or at one of
    /// its parents.
    #[error("{} is {found}; give the path of a folder, which is created if it does not exist", alone(path))]
    InTheWay {
        /// The path of the folder of checkpoints to create, or the parent of that path that is something other than a
        /// folder.
        path: PathBuf,
        /// The kind of entry that blocks the path of the new folder of checkpoints, such as "a file".
        found: &'static str,
    },
    /// The operating system failed to access a file or folder while a [`Store`](crate::Store) was being opened or was
    /// saving a checkpoint. For example, it failed to create, write, sync or rename the file. Free disk space, or make
    /// the folder writable.
    #[error(
        "cannot {doing} {}; free space on its disk, or make the folder writable; earlier checkpoints are untouched",
        alone(path)
    )]
    Write {
        /// The failed operation of a [`Store`](crate::Store), as a verb for the error message, such as "create the
        /// folder".
        doing: &'static str,
        /// The path of the file or folder on which the operation of a [`Store`](crate::Store) failed.
        path: PathBuf,
        /// The operating system's error from the failed operation of a [`Store`](crate::Store).
        source: io::Error,
    },
    /// The new checkpoint is complete and has its final name, but a power loss may remove it: its folder could not be
    /// synced to disk, and the rename could not be undone. Check the disk, then save again. No old checkpoint is
    /// removed.
    #[error(
        "{} is complete, but a power loss may remove it: its folder cannot be synced; check the disk, then write \
         another checkpoint; earlier checkpoints are untouched",
        alone(published)
    )]
    NotDurable {
        /// The path of the new checkpoint, which is complete, but which a power loss may remove.
        published: PathBuf,
        /// The operating system's error from syncing the folder of checkpoints to disk.
        source: io::Error,
        /// The operating system's error from undoing the rename of the new checkpoint.
        undo: io::Error,
    },
    /// The new checkpoint is complete and durable, but an old checkpoint could not be removed. Make the folder
    /// writable.
    #[error(
        "{} is written, but old checkpoints remain: cannot {doing} {}; make the folder writable, or keep more \
         checkpoints",
        one_of_two(published),
        one_of_two(path)
    )]
    Prune {
        /// The path of the new checkpoint, which is complete although an old one could not be removed.
        published: PathBuf,
        /// The operation that failed while old checkpoints were being removed, as a verb for the error message, such as
        /// "remove".
        doing: &'static str,
        /// The path of the old checkpoint that could not be renamed or removed. It ends with the name `.removing-...`
        /// if the checkpoint was already renamed. If the folder of checkpoints could not be listed or synced, it is the
        /// path of that folder.
        path: PathBuf,
        /// The operating system's first error from removing old checkpoints.
        source: io::Error,
    },
    /// The folder of checkpoints contains a checkpoint with the highest possible sequence number, 2^64 - 1, so there is
    /// no next number for a new checkpoint. Move that checkpoint out of the folder, or give another folder.
    #[error(
        "{} has the highest possible sequence number; move it out of the folder, or give another folder",
        alone(path)
    )]
    LastNumber {
        /// The path of the checkpoint whose sequence number is the highest possible one, 2^64 - 1.
        path: PathBuf,
    },
    /// A tensor to save in a checkpoint has too few or too many bytes. Pass exactly the bytes that its dtype and shape
    /// need.
    #[error(
        "the tensor `{}` has {found} bytes, but {dtype} of shape {} takes {}; pass exactly the bytes of its elements",
        Printable::new(tensor),
        Printable::new(format!("{shape:?}")),
        bytes(*expected)
    )]
    Length {
        /// The name of the tensor to save that has the wrong number of bytes.
        tensor: String,
        /// The dtype of the tensor to save that has the wrong number of bytes.
        dtype: Dtype,
        /// The shape (the length of each dimension) of the tensor to save that has the wrong number of bytes.
        shape: Vec<usize>,
        /// The number of bytes of the tensor to save, which does not match its dtype and shape.
        found: usize,
        /// The number of bytes that the tensor to save needs according to its dtype and shape; `None` if the number
        /// overflows or is not whole.
        expected: Option<usize>,
    },
    /// A tensor to save in a checkpoint has the name `__metadata__`, which the safetensors format reserves.
    #[error("no tensor can be named `{}`: the format reserves this name; rename the tensor", Printable::new(tensor))]
    Reserved {
        /// The reserved name of the tensor that cannot be saved, `__metadata__`.
        tensor: String,
    },
    /// An element of a tensor to save in a checkpoint is infinite or NaN. Resume from the latest checkpoint with a
    /// lower learning rate, or with gradient clipping.
    #[error(
        "the tensor `{}` has {} at index {index}; no checkpoint is written, and earlier ones stay: resume from the \
         latest with a lower learning rate, or with gradients clipped",
        Printable::new(tensor),
        number(*value)
    )]
    NotFinite {
        /// The name of the tensor to save that contains an infinity or NaN.
        tensor: String,
        /// The index of the first infinity or NaN among the elements of the tensor to save, counted from 0 in row-major
        /// order.
        index: usize,
        /// The first infinity or NaN among the elements of the tensor to save, in row-major order.
        value: f64,
    },
    /// The number of completed training steps in the checkpoint to save exceeds the limit for checkpoints.
    #[error("the step count is {steps}; it must be at most {most}")]
    Steps {
        /// The number of completed training steps in the checkpoint to save, which exceeds the limit.
        steps: u64,
        /// The maximum number of completed training steps in a checkpoint, 2^53.
        most: u64,
    },
    /// The checkpoint to save has more optimizer steps than completed training steps.
    #[error("the optimizer's step count is {optimizer_steps}; it must be at most the step count, which is {steps}")]
    OptimizerSteps {
        /// Number of training steps with an optimizer update in the checkpoint to save, which is larger than `steps`.
        optimizer_steps: u64,
        /// The number of completed training steps in the checkpoint to save, including those that skipped the optimizer
        /// update, for example after a gradient overflow.
        steps: u64,
    },
    /// The loss scale of the checkpoint to save (the factor on the loss in mixed precision) is not positive and finite.
    #[error("the loss scale is {}; it must be a positive number", number(*scale))]
    LossScale {
        /// The loss scale in the checkpoint to save (the factor on the loss in mixed precision), which is not positive
        /// or not finite.
        scale: f64,
    },
    /// A tensor file or the index of the checkpoint to save cannot be written, for example because its header would be
    /// too long. Give the tensors shorter names, or distribute them among more name prefixes such as `blocks.3`,
    /// because each such prefix has its own file.
    #[error(
        "cannot write {} as safetensors: {}; give its tensors shorter names, or names of more layers, because each layer has a file",
        Printable::new(file),
        Printable::new(reason).at_most(MOST_REASON)
    )]
    Header {
        /// The name, in the checkpoint folder, of the tensor file or index that cannot be written.
        file: String,
        /// The reason why the tensor file or index cannot be written, for example because its header is too long.
        reason: String,
    },
    /// The manifest of the checkpoint to save (`manifest.json`, the JSON file with its metadata) is not written,
    /// because a reader would reject its text or would not get the same values back. Make
    /// [`Checkpoint::run`](crate::Checkpoint::run) smaller and less deeply nested.
    #[error(
        "the manifest of {bytes} bytes could not be read back: {}; make `run` smaller and less deeply nested",
        Printable::new(reason).at_most(MOST_REASON)
    )]
    Manifest {
        /// The length in bytes of the manifest's JSON text, which is not written because it could not be read back. It
        /// is 0 if the manifest cannot be converted to JSON.
        bytes: usize,
        /// The reason why the manifest (the JSON file with the checkpoint's metadata) could not be read back unchanged.
        /// For example, its text is longer than 64 MiB, its values are nested too deeply, or a value would change.
        reason: String,
    },
    /// The background thread of a [`Writer`](crate::Writer), which saves checkpoints, could not be started. Raise the
    /// operating system's limit on threads (`ulimit -u`).
    #[error("cannot start the thread that writes checkpoints; raise the limit on threads (ulimit -u)")]
    Thread {
        /// The operating system's error from starting the background thread that saves checkpoints.
        source: io::Error,
    },
    /// The background thread of a [`Writer`](crate::Writer), which saves checkpoints, panicked. Resume from the latest
    /// checkpoint.
    #[error(
        "the thread that writes checkpoints panicked: {}; resume from the latest checkpoint",
        Printable::new(message).at_most(MOST_REASON)
    )]
    Panicked {
        /// The panic message of the background thread that saves checkpoints.
        message: String,
    },
}

impl CheckpointError {
    /// The maximum length, in bytes, of the message of a [`CheckpointError`], both as `Display` and as `Debug`.
    pub const MOST_BYTES: usize = 1_000;

    /// Returns a closure for `map_err` that converts an operating system's error to a [`CheckpointError::Write`].
    /// `doing` is the failed operation as a verb, such as "sync", and `path` is the affected file or folder.
    pub(crate) fn write(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Write { doing, path: path.to_path_buf(), source }
    }
}

impl fmt::Debug for CheckpointError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Printable::with_causes(self).at_most(Self::MOST_BYTES))
    }
}

/// Formats the only path in an error message about a checkpoint: escapes it, and truncates it to 600 bytes.
fn alone(path: &Path) -> Printable<'_> {
    Printable::new(path.to_string_lossy()).at_most(MOST_PATH)
}

/// Formats one of two paths in an error message about a checkpoint: escapes it, and truncates it to 300 bytes.
fn one_of_two(path: &Path) -> Printable<'_> {
    Printable::new(path.to_string_lossy()).at_most(MOST_OF_TWO)
}

/// Returns the advice at the end of the error message about a damaged checkpoint. The advice is to make the file
/// readable, to resume from the older checkpoint at `older`, or to restore the checkpoint from a copy.
fn recovery(damage: &Damage, older: Option<&Path>) -> String {
    match older {
        _ if matches!(damage, Damage::Io(error) if error.kind() == io::ErrorKind::PermissionDenied) => {
            "make it and its folder readable".into()
        }
        Some(older) => format!("resume from an older checkpoint, such as {}", one_of_two(older)),
        None => "no older checkpoint was found: restore this one from a copy, or start a new training".into(),
    }
}

fn bytes(expected: Option<usize>) -> String {
    expected.map_or_else(|| "a number of bytes that overflows or is not whole".into(), |bytes| bytes.to_string())
}
