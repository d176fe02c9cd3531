//! The reasons why a file of a checkpoint is refused: [`Damage`].
//!
//! Input: what a reader found and what it expected. Output: a reason with its message. The code here must not access
//! the disk, or show text from a file other than as [`Printable`].

use std::{fmt, io};

use safetensors::Dtype;

use crate::printable::{Printable, number};

/// The most bytes of the text that says why a checkpoint file is malformed, such as a parser's message. A longer text
/// is cut.
const MOST_REASON: usize = 300;

/// Why a file of a checkpoint is refused when the checkpoint is read, such as a wrong length or hash.
///
/// If the damaged file is the manifest (`manifest.json`, the checkpoint's list of files and tensors), the fault may be
/// in its entry for another file. An example is an impossible size of that file.
///
/// `Display` and `Debug` give the same text, which is as safe to print as the text of a
/// [`CheckpointError`](crate::CheckpointError). The fields contain text from the file: print them as [`Printable`].
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Damage {
    /// A file that the checkpoint must contain does not exist.
    #[error("is missing")]
    Missing,
    /// Something else, for example a symbolic link, is in the place of a file or folder of the checkpoint.
    #[error("is {found}, where a checkpoint has {expected}")]
    Kind {
        /// The kind of thing that was found in place of a checkpoint's file or folder, such as "a symbolic link".
        found: &'static str,
        /// The kind of thing that a checkpoint must contain in this place: "a file" or "a folder".
        expected: &'static str,
    },
    /// The operating system refuses to read a file of the checkpoint; the value is the operating system's error.
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
    /// The manifest file of a checkpoint is longer than any manifest may be.
    #[error("has {found} bytes, but such a file has at most {most}")]
    TooLong {
        /// The length in bytes of the checkpoint's manifest file on disk, which is above the limit.
        found: u64,
        /// The largest length in bytes that a checkpoint's manifest file may have, 64 MiB.
        most: u64,
    },
    /// A file of the checkpoint does not fit into memory.
    #[error("has {bytes} bytes, which do not fit into memory")]
    Memory {
        /// The length in bytes of the checkpoint file that does not fit into memory.
        bytes: u64,
    },
    /// The SHA-256 of a checkpoint file is not the recorded one, so the file has changed since it was written.
    #[error("was changed: its SHA-256 is {}, but {} was recorded", Printable::new(found), Printable::new(expected))]
    Hash {
        /// The SHA-256 of the contents of the checkpoint file on disk, in 64 hexadecimal digits.
        found: String,
        /// The SHA-256 that the manifest of the checkpoint records for the file or, at its own end, for itself. It
        /// should be 64 hexadecimal digits.
        expected: String,
    },
    /// The manifest of the checkpoint does not end with its own SHA-256 (the seal), so it was cut short or changed.
    #[error("does not end with its own SHA-256: it was cut short or changed")]
    NoSeal,
    /// The contents of a checkpoint file are malformed, for example invalid JSON; the value describes the fault in
    /// words.
    #[error("is malformed: {}", Printable::new(.0).at_most(MOST_REASON))]
    Form(String),
    /// The manifest of the checkpoint lists a file, but places no tensor of the checkpoint in it.
    #[error("lists the file `{}`, to which no tensor belongs", Printable::new(file))]
    Foreign {
        /// The name of the file that the manifest of the checkpoint lists, although it places no tensor in this file.
        file: String,
    },
    /// The manifest of the checkpoint lists a file twice.
    #[error("lists the file `{}` twice", Printable::new(file))]
    Twice {
        /// The name of the file that the manifest of the checkpoint lists twice.
        file: String,
    },
    /// The manifest of the checkpoint does not list a file that the checkpoint must have. This file contains one of its
    /// tensors, or it is the index `model.safetensors.index.json`.
    #[error("does not list the file `{}`, which this checkpoint must have", Printable::new(file))]
    Unlisted {
        /// The name of the checkpoint file that is missing in the manifest's list of files.
        file: String,
    },
    /// The manifest of the checkpoint places a tensor in the wrong file. The name of a tensor determines its file.
    #[error(
        "places the tensor `{}` in `{}`; it belongs in `{}`",
        Printable::new(tensor),
        Printable::new(found),
        Printable::new(expected)
    )]
    Place {
        /// The name of the tensor that the manifest of a checkpoint places in the wrong file.
        tensor: String,
        /// The name of the wrong file, to which the manifest of a checkpoint assigns the tensor.
        found: String,
        /// The name of the file where the tensor belongs, according to the tensor's name.
        expected: String,
    },
    /// The manifest states an impossible type and shape for a tensor of the checkpoint. Either the tensor's size is not
    /// a whole number of bytes, or this size or the total size of its file's tensors overflows.
    #[error(
        "gives the tensor `{}` the type {dtype} and the shape {}, whose size overflows or is not a whole number of bytes",
        Printable::new(tensor),
        Printable::new(format!("{shape:?}"))
    )]
    Shape {
        /// The name of the checkpoint's tensor whose type and shape in the manifest are impossible.
        tensor: String,
        /// The type that the manifest of the checkpoint states for the tensor's elements.
        dtype: Dtype,
        /// The length of each dimension of the tensor, as the manifest of the checkpoint states it.
        shape: Vec<usize>,
    },
    /// The manifest of the checkpoint lists an impossible length for a file. The length is too short or too long for
    /// the file's header and tensors, or above the limit for the index `model.safetensors.index.json`.
    #[error(
        "gives the file `{}` {found} bytes, which is impossible with {tensors} bytes of tensors",
        Printable::new(file)
    )]
    Total {
        /// The name of the checkpoint file for which the manifest lists an impossible length.
        file: String,
        /// The length in bytes that the manifest lists for the file. It is too short or too long for the contents of
        /// the file.
        found: u64,
        /// The total size in bytes of the file's tensors; 0 for the index, which has no tensors.
        tensors: u64,
    },
    /// A tensor file of the checkpoint lacks a tensor that the manifest lists for the file.
    #[error("lacks the tensor `{}`", Printable::new(tensor))]
    Lacks {
        /// The name of the tensor that the manifest lists for a checkpoint file, but that the file lacks.
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
    /// A tensor of the checkpoint has another type or shape in its file than in the manifest.
    #[error(
        "has the tensor `{}` as {}, but the manifest has {}",
        Printable::new(tensor),
        Printable::new(found),
        Printable::new(expected)
    )]
    Differs {
        /// The name of the checkpoint's tensor whose type or shape differs between its file and the manifest.
        tensor: String,
        /// The type and shape that the tensor has in its file, as text.
        found: String,
        /// The type and shape that the manifest states for the tensor, as text.
        expected: String,
    },
    /// An element of a tensor in a checkpoint file is infinite or NaN.
    #[error("has {} in the tensor `{}`, at index {index}", number(*value), Printable::new(tensor))]
    NotFinite {
        /// The name of the checkpoint's tensor that contains an infinity or NaN.
        tensor: String,
        /// The position of the first infinity or NaN among the elements of a checkpoint's tensor, in row-major order,
        /// counted from 0.
        index: usize,
        /// The first infinity or NaN among the elements of a checkpoint's tensor, in row-major order.
        value: f64,
    },
    /// The manifest of the checkpoint states more completed training steps than a checkpoint may have.
    #[error("says that it was saved after {steps} steps, more than the {most} that are possible")]
    Steps {
        /// The number of completed training steps that the manifest of a checkpoint states, which is too large.
        steps: u64,
        /// The largest number of completed training steps that a checkpoint may state, 2^53.
        most: u64,
    },
    /// The manifest of the checkpoint states more optimizer steps than completed training steps.
    #[error("has {optimizer_steps} optimizer steps, but only {steps} steps in all")]
    OptimizerSteps {
        /// The number of training steps where the optimizer updated the parameters, according to the checkpoint's
        /// manifest.
        optimizer_steps: u64,
        /// The number of completed training steps in the checkpoint's manifest, including those that skipped the
        /// optimizer, for example after an overflow of the gradients.
        steps: u64,
    },
    /// The loss scale in the manifest of the checkpoint (the factor on the loss in mixed precision) is not a positive
    /// finite number.
    #[error("has the loss scale {}, which is not a positive number", number(*scale))]
    LossScale {
        /// The loss scale that the manifest of the checkpoint states, which is not a positive finite number.
        scale: f64,
    },
    /// The index file of the checkpoint, `model.safetensors.index.json`, does not list the same parameters and files as
    /// the manifest.
    #[error("does not list the parameters as the manifest does")]
    Index,
}

impl Damage {
    /// Makes a [`Damage::Form`] for a file whose text is malformed. `reason` says why; it may quote the file, and is
    /// escaped and cut to 300 bytes.
    pub(crate) fn malformed(reason: impl fmt::Display) -> Self {
        Self::Form(Printable::new(reason.to_string()).at_most(MOST_REASON).to_string())
    }
}

impl fmt::Debug for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}
