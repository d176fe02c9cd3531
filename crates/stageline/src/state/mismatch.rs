//! The error of a checkpoint that does not fit the model: every difference between the two.

use std::fmt;

use stageline_checkpoint::{Dtype, Printable};

/// The most differences that a message lists.
const LISTED: usize = 10;

/// The differences between a checkpoint and the model that should resume from it.
///
/// Its messages escape and shorten the names of the checkpoint, which may come from an untrusted file.
#[derive(Clone, PartialEq)]
pub struct Mismatch(Vec<Difference>);

/// One difference between a checkpoint and a model.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Difference {
    /// The model has a tensor that the checkpoint lacks.
    NotInCheckpoint {
        /// The name of the tensor, or of the field of an optimizer's state.
        name: String,
    },
    /// The checkpoint has a tensor that the model lacks, or an optimizer state of a parameter that is not trained.
    NotInModel {
        /// The name of the tensor, or of the field of an optimizer's state.
        name: String,
    },
    /// The tensor's type or shape in the checkpoint differs from that in the model.
    Kind {
        /// The name of the tensor, or of the field of an optimizer's state.
        name: String,
        /// The type and shape in the model.
        model: Kind,
        /// The type and shape in the checkpoint.
        checkpoint: Kind,
    },
    /// A field of the optimizer's state is missing, or belongs to another optimizer than the stage has.
    OtherOptimizer {
        /// The name of the tensor, or of the field of an optimizer's state.
        name: String,
    },
    /// A field of the optimizer's state has a value that the optimizer cannot produce.
    Value {
        /// The name of the tensor, or of the field of an optimizer's state.
        name: String,
        /// The value in the checkpoint; for a tensor, the first of its elements that is wrong.
        found: String,
        /// A description of the values that the optimizer can produce.
        expected: String,
    },
}

/// A tensor's type and shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Kind {
    /// The type of the elements.
    pub dtype: Dtype,
    /// The size of each dimension.
    pub shape: Vec<usize>,
}

impl Mismatch {
    /// Returns an error with these differences, if there are any.
    pub(crate) fn unless_empty(differences: Vec<Difference>) -> Result<(), Self> {
        if differences.is_empty() { Ok(()) } else { Err(Self(differences)) }
    }

    /// Returns all differences, including those that the message leaves out.
    pub fn differences(&self) -> &[Difference] {
        &self.0
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for difference in self.0.iter().take(LISTED) {
            write!(f, "\n  {difference}")?;
        }
        match self.0.len().saturating_sub(LISTED) {
            0 => Ok(()),
            more => write!(f, "\n  and {more} more"),
        }
    }
}

impl std::error::Error for Mismatch {}

/// Prints the message, so that the debug form shows no more of an untrusted file than the message does.
impl fmt::Debug for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = Printable::new;
        match self {
            Self::NotInCheckpoint { name } => write!(f, "{} is not in the checkpoint", shown(name)),
            Self::NotInModel { name } => write!(f, "{} is not in the model", shown(name)),
            Self::Kind { name, model, checkpoint } => {
                write!(f, "{} is {model} in the model and {checkpoint} in the checkpoint", shown(name))
            }
            Self::OtherOptimizer { name } => {
                write!(f, "{} does not match the state that the optimizer of its stage keeps", shown(name))
            }
            Self::Value { name, found, expected } => {
                write!(f, "{} is {}; its optimizer can only have {expected}", shown(name), shown(found))
            }
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}", self.dtype, Printable::new(format!("{:?}", self.shape)))
    }
}
