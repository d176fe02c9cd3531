//! What is wrong with a file of a checkpoint.

use std::{fmt, io};

use safetensors::Dtype;

use crate::checkpoint::Wrong;
use crate::printable::{Printable, number};

/// The most bytes of a reason that has text from a file in it.
const MOST_REASON: usize = 300;

/// What is wrong with a file of a checkpoint. Of the manifest too: what it says of itself or of others.
///
/// `Display` and `Debug` give the same text, which is safe to print, as that of
/// [`CheckpointError`](crate::CheckpointError) is. The fields have the text of the file: print them as [`Printable`].
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Damage {
    /// It is not there.
    #[error("is missing")]
    Missing,
    /// It is something else, or a link to something.
    #[error("is {found}, where a checkpoint has {expected}")]
    Kind {
        /// What is there.
        found: &'static str,
        /// What should be there.
        expected: &'static str,
    },
    /// The operating system does not let it be read.
    #[error("cannot be read: {}", Printable::new(.0.to_string()))]
    Io(io::Error),
    /// It has another length.
    #[error("has {found} bytes, and {expected} by the manifest")]
    Size {
        /// Bytes that are there.
        found: u64,
        /// Bytes by the manifest.
        expected: u64,
    },
    /// It is longer than such a file can be.
    #[error("has {found} bytes, of which {most} are the most for such a file")]
    TooLong {
        /// Its bytes.
        found: u64,
        /// The most.
        most: u64,
    },
    /// It does not fit into memory.
    #[error("has {bytes} bytes, for which there is no memory")]
    Memory {
        /// Its bytes.
        bytes: u64,
    },
    /// It has other contents.
    #[error("was changed: its SHA-256 is {}, and {} was written down", Printable::new(found), Printable::new(expected))]
    Hash {
        /// The hash of what is there.
        found: String,
        /// The hash that was written down.
        expected: String,
    },
    /// The manifest does not end as one does.
    #[error("does not end with its own SHA-256: it was cut short or changed")]
    NoSeal,
    /// It is not of the form that is written.
    #[error("is not as it is written: {}", Printable::new(.0).at_most(MOST_REASON))]
    Form(String),
    /// The manifest lists a file that does not belong there.
    #[error("lists the file `{}`, to which no tensor belongs", Printable::new(file))]
    Foreign {
        /// Its name.
        file: String,
    },
    /// The manifest lists a file twice.
    #[error("lists the file `{}` twice", Printable::new(file))]
    Twice {
        /// Its name.
        file: String,
    },
    /// The manifest does not list a file.
    #[error("does not list the file `{}`, in which there are tensors", Printable::new(file))]
    Unlisted {
        /// Its name.
        file: String,
    },
    /// The manifest places a tensor elsewhere.
    #[error(
        "places the tensor `{}` in `{}`; it belongs into `{}`",
        Printable::new(tensor),
        Printable::new(found),
        Printable::new(expected)
    )]
    Place {
        /// The tensor.
        tensor: String,
        /// Where the manifest says it is.
        found: String,
        /// Where it belongs.
        expected: String,
    },
    /// The bytes of a tensor, or of all in a file, are more than can be counted, or not whole.
    #[error(
        "gives the tensor `{}` of {dtype} the shape {}, whose bytes cannot be counted",
        Printable::new(tensor),
        Printable::new(format!("{shape:?}"))
    )]
    Shape {
        /// The tensor.
        tensor: String,
        /// Its type.
        dtype: Dtype,
        /// Its shape.
        shape: Vec<usize>,
    },
    /// The manifest gives a file a size that its tensors do not have.
    #[error("gives the file `{}` {found} bytes, of which its tensors take {tensors}", Printable::new(file))]
    Total {
        /// The file.
        file: String,
        /// Bytes by the manifest.
        found: u64,
        /// Bytes of its tensors, without their header.
        tensors: u64,
    },
    /// A tensor is not in its file.
    #[error("lacks the tensor `{}`", Printable::new(tensor))]
    Lacks {
        /// The tensor.
        tensor: String,
    },
    /// A file has more tensors than the manifest.
    #[error("has {found} tensors, and {expected} by the manifest")]
    Count {
        /// Tensors in the file.
        found: usize,
        /// Tensors by the manifest.
        expected: usize,
    },
    /// A tensor has another type or shape in its file.
    #[error(
        "has the tensor `{}` as {}, and by the manifest as {}",
        Printable::new(tensor),
        Printable::new(found),
        Printable::new(expected)
    )]
    Differs {
        /// The tensor.
        tensor: String,
        /// Type and shape in the file.
        found: String,
        /// Type and shape by the manifest.
        expected: String,
    },
    /// A value is infinite or not a number.
    #[error("has {} in the tensor `{}`, at index {index}", number(*value), Printable::new(tensor))]
    NotFinite {
        /// The tensor.
        tensor: String,
        /// Which element, row by row.
        index: usize,
        /// What it is.
        value: f64,
    },
    /// The steps are more than can be.
    #[error("has {steps} steps, of which {most} are the most")]
    Steps {
        /// How many they are.
        steps: u64,
        /// The most.
        most: u64,
    },
    /// The steps of the optimizer are more than all steps.
    #[error("has {optimizer_steps} steps of the optimizer, and {steps} in all")]
    OptimizerSteps {
        /// Those of the optimizer.
        optimizer_steps: u64,
        /// All.
        steps: u64,
    },
    /// The loss scale is not a positive number.
    #[error("has the loss scale {}, which is not a positive number", number(*scale))]
    LossScale {
        /// What it is.
        scale: f64,
    },
    /// The index does not list the parameters as the manifest does.
    #[error("does not list the parameters as the manifest does")]
    Index,
}

impl Damage {
    /// A text that is not of the form that is written. The reason may have text of the file in it, of any length.
    pub(crate) fn form(reason: impl fmt::Display) -> Self {
        Self::Form(Printable::new(reason.to_string()).at_most(MOST_REASON).to_string())
    }
}

impl fmt::Debug for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl From<Wrong> for Damage {
    fn from(wrong: Wrong) -> Self {
        match wrong {
            Wrong::Steps { steps, most } => Self::Steps { steps, most },
            Wrong::OptimizerSteps { optimizer_steps, steps } => Self::OptimizerSteps { optimizer_steps, steps },
            Wrong::LossScale { scale } => Self::LossScale { scale },
        }
    }
}
