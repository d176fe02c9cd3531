//! How a checkpoint differs from the model that is to go on from it.

use std::fmt;

use stageline_checkpoint::Dtype;

/// How many differences a message lists.
const LISTED: usize = 10;

/// A checkpoint is of another model.
#[derive(Clone, Debug, PartialEq)]
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
    /// The state is one of another optimizer than the stage has.
    OtherOptimizer {
        /// What it is called.
        name: String,
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

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotInCheckpoint { name } => write!(f, "{name} is not in the checkpoint"),
            Self::NotInModel { name } => write!(f, "{name} is not in the model"),
            Self::Kind { name, model, checkpoint } => {
                write!(f, "{name} is {model} in the model and {checkpoint} in the checkpoint")
            }
            Self::OtherOptimizer { name } => write!(f, "{name} is not what the optimizer of its stage remembers"),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {:?}", self.dtype, self.shape)
    }
}
