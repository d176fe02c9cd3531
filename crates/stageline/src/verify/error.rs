//! [`VerifyError`]: why a verification (a comparison of a training run with the same training on one device) cannot be
//! completed.

use crate::failure::build_error::BuildError;
use crate::failure::step_error::StepError;
use crate::threads::failure::BoxError;

/// The error that says why a verification (a comparison of a training run with the same training on one device) cannot
/// be completed. A difference between the two runs is not an error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// A pipeline of the verification could not be built: the verified one, or its reference on one device.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// A step failed: a step of the reference (the same training on one device), or an additional step that the
    /// verification makes. If the device ran out of memory, split the reference's batch with
    /// [`Verify::reference_micro_batches`](crate::Verify::reference_micro_batches).
    #[error("the reference failed: {0}")]
    Reference(StepError),
    /// The caller has split the batches into micro-batches by hand. They cannot be joined into a full batch for the
    /// reference run on one device. Give whole batches, or set the same number of micro-batches for the reference with
    /// [`Verify::reference_micro_batches`](crate::Verify::reference_micro_batches).
    #[error(
        "batches are cut by hand into {given} micro-batches, which cannot be joined; let the reference use as many, by \
         `.reference_micro_batches({given})`, or give uncut batches"
    )]
    CutByHand {
        /// The number of micro-batches in a batch that the caller has split by hand.
        given: usize,
    },
    /// The verified run failed. The value is the error that ended it.
    #[error("the training that is verified failed: {0}")]
    Trial(BoxError),
    /// The closure that builds the model returned models with different parameters (other names, shapes or dtypes) on
    /// different calls, so their values cannot be compared.
    #[error(
        "one model of the verification has {found}, where another has {expected}; the closure that builds the model must \
         build the same one each time"
    )]
    OtherModel {
        /// The name, shape and dtype of a parameter in the pipeline's model. It is "no such parameter" if only the
        /// plain training loop's model has the parameter.
        found: String,
        /// The name, shape and dtype of a parameter in the plain training loop's model. It is "no such parameter" if
        /// only the pipeline's model has the parameter.
        expected: String,
    },
    /// The verified run's gradients do not match the model's parameters in number or size. The run must return the
    /// gradients of all trained parameters in the model's order.
    #[error(
        "gradient {at} of the training that is verified is {found}, where the model has {expected}; give the \
         gradients of all trained parameters in the order of the model"
    )]
    Gradients {
        /// Zero-based index of the first position at which the verified run's list of gradients does not match the
        /// model's list of parameters. The two sizes differ there, or one of the two is missing.
        at: usize,
        /// The path and size (number of elements) of the verified run's gradient at the index `at`; "none" if the run
        /// returned fewer gradients.
        found: String,
        /// The path and size (number of elements) of the model's parameter at the index `at`; "none" if the model has
        /// fewer parameters.
        expected: String,
    },
}

impl From<StepError> for VerifyError {
    fn from(error: StepError) -> Self {
        Self::Reference(error)
    }
}
