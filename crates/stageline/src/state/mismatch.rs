//! The error for a checkpoint that does not fit the model ([`Mismatch`]): a list of every difference between the
//! checkpoint and the model.

use std::fmt;

use stageline_checkpoint::{Dtype, Printable};

/// The largest number of differences that the error message of a [`Mismatch`] lists.
const LISTED: usize = 10;

/// The error for a checkpoint that does not fit the model that should resume from it. The error lists all differences
/// between checkpoint and model.
///
/// The error message escapes and shortens the checkpoint's names, which may come from an untrusted file.
#[derive(Clone, PartialEq)]
pub struct Mismatch(Vec<Difference>);

/// One difference between a checkpoint and the model that should resume from the checkpoint.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Difference {
    /// The model has a tensor that is missing from the checkpoint.
    NotInCheckpoint {
        /// The name of the model's tensor that is missing from the checkpoint.
        name: String,
    },
    /// The checkpoint has a tensor that the model lacks, or an optimizer state of a parameter that is not trained.
    NotInModel {
        /// The name, in the checkpoint, of the tensor or optimizer state that the model lacks.
        name: String,
    },
    /// A tensor's dtype or shape in the checkpoint differs from that in the model.
    Kind {
        /// The name of the tensor whose dtype or shape differs between model and checkpoint.
        name: String,
        /// The tensor's dtype and shape in the model. At least one of the two differs from the checkpoint.
        model: Kind,
        /// The tensor's dtype and shape in the checkpoint. At least one of the two differs from the model.
        checkpoint: Kind,
    },
    /// A tensor in the checkpoint has more or fewer bytes than its dtype and shape need.
    Bytes {
        /// The name of the tensor whose number of bytes is wrong.
        name: String,
        /// The number of bytes that the checkpoint contains for the tensor.
        found: usize,
        /// The number of bytes that a tensor of its dtype and shape needs; `None` if it is above the largest `usize`.
        expected: Option<usize>,
    },
    /// A field of optimizer state does not match the stage's optimizer: only the checkpoint or only the optimizer has
    /// it, or its dtype or shape differs. Resume with the optimizer that the training run had when the checkpoint was
    /// taken.
    OtherOptimizer {
        /// The name of the optimizer state field that does not match between the checkpoint and the stage's optimizer,
        /// as `<parameter>/<field>` in checkpoints.
        name: String,
    },
    /// The values of a frozen tensor in the model do not match the hash in the checkpoint, which does not store the
    /// values themselves. Build the model from the original training run's initial weights.
    Frozen {
        /// The name of the frozen tensor whose values do not match the checkpoint's hash.
        name: String,
    },
    /// A field of an optimizer's state in the checkpoint has a value that the optimizer cannot produce.
    Value {
        /// The name of the optimizer state field whose value is wrong, as `<parameter>/<field>` in checkpoints.
        name: String,
        /// The checkpoint's wrong value of this field of optimizer state, as a string; for a tensor, its first wrong
        /// element.
        found: String,
        /// A description of the values that the optimizer can produce for the field, for the error message.
        expected: String,
    },
}

/// A tensor's dtype and shape, as shown in the error message for a tensor that differs between model and checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct Kind {
    /// The dtype of a tensor that differs between model and checkpoint.
    pub dtype: Dtype,
    /// The shape of a tensor that differs between model and checkpoint: the size of each dimension.
    pub shape: Vec<usize>,
}

impl Kind {
    /// Returns the number of bytes of a tensor of this dtype and shape; `None` if it is above the largest `usize`.
    pub(crate) fn bytes(&self) -> Option<usize> {
        let bits = self.shape.iter().try_fold(self.dtype.bitsize(), |bits, size| bits.checked_mul(*size));
        bits.map(|bits| bits.div_ceil(8))
    }

    /// Checks the byte size `found` of the checkpoint's tensor `name` against this dtype and shape. Returns the
    /// difference, or `None` if the size is right.
    pub(crate) fn wrong_bytes(&self, name: &str, found: usize) -> Option<Difference> {
        let expected = self.bytes();
        (Some(found) != expected).then(|| Difference::Bytes { name: name.to_owned(), found, expected })
    }
}

impl Mismatch {
    /// Returns an error with the given `differences` between a checkpoint and the model, or `Ok` if there are none.
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
        if self.0.iter().any(|difference| matches!(difference, Difference::Frozen { .. })) {
            let hint = "the checkpoint has only the SHA-256 of frozen parameters; build the model from the weights from which \
                        the training began";
            write!(f, "\n  {hint}")?;
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
    /// Whether the difference may come from another partition into stages: a tensor that only the model or only the
    /// checkpoint has is named by its stage, as in `stage0.linear.weight`. Pipelines use such names unless the user
    /// sets [`Names`](crate::Names).
    fn is_named_by_stage(&self) -> bool {
        let (Self::NotInCheckpoint { name } | Self::NotInModel { name }) = self else { return false };
        let after = name.strip_prefix("stage").and_then(|rest| rest.split_once('.'));
        after.is_some_and(|(stage, _)| !stage.is_empty() && stage.bytes().all(|byte| byte.is_ascii_digit()))
    }
}

impl std::error::Error for Mismatch {}

/// Makes the `Debug` output of this error equal to its message, so that it also escapes and shortens names from an
/// untrusted checkpoint.
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
            Self::Bytes { name, found, expected: Some(expected) } => {
                write!(f, "{} has {found} bytes in the checkpoint and needs {expected}", shown(name))
            }
            Self::Bytes { name, found, expected: None } => {
                write!(f, "{} has {found} bytes in the checkpoint, and a shape too large for any memory", shown(name))
            }
            Self::Frozen { name } => {
                write!(f, "{} is frozen, and its values in the model are not those of the checkpoint", shown(name))
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
