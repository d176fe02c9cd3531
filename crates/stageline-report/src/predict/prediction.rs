//! Predicts the step time, bubble, throughput and memory of another plan, by simulation with the costs of a run:
//! [`Prediction`].
//!
//! - *Stages.* With as many stages as the run had, the prediction uses the stages of the run. Otherwise each stage is a
//!   sum of layers, and each layer has its share of the stage to which it belonged in the run.
//! - *Step time.* The predicted step is the simulated step plus the overheads of the run: the overhead of a step once,
//!   and the overhead of an action for each action. It is multiplied by the variation of the run: the factor by which
//!   the run's own steps took longer than they are simulated in this way.
//! - *Transfers.* Worker n of the prediction has the network links of worker n of the run. A transfer over a link takes
//!   its latency plus bytes / bandwidth, and keeps no worker busy. To count a transfer only once, a send of the run
//!   counts only as far as it took longer than this transfer time. The cause `other` of the log is assumed to contain
//!   no transfers.
//! - *Sizes.* The bytes of a transfer are known at the stage boundaries of the run. At other split points their mean is
//!   assumed.

use std::ops::Range;

use stageline_schedule::{Checked, Costs, Placement, ScheduleError, StageCost, check, simulate};

use super::error::PredictError;
use super::measured::{LayerCost, Measured};
use super::target::{Cut, Target, is_cut};
use crate::log::record::Link;

/// The prediction for a plan: its step time, bubble, throughput and memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// The predicted step time, in seconds.
    pub step: f64,
    /// The predicted bubble: the idle share of the *total* stage time (workers x step time).
    pub bubble: f64,
    /// The predicted throughput, in tokens a second.
    pub tokens_per_s: f64,
    /// The largest number of micro-batches of each worker that are live at one time, which means that the worker keeps
    /// their activations for backwards. It is counted over all chunks (stages) of the worker.
    pub peak_live: Vec<usize>,
    /// The predicted peak of each worker's device memory, in bytes; `None` if the run did not count memory.
    pub peak_bytes: Option<Vec<f64>>,
    /// The partition of the model's layers in the predicted plan: the indices of the layers of each stage.
    pub cut: Vec<Range<usize>>,
}

/// The network link between two neighbouring stages of a plan, with the bytes that one micro-batch sends over it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Crossing {
    /// The number of the stage that sends its activations over the network link.
    pub stage: usize,
    /// The network link from the stage with the number `stage` to the next stage.
    pub link: Link,
    /// The bytes that one micro-batch sends over the network link in each direction: its activations onwards, its
    /// gradients back.
    pub bytes: f64,
}

impl Crossing {
    /// Returns the transfer time in seconds of one micro-batch's activation and gradient over the network link, one
    /// after the other.
    pub fn takes(&self) -> f64 {
        2.0 * self.link.takes(self.bytes)
    }
}

impl Measured {
    /// Predicts the step time, bubble, throughput and memory of the plan that `target` describes.
    ///
    /// # Errors
    /// Returns [`PredictError`] if the schedule has no plan for these numbers of stages and micro-batches, the
    /// partition of the layers is invalid, or a network link or the bytes on it are not known.
    pub fn predict(&self, target: &Target) -> Result<Prediction, PredictError> {
        let placed = self.place(target)?;
        Ok(self.predict_over(&placed, &placed.crossings))
    }

    /// Returns the network links between neighbouring stages of the predicted plan, in the order of the stages. The
    /// second value of each pair is the bubble, as a share of the total stage time (workers x step time), that is
    /// predicted if only the transfers over this link take time.
    ///
    /// # Errors
    /// Returns the same errors as [`predict`](Self::predict).
    pub fn crossings(&self, target: &Target) -> Result<Vec<(Crossing, f64)>, PredictError> {
        let placed = self.place(target)?;
        let alone = |crossing: &Crossing| (*crossing, self.predict_over(&placed, &[*crossing]).bubble);
        Ok(placed.crossings.iter().map(alone).collect())
    }

