//! The errors of reading and writing checkpoints: [`CheckpointError`]. Every error message ends with the fix.
//!
//! Input: the values of a failure, such as a path and a [`Damage`]. Output: an error with a message of bounded length.
//! The code here must not access the disk, or show untrusted text other than as [`Printable`].

use std::path::{Path, PathBuf};
use std::{fmt, io};

use safetensors::Dtype;

use crate::damage::Damage;
use crate::printable::{Printable, number};

/// The most bytes of a path in an error message about a checkpoint, if the message has one path. A longer path is cut.
const MOST_PATH: usize = 600;
/// The maximum length, in bytes, of each path in an error message about a checkpoint that has two paths. A longer path
/// is cut.
const MOST_OF_TWO: usize = 300;
/// The most bytes of a quoted reason, such as a parser's message, in an error message about a checkpoint. A longer
/// reason is cut.
const MOST_REASON: usize = 500;

/// Why a checkpoint cannot be read or written: the error of all functions of this crate that access checkpoints.
///
/// `Display` is safe to print, whatever the checkpoint contains: names and paths are shown as [`Printable`], and the
/// message has at most [`MOST_BYTES`](Self::MOST_BYTES). `Debug` adds the causes to the message, under the same rules.
/// The fields contain names and paths unchanged.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The path that was given for reading a checkpoint does not exist.
    #[error("{} does not exist; give the path of a checkpoint, or of a folder of checkpoints", alone(path))]
    PathNotFound {
        /// The path that the caller gave for reading a checkpoint. Nothing exists there.
        path: PathBuf,
    },
    /// The path that was given for reading a checkpoint cannot be accessed, for example for lack of permission.
    #[error("cannot access {}; make it readable", alone(path))]
    Look {
        /// The path from which a checkpoint was to be read. The operating system cannot access it.
        path: PathBuf,
        /// The error of the operating system from accessing the path of a checkpoint.
        source: io::Error,
    },
    /// The path that was given for reading a checkpoint is not a folder, or a part of the path is not.
    #[error("{} is not a folder; give the path of a checkpoint, or of a folder of checkpoints", alone(path))]
    NotAFolder {
        /// The path where the caller expected a checkpoint, or the part of that path that is not a folder.
        path: PathBuf,
    },
    /// The folder that was given for reading a checkpoint contains no checkpoint yet.
    #[error("no checkpoint in {}; train with --checkpoint first", alone(path))]
    NoCheckpoint {
        /// The path of the folder that contains no checkpoint yet.
        path: PathBuf,
    },
    /// The folder that was given for reading a checkpoint is neither a checkpoint nor a folder of checkpoints. It
    /// contains other things, but no checkpoint and no `manifest.json`, the JSON file of metadata of a checkpoint.
    #[error(
        "{} is neither a checkpoint (there is no manifest.json) nor a folder of checkpoints (with names such as \
         000001-step-100); give the path of one",
        alone(path)
    )]
    Neither {
        /// The path of the folder that is neither a checkpoint nor a folder of checkpoints.
        path: PathBuf,
    },
    /// The entry with the name of the latest checkpoint is not a folder. For example, the checkpoint was moved, and a
    /// symbolic link to it was left behind. No older checkpoint is taken silently.
    #[error(
        "{}, which has the name of the latest checkpoint, is {found} and not a folder; give the path of the checkpoint \
         to read, or move this entry away",
        alone(path)
    )]
    LatestIsNoFolder {
        /// The path of the file or link that has the name of the latest checkpoint.
        path: PathBuf,
        /// The kind of thing that has the name of the latest checkpoint, such as "a symbolic link".
        found: &'static str,
    },
    /// The checkpoint was removed while it was opened or read, for example by a run that saves newer ones.
    #[error("{} was removed while it was read; read the latest checkpoint of its folder", alone(path))]
    Removed {
        /// The path of the checkpoint that was removed while it was opened or read.
        path: PathBuf,
    },
    /// The format of the checkpoint is newer than the formats that this version of the crate can read.
    #[error(
        "{} was written by a newer stageline: its format is {found}, and this version reads formats up to {known}; \
         resume with the newer stageline",
        alone(path)
    )]
    Newer {
        /// The path of the checkpoint's `manifest.json`.
        path: PathBuf,
        /// The version of the format that the manifest states.
        found: u64,
        /// The newest version of the checkpoint format that this version of the crate can read.
        known: u32,
    },
    /// A file of the checkpoint was damaged or changed after it was written.
    #[error("{} {damage}; {}", one_of_two(path), recovery(damage, older.as_deref()))]
    Damaged {
        /// The path of the damaged checkpoint file.
        path: PathBuf,
        /// The fault of the damaged checkpoint file, such as a length that differs from the recorded one.
        damage: Box<Damage>,
        /// The path of the next older checkpoint in the same folder, as a place to resume from; `None` if there is
        /// none. That checkpoint has not been validated.
        older: Option<PathBuf>,
    },
    /// Another [`Store`](crate::Store) has locked the folder of checkpoints and writes into it.
    #[error("{} is in use by another run that writes checkpoints; end it, or give another folder", alone(path))]
    InUse {
        /// The path of the folder of checkpoints that another process, or another store of this process, has locked.
        path: PathBuf,
    },
    /// The folder of checkpoints cannot be created, because its path, or a part of the path, is something other than a
    /// folder.
    #[error("{} is {found}; give the path of a folder, which is created if it does not exist", alone(path))]
    InTheWay {
        /// The path where a folder of checkpoints was to be created, or the part of that path that is something other
        /// than a folder.
        path: PathBuf,
        /// The kind of thing that blocks the path of the new folder of checkpoints, such as "a file".
        found: &'static str,
    },
    /// The operating system refuses an operation that saves a checkpoint, such as creating, writing, syncing or
    /// renaming a file.
    #[error(
        "cannot {doing} {}; free space on its disk, or make the folder writable; earlier checkpoints are untouched",
        alone(path)
    )]
    Write {
        /// The operation that failed while a checkpoint was saved, as a verb for the error message, such as "create the
        /// folder".
        doing: &'static str,
        /// The path of the file or folder on which an operation failed while a checkpoint was saved.
        path: PathBuf,
        /// The error of the operating system for the operation that failed while a checkpoint was saved.
        source: io::Error,
    },
    /// The new checkpoint is complete and has its final name, but a power loss may remove it. The folder could not be
    /// synced, and the rename to this name could not be undone. No old checkpoint is removed.
    #[error(
        "{} is complete, but a power loss may remove it: its folder cannot be synced; check the disk, then write \
         another checkpoint; earlier checkpoints are untouched",
        alone(published)
    )]
    NotDurable {
        /// The path of the new checkpoint, which is complete but which a power loss may remove.
        published: PathBuf,
        /// The error of the operating system from syncing the folder of checkpoints to disk.
        source: io::Error,
        /// The error of the operating system from undoing the rename of the new checkpoint.
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
        /// The path of the new checkpoint, which is complete although an old one could not be removed.
        published: PathBuf,
        /// The operation that failed during the removal of old checkpoints, as a verb for the error message, such as
        /// "remove".
        doing: &'static str,
        /// The path of the old checkpoint that could not be renamed or removed, under its temporary name if it was
        /// renamed already. If the folder of checkpoints could not be listed or synced, the path of that folder.
        path: PathBuf,
        /// The first error of the operating system in the removal of old checkpoints.
        source: io::Error,
    },
    /// The folder of checkpoints contains a checkpoint with the highest possible sequence number, 2^64 - 1, so a new
    /// one cannot get the next number.
    #[error(
        "{} has the highest possible sequence number; move it out of the folder, or give another folder",
        alone(path)
    )]
    LastNumber {
        /// The path of the checkpoint whose sequence number is the highest possible one, 2^64 - 1.
        path: PathBuf,
    },
    /// A tensor to save in a checkpoint has too few or too many bytes for its type and shape.
    #[error(
        "the tensor `{}` has {found} bytes, but {dtype} of shape {} takes {}; pass exactly the bytes of its elements",
        Printable::new(tensor),
        Printable::new(format!("{shape:?}")),
        bytes(*expected)
    )]
    Length {
        /// The name of the tensor to save that has the wrong number of bytes.
        tensor: String,
        /// The type of the elements of the tensor to save.
        dtype: Dtype,
        /// The length of each dimension of the tensor to save.
        shape: Vec<usize>,
        /// The number of bytes that the tensor to save has, which does not fit its type and shape.
        found: usize,
        /// The number of bytes that the tensor to save needs, according to its type and shape; `None` if the number
        /// overflows or is not whole.
        expected: Option<usize>,
    },
    /// A tensor to save in a checkpoint has the name `__metadata__`, which the safetensors format reserves.
    #[error("no tensor can be named `{}`: the format reserves this name; rename the tensor", Printable::new(tensor))]
    Reserved {
        /// The reserved name of the tensor that cannot be saved, `__metadata__`.
        tensor: String,
    },
    /// An element of a tensor to save in a checkpoint is infinite or NaN.
    #[error(
        "the tensor `{}` has {} at index {index}; no checkpoint is written, and earlier ones stay: resume from the \
         latest with a lower learning rate, or with gradients clipped",
        Printable::new(tensor),
        number(*value)
    )]
    NotFinite {
        /// The name of the tensor to save that contains an infinity or NaN.
        tensor: String,
        /// The position of the first infinity or NaN among the elements of the tensor to save, in row-major order,
        /// counted from 0.
        index: usize,
        /// The first infinity or NaN among the elements of the tensor to save, in row-major order.
        value: f64,
    },
    /// The number of completed training steps in the checkpoint to save is larger than the limit for checkpoints.
    #[error("the step count is {steps}; it must be at most {most}")]
    Steps {
        /// The number of completed training steps in the checkpoint to save, which is above the limit.
        steps: u64,
        /// The largest number of completed training steps that a checkpoint may state, 2^53.
        most: u64,
    },
    /// In the checkpoint to save, the number of optimizer steps is larger than the number of completed training steps.
    #[error("the optimizer's step count is {optimizer_steps}; it must be at most the step count, which is {steps}")]
    OptimizerSteps {
        /// The number of training steps where the optimizer updated the parameters, according to the checkpoint to
        /// save.
        optimizer_steps: u64,
        /// The number of completed training steps in the checkpoint to save, including those that skipped the
        /// optimizer, for example after an overflow of the gradients.
        steps: u64,
    },
    /// The loss scale of the checkpoint to save (the factor on the loss in mixed precision) is not positive and finite.
    #[error("the loss scale is {}; it must be a positive number", number(*scale))]
    LossScale {
        /// The loss scale in the checkpoint to save (the factor on the loss in mixed precision); not positive or not
        /// finite.
        scale: f64,
    },
    /// The header of a checkpoint's tensor file, or the index of the parameters, cannot be written.
    #[error(
        "cannot write {} as safetensors: {}; give its tensors shorter names, or names of more layers, because each layer has a file",
        Printable::new(file),
        Printable::new(reason).at_most(MOST_REASON)
    )]
    Header {
        /// The name, in the checkpoint's folder, of the tensor file or index that cannot be written.
        file: String,
        /// Why the file cannot be written: its header or index is too long, for example.
        reason: String,
    },
    /// The manifest of the checkpoint to save cannot be written. A reader would refuse its text, or would not get the
    /// same values back from it. The manifest is `manifest.json`, the checkpoint's JSON file of metadata.
    #[error(
        "the manifest of {bytes} bytes could not be read back: {}; make `run` smaller and less deeply nested",
        Printable::new(reason).at_most(MOST_REASON)
    )]
    Manifest {
        /// The length in bytes of the JSON text of the manifest, which is not written because it could not be read
        /// back. It is 0 if the manifest cannot be converted to JSON.
        bytes: usize,
        /// Why the manifest, the checkpoint's JSON file of metadata, would not survive being written and read back. For
        /// example, its text is longer than 64 MiB, its values are nested too deeply, or a value would change.
        reason: String,
    },
    /// The background thread of a [`Writer`](crate::Writer), which saves checkpoints, could not be started.
    #[error("cannot start the thread that writes checkpoints; raise the limit on threads (ulimit -u)")]
    Thread {
        /// The error of the operating system from starting the background thread that saves checkpoints.
        source: io::Error,
    },
    /// The background thread of a [`Writer`](crate::Writer), which saves checkpoints, panicked.
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
    /// The largest length, in bytes, of the message of an error about a checkpoint ([`CheckpointError`]), as `Display`
    /// and as `Debug`.
    pub const MOST_BYTES: usize = 1_000;

    /// Returns a closure for `map_err` that converts an operating system's error to a [`CheckpointError::Write`].
    /// `doing` is the failed operation as a verb, such as "sync", and `path` is the file or folder on which it failed.
    pub(crate) fn write(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Write { doing, path: path.to_path_buf(), source }
    }
}

impl fmt::Debug for CheckpointError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Printable::with_causes(self).at_most(Self::MOST_BYTES))
    }
}

/// Returns a path as printable text of at most 600 bytes, for a checkpoint's error message that shows no other path.
fn alone(path: &Path) -> Printable<'_> {
    Printable::new(path.to_string_lossy()).at_most(MOST_PATH)
}

/// Returns a path as printable text of at most 300 bytes, for a checkpoint's error message that shows two paths.
fn one_of_two(path: &Path) -> Printable<'_> {
    Printable::new(path.to_string_lossy()).at_most(MOST_OF_TWO)
}

/// Returns the last part of the error message about a damaged checkpoint, which says what to do. The user can make the
/// file readable, resume from the older checkpoint at `older`, or restore the checkpoint from a copy.
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
