//! The problems that make a checkpoint file unusable: [`Damage`].
//!
//! Input: the expected and the actual state of a file. Output: a [`Damage`] with its message. The code here must not
//! access the disk, or print text from a file other than as [`Printable`].

use std::{fmt, io};

use safetensors::Dtype;

use crate::printable::{Printable, number};

/// Length limit, in bytes, for the reason why a checkpoint file is malformed, such as a parser's message; a longer one
/// is truncated.
const MOST_REASON: usize = 300;

/// The problem that makes a checkpoint file unusable when the checkpoint is read, such as a wrong length or hash.
///
/// If the damaged file is the manifest (`manifest.json`, the checkpoint's list of files and tensors), the problem may
/// be in its entry for another file. An example is an impossible length of that file.
///
/// `Display` and `Debug` give the same text, which is as safe to print as the text of a
/// [`CheckpointError`](crate::CheckpointError). The fields contain text from the file: print them as [`Printable`].
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Damage {
    /// A file that the checkpoint must contain does not exist.
    #[error("is missing")]
    Missing,
    /// A checkpoint's file or folder has been replaced by another kind of entry, such as a symbolic link.
    #[error("is {found}, where a checkpoint has {expected}")]
    Kind {
        /// Kind of the entry on disk, such as "a symbolic link", where the checkpoint should have a file or folder.
        found: &'static str,
        /// Kind of entry that the checkpoint should have at this path: "a file" or "a folder".
        expected: &'static str,
    },
    /// The operating system cannot read a file of the checkpoint; the value is the operating system's error.
    #[error("cannot be read: {}", Printable::new(.0.to_string()))]
    Io(io::Error),
    /// The length of a checkpoint file differs from the length that the manifest lists for it.
    #[error("has {found} bytes, but the manifest lists {expected}")]
    Size {
        /// The length in bytes of the checkpoint file on disk, which differs from the length in the manifest.
        found: u64,
        /// The length in bytes that the manifest of the checkpoint lists for the file.
        expected: u64,
    },
    /// The manifest file of a checkpoint exceeds the length limit for manifests.
    #[error("has {found} bytes, but such a file has at most {most}")]
    TooLong {
        /// The length in bytes of the checkpoint's manifest file on disk, which exceeds the limit.
        found: u64,
        /// The maximum length in bytes of a checkpoint's manifest file, 64 MiB.
        most: u64,
    },
    /// A file of the checkpoint does not fit into host memory.
    #[error("has {bytes} bytes, which do not fit into memory")]
    Memory {
        /// The length in bytes of the checkpoint file that does not fit into host memory.
        bytes: u64,
    },
    /// The SHA-256 of a checkpoint file differs from the recorded one, so the file has changed since it was written.
    #[error("was changed: its SHA-256 is {}, but {} was recorded", Printable::new(found), Printable::new(expected))]
    Hash {
        /// The SHA-256 of the contents of the checkpoint file on disk, in 64 hexadecimal digits.
        found: String,
        /// The SHA-256 that the manifest records for the checkpoint file; if the damaged file is the manifest itself,
        /// the SHA-256 at the manifest's end. It should be 64 hexadecimal digits.
        expected: String,
    },
    /// The checkpoint's manifest does not end with its own SHA-256 (the seal), so it was truncated or changed.
    #[error("does not end with its own SHA-256: it was cut short or changed")]
    NoSeal,
    /// The contents of a checkpoint file are malformed, for example invalid JSON; the value describes the problem in
    /// words.
    #[error("is malformed: {}", Printable::new(.0).at_most(MOST_REASON))]
    Form(String),
    /// The checkpoint's manifest lists a file, but assigns none of the checkpoint's tensors to it.
    #[error("lists the file `{}`, to which no tensor belongs", Printable::new(file))]
    Foreign {
        /// The name of the file that the checkpoint's manifest lists without assigning a tensor to it.
        file: String,
    },
    /// The checkpoint's manifest lists a file twice.
    #[error("lists the file `{}` twice", Printable::new(file))]
    Twice {
        /// The name of the file that the checkpoint's manifest lists twice.
        file: String,
    },
    /// The checkpoint's manifest does not list a file that the checkpoint must have: a file that contains one of its
    /// tensors, or the index `model.safetensors.index.json`.
    #[error("does not list the file `{}`, which this checkpoint must have", Printable::new(file))]
    Unlisted {
        /// The name of the checkpoint file that is missing from the manifest's list of files.
        file: String,
    },
    /// The checkpoint's manifest assigns a tensor to the wrong file. The name of a tensor determines its file.
    #[error(
        "places the tensor `{}` in `{}`; it belongs in `{}`",
        Printable::new(tensor),
        Printable::new(found),
        Printable::new(expected)
    )]
    Place {
        /// The name of the tensor that the checkpoint's manifest assigns to the wrong file.
        tensor: String,
        /// Name of the wrong file that the checkpoint's manifest states for the tensor.
        found: String,
        /// Name of the right file for the tensor, which follows from the tensor's name.
        expected: String,
    },
    /// The manifest lists an impossible dtype and shape for a tensor of the checkpoint. Either the tensor's size is not
    /// a whole number of bytes, or this size or the total size of its file's tensors overflows.
    #[error(
        "gives the tensor `{}` the type {dtype} and the shape {}, whose size overflows or is not a whole number of bytes",
        Printable::new(tensor),
        Printable::new(format!("{shape:?}"))
    )]
    Shape {
        /// The name of the checkpoint's tensor whose dtype and shape in the manifest are impossible.
        tensor: String,
        /// The dtype of the tensor according to the checkpoint's manifest.
        dtype: Dtype,
        /// The shape (the length of each dimension) of the tensor according to the checkpoint's manifest.
        shape: Vec<usize>,
    },
    /// The checkpoint's manifest lists an impossible length for a file. The length is too short or too long for the
    /// file's header and tensors, or exceeds the limit for the index `model.safetensors.index.json`.
    #[error(
        "gives the file `{}` {found} bytes, which is impossible with {tensors} bytes of tensors",
        Printable::new(file)
    )]
    Total {
        /// Name of the checkpoint file with an impossible length in the manifest.
        file: String,
        /// The length in bytes that the manifest lists for the file, which is too short or too long for the file's
        /// contents.
        found: u64,
        /// The total size in bytes of the file's tensors; 0 for the index, which has no tensors.
        tensors: u64,
    },
    /// A tensor file of the checkpoint lacks a tensor that the manifest lists for the file.
    #[error("lacks the tensor `{}`", Printable::new(tensor))]
    Lacks {
        /// The name of the tensor that the manifest lists for a checkpoint file, but that the file does not contain.
        tensor: String,
    },
    /// A tensor file of the checkpoint contains more tensors than the manifest lists for the file.
    #[error("has {found} tensors, but the manifest lists {expected}")]
    Count {
        /// The number of tensors that the checkpoint file contains, which is larger than `expected`.
        found: usize,
        /// The number of tensors that the manifest of the checkpoint lists for the file.
        expected: usize,
    },
    /// A tensor of the checkpoint has a dtype or shape in its file that differs from the manifest.
    #[error(
        "has the tensor `{}` as {}, but the manifest has {}",
        Printable::new(tensor),
        Printable::new(found),
        Printable::new(expected)
    )]
    Differs {
        /// The name of the checkpoint's tensor whose dtype or shape differs between its file and the manifest.
        tensor: String,
        /// The dtype and shape that the tensor has in its file, as a string.
        found: String,
        /// The dtype and shape that the manifest lists for the tensor, as a string.
        expected: String,
    },
    /// An element of a tensor in a checkpoint file is infinite or NaN.
    #[error("has {} in the tensor `{}`, at index {index}", number(*value), Printable::new(tensor))]
    NotFinite {
        /// The name of the checkpoint's tensor that contains an infinity or NaN.
        tensor: String,
        /// The index of the first infinity or NaN among the elements of a checkpoint's tensor, counted from 0 in
        /// row-major order.
        index: usize,
        /// The first infinity or NaN among the elements of a checkpoint's tensor, in row-major order.
        value: f64,
    },
    /// The checkpoint's manifest states more completed training steps than the limit of 2^53.
    #[error("says that it was saved after {steps} steps, more than the {most} that are possible")]
    Steps {
        /// The number of completed training steps according to the checkpoint's manifest, which is too large.
        steps: u64,
        /// The maximum number of completed training steps in a checkpoint, 2^53.
        most: u64,
    },
    /// The checkpoint's manifest lists more optimizer steps than completed training steps.
    #[error("has {optimizer_steps} optimizer steps, but only {steps} steps in all")]
    OptimizerSteps {
        /// Number of training steps with an optimizer update in the checkpoint's manifest, which is larger than
        /// `steps`.
        optimizer_steps: u64,
        /// The number of completed training steps in the checkpoint's manifest, including those that skipped the
        /// optimizer update, for example after a gradient overflow.
        steps: u64,
    },
    /// The loss scale in the checkpoint's manifest (the loss multiplier of mixed-precision training) is not a positive
    /// finite number.
    #[error("has the loss scale {}, which is not a positive number", number(*scale))]
    LossScale {
        /// The loss scale in the checkpoint's manifest, which is not a positive finite number.
        scale: f64,
    },
    /// The checkpoint's index file, `model.safetensors.index.json`, does not list the same parameters and files as the
    /// manifest.
    #[error("does not list the parameters as the manifest does")]
    Index,
}

impl Damage {
    /// Creates a [`Damage::Form`] for a file with malformed contents. `reason` says why they are malformed. It may
    /// quote the file, so it is escaped and truncated to 300 bytes.
    pub(crate) fn malformed(reason: impl fmt::Display) -> Self {
        Self::Form(Printable::new(reason.to_string()).at_most(MOST_REASON).to_string())
    }
}

impl fmt::Debug for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}
