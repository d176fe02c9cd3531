//! What is put to the proof.

use crate::model::batch::Batch;
use crate::model::payload::Payload;
use crate::pipeline::Pipeline;
use crate::pipeline::report::LossTerm;
use crate::threads::failure::BoxError;
use crate::update::parameter_gradient::ParameterGradient;

/// Something that trains a model: a pipeline, or a loop of one's own.
pub trait Trial<In, Target> {
    /// The gradients that a step with this batch would have, in the order of the model's parameters; nothing changes.
    ///
    /// # Errors
    /// Whatever the training says.
    fn gradients(&mut self, batch: Batch<In, Target>) -> Result<Vec<ParameterGradient>, BoxError>;

    /// Trains on a batch, and gives its loss per unit of weight.
    ///
    /// # Errors
    /// Whatever the training says.
    fn step(&mut self, batch: Batch<In, Target>) -> Result<f64, BoxError>;

    /// The terms of the loss of a batch, of which most losses have one, without training on it.
    ///
    /// # Errors
    /// Whatever the training says.
    fn evaluate(&mut self, batch: Batch<In, Target>) -> Result<Vec<LossTerm>, BoxError>;
}

impl<In: Payload, Target: Payload> Trial<In, Target> for Pipeline<In, Target> {
    fn gradients(&mut self, batch: Batch<In, Target>) -> Result<Vec<ParameterGradient>, BoxError> {
        Ok(Pipeline::gradients(self, batch)?)
    }

    fn step(&mut self, batch: Batch<In, Target>) -> Result<f64, BoxError> {
        Ok(Pipeline::step(self, batch)?.loss)
    }

    fn evaluate(&mut self, batch: Batch<In, Target>) -> Result<Vec<LossTerm>, BoxError> {
        Ok(self.eval(batch)?.terms)
    }
}