    /// Generates the predicted plan and checks that it is complete and does not deadlock. Returns the plan with its
    /// partition of the layers into stages and the network links between the stages.
    fn place(&self, target: &Target) -> Result<Placed, PredictError> {
        let (stages, layers) = (target.workers * target.schedule.chunks(), self.layers.len());
        let cut = match &target.cut {
            Cut::Given(cut) if is_cut(cut, layers, stages) => cut.clone(),
            Cut::Given(cut) => return Err(PredictError::Cut { cut: cut.clone(), layers, stages }),
            Cut::OfTheRun if stages == self.cut.len() => self.cut.clone(),
            Cut::OfTheRun | Cut::Balanced => self.balanced(stages)?,
        };
        let plan = target.schedule.plan(stages, target.micro_batches)?;
        let capacity = self.capacity.unwrap_or(target.micro_batches).min(target.micro_batches);
        let checked = check(plan, capacity)?;
        let placement = checked.placement();
        let mut crossings = Vec::new();
        for (stage, pair) in cut.windows(2).enumerate() {
            if let Some(link) = self.network.between(placement.worker(stage), placement.worker(stage + 1))? {
                crossings.push(Crossing { stage, link, bytes: self.bytes_at(pair[0].end)? });
            }
        }
        Ok(Placed { checked, placement, cut, crossings })
    }

    /// Simulates the predicted plan and returns its step time, bubble, throughput and memory. Only transfers over the
    /// network links in `crossings` take time; other transfers are free.
    fn predict_over(&self, placed: &Placed, crossings: &[Crossing]) -> Prediction {
        let Placed { checked, cut, .. } = placed;
        let plan = checked.plan();
        let (workers, micro_batches) = (plan.workers(), plan.micro_batches());
        let (costs, sends) = self.costs(placed, crossings);
        let timeline = simulate(checked, &costs);
        let actions = (2 * micro_batches * cut.len() / workers) as f64;
        let step = self.variation * (timeline.step() + self.step_overhead + self.action_overhead * actions);
        let busy = timeline.busy().iter().sum::<f64>() - sends * micro_batches as f64;
        Prediction {
            step,
            bubble: 1.0 - busy / (step * workers as f64),
            tokens_per_s: self.tokens * micro_batches as f64 / step,
            peak_live: plan.peak_live(),
            peak_bytes: self.footprint.as_ref().map(|footprint| footprint.peaks(cut, plan)),
            cut: cut.clone(),
        }
    }

    /// Returns the costs of each stage in seconds, for the simulation of the predicted plan, and the seconds for which
    /// all sends of one micro-batch together keep workers busy. The time of each send is already part of the sending
    /// stage's forward or backward.
    fn costs(&self, Placed { placement, cut, .. }: &Placed, crossings: &[Crossing]) -> (Costs, f64) {
        let sum =
            |range: &Range<usize>, of: fn(&LayerCost) -> f64| self.layers[range.clone()].iter().map(of).sum::<f64>();
        let sends_on = |stage: usize| stage + 1 < cut.len() && placement.worker(stage) != placement.worker(stage + 1);
        let mut sends = 0.0;
        let stage_cost = |(stage, range)| {
            let (forward, backward) = (sum(range, |layer| layer.forward), sum(range, |layer| layer.backward));
            let onwards = if sends_on(stage) { self.send_seconds } else { 0.0 };
            let back = if stage > 0 && sends_on(stage - 1) { self.send_seconds } else { 0.0 };
            sends += onwards + back;
            // The log does not split a backward, so both halves are assumed to be equal.
            StageCost::new(forward + onwards, backward / 2.0 + back, backward / 2.0)
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

    /// Returns the smallest number of micro-batches M, from 1 to `most`, whose predicted bubble is at most `bubble`,
    /// and the prediction for this M; `None` if there is no such M. The number of micro-batches in `target` is ignored,
    /// and numbers that the schedule does not support are skipped.
    ///
    /// # Errors
    /// Returns the same errors as [`predict`](Self::predict).
    pub fn least_micro_batches(
        &self,
        target: &Target,
        bubble: f64,
        most: usize,
    ) -> Result<Option<(usize, Prediction)>, PredictError> {
        for micro_batches in 1..=most {
            let prediction = self.predict_with(target, micro_batches)?;
            if let Some(prediction) = prediction.filter(|prediction| prediction.bubble <= bubble) {
                return Ok(Some((micro_batches, prediction)));
            }
        }
        Ok(None)
    }

    /// Predicts as [`predict`](Self::predict) with another number of micro-batches than that of `target`; returns `None`
    /// if the schedule has no plan for this number.
    pub(super) fn predict_with(
        &self,
        target: &Target,
        micro_batches: usize,
    ) -> Result<Option<Prediction>, PredictError> {
        match self.predict(&Target { micro_batches, cut: target.cut.clone(), ..*target }) {
            Ok(prediction) => Ok(Some(prediction)),
            Err(PredictError::Schedule(ScheduleError::MicroBatches { .. })) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The predicted plan, which is known to be complete and free of deadlock, with its partition of the layers into stages
/// and the network links between the stages.
struct Placed {
    checked: Checked,
    placement: Placement,
    cut: Vec<Range<usize>>,
    crossings: Vec<Crossing>,
}
