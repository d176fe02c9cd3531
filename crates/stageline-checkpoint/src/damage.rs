//! The reasons why a file of a checkpoint is refused.

use std::{fmt, io};

use safetensors::Dtype;

use crate::printable::{Printable, number};

/// The most bytes of a reason that contains text from a file.
const MOST_REASON: usize = 300;

/// The reason why a file of a checkpoint is refused.
///
/// For the manifest, the reason may be a statement about itself or about another file.
///
/// `Display` and `Debug` give the same text, which is as safe to print as that of
/// [`CheckpointError`](crate::CheckpointError). The fields contain text from the file: print them as [`Printable`].
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Damage {
    /// The file does not exist.
    #[error("is missing")]
    Missing,
    /// The path is not a regular file or not a folder, for example a symbolic link.
    #[error("is {found}, where a checkpoint has {expected}")]
    Kind {
        /// The kind of thing at the path.
        found: &'static str,
        /// The required kind.
        expected: &'static str,
    },
    /// The operating system refuses to read the file.
    #[error("cannot be read: {}", Printable::new(.0.to_string()))]
    Io(io::Error),
    /// The file has another length than the manifest says.
    #[error("has {found} bytes, but the manifest lists {expected}")]
    Size {
        /// The bytes of the file.
        found: u64,
        /// The bytes according to the manifest.
        expected: u64,
    },
    /// The file is longer than such a file can be.
    #[error("has {found} bytes, but such a file has at most {most}")]
    TooLong {
        /// The bytes of the file.
        found: u64,
        /// The most bytes of such a file.
        most: u64,
    },
    /// The file does not fit into memory.
    #[error("has {bytes} bytes, which do not fit into memory")]
    Memory {
        /// The bytes of the file.
        bytes: u64,
    },
    /// The file has other contents than those that were written.
    #[error("was changed: its SHA-256 is {}, but {} was recorded", Printable::new(found), Printable::new(expected))]
    Hash {
        /// The hash of the file.
        found: String,
        /// The recorded hash.
        expected: String,
    },
    /// The manifest does not end with a seal.
    #[error("does not end with its own SHA-256: it was cut short or changed")]
    NoSeal,
    /// The text is not in the format of such a file. The field is the reason.
    #[error("is malformed: {}", Printable::new(.0).at_most(MOST_REASON))]
    Form(String),
    /// The manifest lists a file that holds no tensor.
    #[error("lists the file `{}`, to which no tensor belongs", Printable::new(file))]
    Foreign {
        /// The name of that file.
        file: String,
    },
    /// The manifest lists a file twice.
    #[error("lists the file `{}` twice", Printable::new(file))]
    Twice {
        /// The name of that file.
        file: String,
    },
    /// The manifest does not list a file of its tensors, or the index.
    #[error("does not list the file `{}`, which this checkpoint must have", Printable::new(file))]
    Unlisted {
        /// The name of that file.
        file: String,
    },
    /// The manifest places a tensor in the wrong file.
    #[error(
        "places the tensor `{}` in `{}`; it belongs in `{}`",
        Printable::new(tensor),
        Printable::new(found),
        Printable::new(expected)
    )]
    Place {
        /// The name of the tensor.
        tensor: String,
        /// The file according to the manifest.
        found: String,
        /// The file in which the tensor belongs.
        expected: String,
    },
    /// The size of a tensor, or of all tensors in its file, overflows or is not a whole number of bytes.
    #[error(
        "gives the tensor `{}` the type {dtype} and the shape {}, whose size overflows or is not a whole number of bytes",
        Printable::new(tensor),
        Printable::new(format!("{shape:?}"))
    )]
    Shape {
        /// The name of the tensor.
        tensor: String,
        /// The type of an element.
        dtype: Dtype,
        /// The length of each dimension.
        shape: Vec<usize>,
    },
    /// The manifest gives a file a size that does not fit its tensors.
    #[error(
        "gives the file `{}` {found} bytes, which is impossible with {tensors} bytes of tensors",
        Printable::new(file)
    )]
    Total {
        /// The name of the file.
        file: String,
        /// The bytes of the file according to the manifest.
        found: u64,
        /// The bytes of its tensors, without the header.
        tensors: u64,
    },
    /// A file lacks a tensor that the manifest lists.
    #[error("lacks the tensor `{}`", Printable::new(tensor))]
    Lacks {
        /// The name of the tensor.
        tensor: String,
    },
    /// A file has more tensors than the manifest lists for it.
    #[error("has {found} tensors, but the manifest lists {expected}")]
    Count {
        /// The number of tensors in the file.
        found: usize,
        /// The number of tensors according to the manifest.
        expected: usize,
    },
    /// A tensor has another type or shape in its file than in the manifest.
    #[error(
        "has the tensor `{}` as {}, but the manifest has {}",
        Printable::new(tensor),
        Printable::new(found),
        Printable::new(expected)
    )]
    Differs {
        /// The name of the tensor.
        tensor: String,
        /// The type and shape in the file.
        found: String,
        /// The type and shape according to the manifest.
        expected: String,
    },
    /// A value is infinite or not a number.
    #[error("has {} in the tensor `{}`, at index {index}", number(*value), Printable::new(tensor))]
    NotFinite {
        /// The name of the tensor.
        tensor: String,
        /// The index of the element, in row-major order.
        index: usize,
        /// The value of the element.
        value: f64,
    },
    /// The step count is above its limit.
    #[error("has {steps} steps, but at most {most} are possible")]
    Steps {
        /// The step count.
        steps: u64,
        /// The largest valid step count.
        most: u64,
    },
    /// The optimizer made more steps than the training.
    #[error("has {optimizer_steps} optimizer steps, but only {steps} steps in all")]
    OptimizerSteps {
        /// The optimizer's step count.
        optimizer_steps: u64,
        /// The step count, skipped steps included.
        steps: u64,
    },
    /// The loss scale is not a positive number.
    #[error("has the loss scale {}, which is not a positive number", number(*scale))]
    LossScale {
        /// The loss scale.
        scale: f64,
    },
    /// The index does not list the parameters as the manifest does.
    #[error("does not list the parameters as the manifest does")]
    Index,
}

impl Damage {
    /// Returns [`Damage::Form`]. The reason may contain text from the file, of any length.
    pub(crate) fn malformed(reason: impl fmt::Display) -> Self {
        Self::Form(Printable::new(reason.to_string()).at_most(MOST_REASON).to_string())
    }
}

impl fmt::Debug for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}
