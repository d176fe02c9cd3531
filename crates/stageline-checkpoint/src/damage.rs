//! What is wrong with a file of a checkpoint.

use std::io;

use safetensors::Dtype;

use crate::checkpoint::Wrong;

/// A name of a file's own making, as a terminal may have it: not longer than a line, and nothing but what can be seen.
fn shown(name: &str) -> String {
    const MOST: usize = 100;
    let visible =
        |letter: char| if letter.is_control() { letter.escape_default().to_string() } else { letter.to_string() };
    let shown: String = name.chars().take(MOST).map(visible).collect();
    if name.chars().nth(MOST).is_some() { shown + "..." } else { shown }
}

/// What is wrong with a file of a checkpoint. Of the manifest too: what it says of itself or of others.
#[derive(Debug, thiserror::Error)]
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
    #[error("cannot be read: {0}")]
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
    #[error("was changed: its SHA-256 is {found}, and {expected} was written down")]
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
    #[error("is not as it is written: {0}")]
    Form(String),
    /// The manifest lists a file that does not belong there.
    #[error("lists the file `{}`, to which no tensor belongs", shown(file))]
    Foreign {
        /// Its name.
        file: String,
    },
    /// The manifest lists a file twice.
    #[error("lists the file `{}` twice", shown(file))]
    Twice {
        /// Its name.
        file: String,
    },
    /// The manifest does not list a file.
    #[error("does not list the file `{}`, in which there are tensors", shown(file))]
    Unlisted {
        /// Its name.
        file: String,
    },
    /// The manifest places a tensor elsewhere.
    #[error("places the tensor `{}` in `{}`; it belongs into `{}`", shown(tensor), shown(found), shown(expected))]
    Place {
        /// The tensor.
        tensor: String,
        /// Where the manifest says it is.
        found: String,
        /// Where it belongs.
        expected: String,
    },
    /// The bytes of a tensor, or of all in a file, are more than can be counted, or not whole.
    #[error("gives the tensor `{}` of {dtype} the shape {shape:?}, whose bytes cannot be counted", shown(tensor))]
    Shape {
        /// The tensor.
        tensor: String,
        /// Its type.
        dtype: Dtype,
        /// Its shape.
        shape: Vec<usize>,
    },
    /// The manifest gives a file a size that its tensors do not have.
    #[error("gives the file `{}` {found} bytes, of which its tensors take {tensors}", shown(file))]
    Total {
        /// The file.
        file: String,
        /// Bytes by the manifest.
        found: u64,
        /// Bytes of its tensors, without their header.
        tensors: u64,
    },
    /// A tensor is not in its file.
    #[error("lacks the tensor `{}`", shown(tensor))]
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
    #[error("has the tensor `{}` as {found}, and by the manifest as {expected}", shown(tensor))]
    Differs {
        /// The tensor.
        tensor: String,
        /// Type and shape in the file.
        found: String,
        /// Type and shape by the manifest.
        expected: String,
    },
    /// A value is infinite or not a number.
    #[error("has {value} in the tensor `{}`, at index {index}", shown(tensor))]
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
    #[error("has the loss scale {scale}, which is not a positive number")]
    LossScale {
        /// What it is.
        scale: f64,
    },
    /// The index does not list the parameters as the manifest does.
    #[error("does not list the parameters as the manifest does")]
    Index,
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
