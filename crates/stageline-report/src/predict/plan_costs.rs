//! Computes the costs of a plan's stages: sums the measured costs of each stage's layers, and adds the transfers
//! between workers.
//!
//! - *Backward passes.* A schedule may split a backward pass into an input gradient and a weight gradient. Their shares
//!   of its time come from the logged run, if its schedule splits backward passes and the log has the events of a step.
//!   Otherwise they are assumed to take equal time.
//! - *Transfers.* Worker n of the plan has the network links of worker n of the run. A transfer over a link takes the
//!   link's latency plus bytes / bandwidth, and keeps no worker busy. The logged duration of a send may contain this
//!   transfer time, so only the rest of the duration counts as the sending worker's time. The idle time that the log
//!   attributes to the cause `other` is assumed to contain no transfers.
//! - *Sizes.* The bytes of a transfer are known at the run's stage boundaries. At other split points, the mean of these
//!   bytes is assumed.

use std::ops::Range;

use stageline_schedule::{Costs, Placement, StageCost};

use super::error::PredictError;
use super::measured::{LayerCost, Measured};
use super::target::is_cut;
use crate::log::record::Link;

/// The network link between two neighbouring stages of a plan, with the bytes that one micro-batch sends over it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Crossing {
    /// Zero-based index of the stage that sends its activations over this network link to the next stage.
    pub stage: usize,
    /// Latency and bandwidth of the network link from stage `stage` to the next stage.
    pub link: Link,
    /// The size in bytes of one micro-batch's activation, which goes to the next stage over the network link. The
    /// gradient that comes back has the same size, and is not counted here.
    pub bytes: f64,
}

impl Crossing {
    /// Returns the seconds that one micro-batch's activation and its gradient together take over the network link. They
    /// are transferred one after the other, and each has the link's latency.
    pub fn takes(&self) -> f64 {
        2.0 * self.link.takes(self.bytes)
    }
}

impl Measured {
    /// Computes the costs of a plan's stages, in seconds, by adding up the logged run's layer costs: a stage's forward
    /// and backward pass and its network transfers for one micro-batch, and its end-of-step gradient norms and
    /// optimizer step.
    ///
    /// `placement` assigns each stage to a worker, and `cut` has each stage's range of layer indices.
    ///
    /// # Errors
    /// Returns [`PredictError`] if `cut` is not a partition of the layers into the placement's stages, or if a network
    /// link, or the bytes that it carries, are not known.
    pub fn costs(&self, placement: &Placement, cut: &[Range<usize>]) -> Result<Costs, PredictError> {
        let (layers, stages) = (self.layers.len(), placement.stages());
        if !is_cut(cut, layers, stages) {
            return Err(PredictError::Cut { cut: cut.to_vec(), layers, stages });
        }
        Ok(self.costs_over(placement, cut, &self.crossings_on(placement, cut)?).0)
    }

    /// Returns the network links between neighbouring stages of a plan, in the order of the stages. Stages whose
    /// workers share a host's memory have no entry. Returns an error if a network link, or the bytes that it carries,
    /// are not known.
    pub(super) fn crossings_on(
        &self,
        placement: &Placement,
        cut: &[Range<usize>],
    ) -> Result<Vec<Crossing>, PredictError> {
        let mut crossings = Vec::new();
        for (stage, pair) in cut.windows(2).enumerate() {
            if let Some(link) = self.network.between(placement.worker(stage), placement.worker(stage + 1))? {
                crossings.push(Crossing { stage, link, bytes: self.bytes_at(pair[0].end)? });
            }
        }
        Ok(crossings)
    }

    /// Returns the costs of each stage in seconds, and the total seconds that all sends of one micro-batch keep workers
    /// busy. Forward and backward passes already include this send time, so callers can subtract it to get compute
    /// time. Only transfers over the network links in `crossings` take time.
    pub(super) fn costs_over(
        &self,
        placement: &Placement,
        cut: &[Range<usize>],
        crossings: &[Crossing],
    ) -> (Costs, f64) {
        let sum =
            |range: &Range<usize>, of: fn(&LayerCost) -> f64| self.layers[range.clone()].iter().map(of).sum::<f64>();
        let sends_on = |stage: usize| stage + 1 < cut.len() && placement.worker(stage) != placement.worker(stage + 1);
        let mut sends = 0.0;
        let stage_cost = |(stage, range)| {
            let forward = sum(range, |layer| layer.forward);
            let input_gradient = sum(range, |layer| layer.input_gradient);
            let weight_gradient = sum(range, |layer| layer.backward - layer.input_gradient);
            let onwards = if sends_on(stage) { self.send_seconds } else { 0.0 };
            let back = if stage > 0 && sends_on(stage - 1) { self.send_seconds } else { 0.0 };
            sends += onwards + back;
            StageCost::new(forward + onwards, input_gradient + back, weight_gradient)
        };
        let mut stages: Vec<_> = cut.iter().enumerate().map(stage_cost).collect();
        let mut occupied = vec![0.0; cut.len()];
        for Crossing { stage, link, bytes } in crossings {
            stages[*stage].send_activation = link.latency;
            stages[stage + 1].send_gradient = link.latency;
            occupied[*stage] = bytes / link.bandwidth;
        }
        let flush = cut.iter().map(|range| sum(range, |layer| layer.flush)).collect();
        (Costs::by_stage(stages).with_links(occupied).with_optimizer(flush), sends)
    }
}
