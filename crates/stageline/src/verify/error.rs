//! [`VerifyError`]: why a verification cannot be completed.

use crate::failure::build_error::BuildError;
use crate::failure::step_error::StepError;
use crate::threads::failure::BoxError;

/// Why a verification cannot be completed. A difference between the trainings is not an error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// A pipeline could not be built.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The reference failed, or a step with which the cause of a difference was searched. If the memory was too small,
    /// split the reference's batch with [`Verify::reference_micro_batches`](crate::Verify::reference_micro_batches).
    #[error("the reference failed: {0}")]
    Reference(#[from] StepError),
    /// The batches are cut by hand into micro-batches, and cannot be joined to a full batch for the reference.
    #[error(
        "batches are cut by hand into {given} micro-batches, which cannot be joined; let the reference use as many, by \
         `.reference_micro_batches({given})`, or give uncut batches"
    )]
    CutByHand {
        /// The number of micro-batches in a batch.
        given: usize,
    },
    /// The training that is verified failed.
    #[error("the training that is verified failed: {0}")]
    Trial(BoxError),
    /// The gradients of the training that is verified are not those of the model's parameters.
    #[error(
        "gradient {at} of the training that is verified is {found}, where the model has {expected}; give the \
         gradients of all trained parameters in the order of the model"
    )]
    Gradients {
        /// The index of the first gradient that differs in size.
        at: usize,
        /// The description of the gradient that was returned.
        found: String,
        /// The description of the gradient that was expected.
        expected: String,
    },
}
