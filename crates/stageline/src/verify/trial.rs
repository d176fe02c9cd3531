//! [`Trial`]: the trait of a training run that can be verified (compared with the same training on one device).

use crate::model::batch::Batch;
use crate::model::payload::Payload;
use crate::pipeline::Pipeline;
use crate::pipeline::report::{LossTerm, Update};
use crate::threads::failure::BoxError;
use crate::update::parameter_gradient::ParameterGradient;

/// The largest number of times that a verification repeats a step because gradients overflow at the current loss scale.
pub(super) const MOST_OVERFLOWS: usize = 64;

/// A training run that a verification compares with the same training on one device. A [`Pipeline`] implements this
/// trait. To verify a custom training loop, implement the trait for it.
pub trait Trial<In, Target> {
    /// Returns the gradients that a training step on `batch` would have: one entry for each parameter, in the order of
    /// the model's parameters. The parameters and the optimizer do not change.
    ///
    /// # Errors
    /// Returns the training loop's own error if it fails.
    fn gradients(&mut self, batch: Batch<In, Target>) -> Result<Vec<ParameterGradient>, BoxError>;

    /// Makes one training step on a batch. Returns the batch's loss: the loss sum divided by the loss weight, usually
    /// the mean over the targets.
    ///
    /// # Errors
    /// Returns the training loop's own error if it fails.
    fn step(&mut self, batch: Batch<In, Target>) -> Result<f64, BoxError>;

    /// Evaluates a batch without training on it. Returns the terms of its loss, each with its mean and its weight; most
    /// losses have one term.
    ///
    /// # Errors
    /// Returns the training loop's own error if it fails.
    fn evaluate(&mut self, batch: Batch<In, Target>) -> Result<Vec<LossTerm>, BoxError>;
}

impl<In: Payload, Out: Payload, Target: Payload> Trial<In, Target> for Pipeline<In, Out, Target> {
    fn gradients(&mut self, batch: Batch<In, Target>) -> Result<Vec<ParameterGradient>, BoxError> {
        Ok(Pipeline::gradients(self, batch)?)
    }

    fn step(&mut self, batch: Batch<In, Target>) -> Result<f64, BoxError> {
        // A step whose gradients overflow at the initial loss scale changes no parameter. The reference makes no such
        // step, so the step is repeated here with a lower scale.
        let before = self.steps_done();
        for _ in 0..MOST_OVERFLOWS {
            let report = Pipeline::step(self, batch.clone())?;
            if !matches!(report.update, Update::Overflow { .. }) {
                return Ok(report.loss);
            }
            // The repeated step has the same index as this one, because the index decides the random numbers of
            // dropout.
            self.rewind_to(before);
        }
        Ok(Pipeline::step(self, batch)?.loss)
    }

    fn evaluate(&mut self, batch: Batch<In, Target>) -> Result<Vec<LossTerm>, BoxError> {
        Ok(self.eval(batch)?.terms)
    }
}
