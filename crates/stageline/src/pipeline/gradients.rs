//! Gradients of a batch without a step.

use crate::failure::activity::During;
use crate::failure::step_error::StepError;
use crate::model::batch::{Batch, MicroBatches};
use crate::model::loss_weight::Weight;
use crate::model::payload::Payload;
use crate::pipeline::Pipeline;
use crate::pipeline::workers::Ended;
use crate::update::flush::Verdict;
use crate::update::parameter_gradient::ParameterGradient;

/// What a batch gives.
pub(crate) struct Probe {
    /// In layer order.
    pub(crate) gradients: Vec<ParameterGradient>,
    /// The sum of every term of the loss.
    pub(crate) losses: Vec<f64>,
    pub(crate) weight: Weight,
}

impl<In: Payload, Target: Payload> Pipeline<In, Target> {
    /// The gradients that the next step would have with this batch, in layer order; nothing steps, and nothing is counted.
    /// (The running statistics of a batch norm of burn's move with every forward.)
    ///
    /// They are read on the host. Where they overflow at the present loss scale, they are computed with a lower one.
    ///
    /// # Errors
    /// As for [`step`](Self::step); where the loss or a gradient is not finite and no lower loss scale helps,
    /// [`StepError::NonFinite`], whatever the policy is.
    pub fn gradients(&mut self, batch: Batch<In, Target>) -> Result<Vec<ParameterGradient>, StepError> {
        let batch = self.micro_batches(batch)?;
        let divisor = batch.weights.total.clone();
        Ok(self.probe(batch, &divisor)?.gradients)
    }

    /// A batch, cut into so many pieces.
    pub(crate) fn cut(&self, batch: Batch<In, Target>, pieces: usize) -> Result<MicroBatches<In, Target>, StepError> {
        Ok(batch.cut(pieces, self.weight)?)
    }

    /// What these pieces give, which must be as many as a step has, with losses divided by this.
    pub(crate) fn probe(&mut self, batch: MicroBatches<In, Target>, divisor: &Weight) -> Result<Probe, StepError> {
        self.running()?;
        self.workers.begin(During::Step(self.done.steps));
        let scaler = self.stepping.scaler;
        let probe = self.probed(batch, divisor);
        self.stepping.scaler = scaler;
        probe.map_err(|ended| self.end(ended))
    }

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
