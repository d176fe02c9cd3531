//! The error of a checkpoint that does not fit the model ([`Mismatch`]): a list of every difference between the
//! checkpoint and the model.

use std::fmt;

use stageline_checkpoint::{Dtype, Printable};

/// The largest number of differences that the error message of a [`Mismatch`] lists.
const LISTED: usize = 10;

/// The error of a checkpoint that does not fit the model: all differences between the checkpoint and the model.
///
/// The error message escapes and shortens the checkpoint's names, which may come from an untrusted file.
#[derive(Clone, PartialEq)]
pub struct Mismatch(Vec<Difference>);

/// One difference between a checkpoint and the model that should resume from the checkpoint.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Difference {
    /// The model has a tensor that is missing in the checkpoint.
    NotInCheckpoint {
        /// The name of the model's tensor that is missing in the checkpoint.
        name: String,
    },
    /// The checkpoint has a tensor that the model lacks, or an optimizer state of a parameter that is not trained.
    NotInModel {
        /// The name, in the checkpoint, of a tensor or of a field of optimizer state that the model lacks.
        name: String,
    },
    /// The type or shape of a tensor in the checkpoint differs from the tensor's type or shape in the model.
    Kind {
        /// The name of the tensor whose type or shape in the checkpoint differs from the model's.
        name: String,
        /// The type and shape that the tensor has in the model. At least one of the two differs from the checkpoint.
        model: Kind,
        /// The type and shape that the tensor has in the checkpoint. At least one of the two differs from the model.
        checkpoint: Kind,
    },
    /// A field of an optimizer's state is missing in the checkpoint, or the stage's optimizer does not keep this field
    /// or keeps it with another type or shape.
    OtherOptimizer {
        /// The name of the field of optimizer state that does not fit: the checkpoint lacks the field, or the stage's
        /// optimizer does not keep it or keeps it with another type or shape. As in checkpoints, the name consists of
        /// the parameter's name, `/` and the field's name.
        name: String,
    },
    /// A field of an optimizer's state in the checkpoint has a value that the optimizer cannot produce.
    Value {
        /// The name of the field of optimizer state whose value is wrong. As in checkpoints, it consists of the
        /// parameter's name, `/` and the field's name.
        name: String,
        /// The wrong value, as text, that the checkpoint has for a field of an optimizer's state; for a tensor, its
        /// first wrong element.
        found: String,
        /// A text for the error message: a description of the values that the optimizer can produce, in contrast to the
        /// wrong value in the checkpoint.
        expected: String,
    },
}

/// The type and shape of a tensor that differs between model and checkpoint, as an error message shows them.
#[derive(Clone, Debug, PartialEq)]
pub struct Kind {
    /// The element type, as a checkpoint stores it, of a tensor that differs between model and checkpoint.
    pub dtype: Dtype,
    /// The shape of a tensor that differs between model and checkpoint: the size of each dimension.
    pub shape: Vec<usize>,
}

impl Mismatch {
    /// Returns an error with the list `differences` between a checkpoint and the model, or `Ok` if the list is empty
    /// because the checkpoint fits the model.
    pub(crate) fn unless_empty(differences: Vec<Difference>) -> Result<(), Self> {
        if differences.is_empty() { Ok(()) } else { Err(Self(differences)) }
    }

    /// Returns all differences between the checkpoint and the model, including differences that the error message
    /// leaves out.
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
            0 => {}
            more => write!(f, "\n  and {more} more")?,
        }
        if self.0.iter().any(Difference::is_named_by_stage) {
            let hint = "names that begin with a stage, such as `stage0.`, fit only the cut with which the checkpoint was taken; \
                        restore it on that cut, and set `PipelineBuilder::names` for later ones";
            write!(f, "\n  {hint}")?;
        }
        Ok(())
    }
}

impl Difference {
    /// Whether this difference is about a tensor that only the model or only the checkpoint has, and whose name begins
    /// with its stage, as in `stage0.linear.weight`. A pipeline uses such names unless the user sets
    /// [`Names`](crate::Names). Names set by the user stay the same when the model is split into stages in another way.
    fn is_named_by_stage(&self) -> bool {
        let (Self::NotInCheckpoint { name } | Self::NotInModel { name }) = self else { return false };
        let after = name.strip_prefix("stage").and_then(|rest| rest.split_once('.'));
        after.is_some_and(|(stage, _)| !stage.is_empty() && stage.bytes().all(|byte| byte.is_ascii_digit()))
    }
}

impl std::error::Error for Mismatch {}

/// Makes the debug form of this error equal to its message. The error is that of a checkpoint that does not fit the
/// model, and its debug form must not show more of an untrusted file than the message does.
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
