//! [`VerifyError`]: the reasons why a verification (a comparison of a training with the same training on one device)
//! cannot be completed.

use crate::failure::build_error::BuildError;
use crate::failure::step_error::StepError;
use crate::threads::failure::BoxError;

/// The reason why a verification (a comparison of a training with the same training on one device) could not be
/// completed. A difference between the two trainings is not an error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// A pipeline that the verification needs, the verified one or its reference on one device, could not be built; the
    /// value is the error.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The reference (the same training on one device) failed, or an extra step failed that the verification makes to
    /// compare parameters or to find the cause of a difference. If the memory was too small, split the reference's
    /// batch with [`Verify::reference_micro_batches`](crate::Verify::reference_micro_batches).
    #[error("the reference failed: {0}")]
    Reference(#[from] StepError),
    /// The verification fails because the caller has split the batches into micro-batches. These cannot be joined to a
    /// full batch for the reference (the training on one device).
    #[error(
        "batches are cut by hand into {given} micro-batches, which cannot be joined; let the reference use as many, by \
         `.reference_micro_batches({given})`, or give uncut batches"
    )]
    CutByHand {
        /// The number of micro-batches into which the caller of the verification has split a batch.
        given: usize,
    },
    /// The verified training (the one that is compared with its reference) failed; the value is its error.
    #[error("the training that is verified failed: {0}")]
    Trial(BoxError),
    /// The verification fails because the closure that builds the model returned models with different parameters on
    /// different calls, so that their values cannot be compared.
    #[error(
        "one model of the verification has {found}, where another has {expected}; the closure that builds the model must \
         build the same one each time"
    )]
    OtherModel {
        /// The name, shape and type of a parameter in the pipeline's model, which should be the same in the plain
        /// loop's model; "no such parameter" if only the plain loop's model has the parameter.
        found: String,
        /// The name, shape and type of a parameter in the plain loop's model, which should be the same in the
        /// pipeline's model; "no such parameter" if only the pipeline's model has the parameter.
        expected: String,
    },
    /// The verified training returned gradients that do not match the model's parameters in number or size.
    #[error(
        "gradient {at} of the training that is verified is {found}, where the model has {expected}; give the \
         gradients of all trained parameters in the order of the model"
    )]
    Gradients {
        /// The index of the first gradient of the verified training whose size differs from that of the model's
        /// parameter at the same index.
        at: usize,
        /// The path and size of the gradient that the verified training returned at the index `at`; "none" if it
        /// returned fewer gradients.
        found: String,
        /// The path and size of the parameter that the model has at the index `at`; "none" if the model has fewer
        /// parameters.
        expected: String,
    },
}
