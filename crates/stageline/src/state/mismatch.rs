//! How a checkpoint differs from the model that is to go on from it.

use std::fmt;

use stageline_checkpoint::{Dtype, Printable};

/// How many differences a message lists.
const LISTED: usize = 10;

/// A checkpoint is of another model. Its messages escape and shorten what the checkpoint calls its tensors.
#[derive(Clone, PartialEq)]
pub struct Mismatch(Vec<Difference>);

/// One way in which they differ.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Difference {
    /// The model has a tensor that the checkpoint has not.
    NotInCheckpoint {
        /// What it is called.
        name: String,
    },
    /// The checkpoint has a tensor that the model has not, or a state of a parameter that is not trained.
    NotInModel {
        /// What it is called.
        name: String,
    },
    /// Both have it, and not in the same way.
    Kind {
        /// What it is called.
        name: String,
        /// In the model.
        model: Kind,
        /// In the checkpoint.
        checkpoint: Kind,
    },
    /// The state is one of another optimizer than the stage has, or is missing.
    OtherOptimizer {
        /// What it is called.
        name: String,
    },
    /// The state has a value to which the optimizer of its stage cannot have come.
    Value {
        /// What it is called.
        name: String,
        /// The value of the state, or one of its values.
        found: String,
        /// The values that it can have.
        expected: String,
    },
}

/// A tensor's type and shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Kind {
    /// The type of its elements.
    pub dtype: Dtype,
    /// Its shape.
    pub shape: Vec<usize>,
}

impl Mismatch {
    pub(crate) fn unless_empty(differences: Vec<Difference>) -> Result<(), Self> {
        if differences.is_empty() { Ok(()) } else { Err(Self(differences)) }
    }

    /// All differences.
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

/// The message: whatever prints an error prints no more than that.
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
                write!(f, "{} is not what the optimizer of its stage remembers", shown(name))
            }
            Self::Value { name, found, expected } => {
                write!(f, "{} is {}; its optimizer comes to {expected}", shown(name), shown(found))
            }
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}", self.dtype, Printable::new(format!("{:?}", self.shape)))
    }
}
