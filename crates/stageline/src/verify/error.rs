//! [`VerifyError`]: why a verification (a comparison of a training run with the same training on one device) cannot be
//! completed.

use crate::failure::build_error::BuildError;
use crate::failure::step_error::StepError;
use crate::threads::failure::BoxError;

/// The error of a verification (a comparison of a training run with the same training on one device). A difference
/// between the two runs is not an error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// The error that a pipeline of the verification could not be built: the verified one, or its reference on one
    /// device.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The error that a step failed: a step of the reference (the same training on one device), or an additional step
    /// that the verification makes. If the memory was too small, split the reference's batch with
    /// [`Verify::reference_micro_batches`](crate::Verify::reference_micro_batches).
    #[error("the reference failed: {0}")]
    Reference(#[from] StepError),
    /// The error that the caller has split the batches into micro-batches by hand. They cannot be joined to a full
    /// batch for the reference run on one device.
    #[error(
        "batches are cut by hand into {given} micro-batches, which cannot be joined; let the reference use as many, by \
         `.reference_micro_batches({given})`, or give uncut batches"
    )]
    CutByHand {
        /// The number of micro-batches into which the caller has split a batch.
        given: usize,
    },
    /// The error that the verified run failed. The value is the training's error.
    #[error("the training that is verified failed: {0}")]
    Trial(BoxError),
    /// The error that the closure which builds the model returned different parameters on different calls. Their values
    /// cannot be compared.
    #[error(
        "one model of the verification has {found}, where another has {expected}; the closure that builds the model must \
         build the same one each time"
    )]
    OtherModel {
        /// The name, shape and type of a parameter in the pipeline's model. It is "no such parameter" if only the model
        /// of the plain training loop has the parameter.
        found: String,
        /// The name, shape and type of a parameter in the model of the plain training loop. It is "no such parameter"
        /// if only the pipeline's model has the parameter.
        expected: String,
    },
    /// The error that the verified run's gradients do not match the model's parameters in number or size.
    #[error(
        "gradient {at} of the training that is verified is {found}, where the model has {expected}; give the \
         gradients of all trained parameters in the order of the model"
    )]
    Gradients {
        /// The first index at which the training's list of gradients does not match the model's list of parameters: the
        /// two sizes differ, or one of the two is missing.
        at: usize,
        /// The path and size of the verified run's gradient at the index `at`; "none" if the training returned fewer
        /// gradients.
        found: String,
        /// The path and size of the model's parameter at the index `at`; "none" if the model has fewer parameters.
        expected: String,
    },
}
