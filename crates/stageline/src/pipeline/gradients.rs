//! Computes the gradients and losses of a batch without an optimizer step, for the caller and for verifications.

use crate::failure::activity::During;
use crate::failure::step_error::StepError;
use crate::model::batch::Batch;
use crate::model::loss_weight::Weight;
use crate::model::micro_batches::MicroBatches;
use crate::model::payload::Payload;
use crate::pipeline::Pipeline;
use crate::pipeline::workers::Ended;
use crate::update::flush::Verdict;
use crate::update::parameter_gradient::ParameterGradient;

/// The gradients and losses of a batch that were computed without an optimizer step.
pub(crate) struct Probe {
    pub(crate) gradients: Vec<ParameterGradient>,
    /// The sum of each loss term over all targets of the batch, before the division by the loss weight.
    pub(crate) losses: Vec<f64>,
    /// The total loss weight of the batch (usually its number of unmasked targets), one number for each loss term.
    pub(crate) weight: Weight,
}

impl<In: Payload, Out: Payload, Target: Payload> Pipeline<In, Out, Target> {
    /// Computes the gradients that the next training step would have with `batch`. Returns one entry for each
    /// parameter, in layer order, with the values copied to the host.
    ///
    /// No optimizer steps, and the call does not count as a step. Burn's own batch norm still updates its running
    /// statistics, as at every forward pass. If the gradients overflow, they are computed again with a lower loss
    /// scale. Later steps keep the current loss scale.
    ///
    /// # Errors
    /// Returns the same errors as [`step`](Self::step). If the loss or a gradient is not finite and no lower loss scale
    /// helps, returns [`StepError::NonFinite`], whatever the [`on_non_finite`](crate::PipelineBuilder::on_non_finite)
    /// policy is.
    pub fn gradients(&mut self, batch: Batch<In, Target>) -> Result<Vec<ParameterGradient>, StepError> {
        let batch = self.micro_batches(batch)?;
        let divisor = batch.weights.total.clone();
        Ok(self.probe(batch, &divisor)?.gradients)
    }

    /// Splits a batch into `pieces` micro-batches, and computes each one's loss weight (usually its number of unmasked
    /// targets).
    pub(crate) fn cut(&self, batch: Batch<In, Target>, pieces: usize) -> Result<MicroBatches<In, Target>, StepError> {
        Ok(batch.cut(pieces, &*self.scoring.weight)?)
    }

    /// Computes the gradients and losses of a batch without an optimizer step. The summed loss is divided by `divisor`
    /// instead of the batch's own loss weight.
    pub(crate) fn probe(&mut self, batch: MicroBatches<In, Target>, divisor: &Weight) -> Result<Probe, StepError> {
        self.running()?;
        self.workers.begin(During::Step(self.done.steps));
        let scaler = self.stepping.scaler;
        let probe = self.probed(batch, divisor);
        self.stepping.scaler = scaler;
        probe.map_err(|ended| self.end(ended))
    }

    /// Computes a batch's gradients and losses without an optimizer step. If gradients overflow, repeats this with a
    /// lower loss scale, which the caller then resets.
    fn probed(&mut self, batch: MicroBatches<In, Target>, divisor: &Weight) -> Result<Probe, Ended> {
        loop {
            let contexts = self.contexts(&batch.weights, divisor);
            let sums = self.sums(&batch, &contexts)?;
            let Some(scaling) = sums.scaling(self.stepping.flush) else {
                self.workers.conclude(Verdict::Skip)?;
                self.workers.recorded()?;
                let culprit = self.inspect(&batch, &contexts)?;
                if self.back_off(culprit) {
                    continue;
                }
                return Err(Ended::ByCaller(StepError::NonFinite { step: self.done.steps, culprit }));
            };
            let concluded = self.workers.conclude(Verdict::Show { scaling })?;
            self.workers.recorded()?;
            let gradients = concluded.into_iter().flat_map(|stage| stage.conclusion.gradients).collect();
            return Ok(Probe { gradients, losses: sums.losses, weight: batch.weights.total });
        }
    }
}
