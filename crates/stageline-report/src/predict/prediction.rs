//! Predicts the step time, bubble, throughput and memory of another plan, by simulation with the costs of a run.
//!
//! - *Stages.* With as many stages as the run had, the prediction uses its stages. Otherwise a stage is a sum of layers, each with its
//!   share of the stage that it had in the run.
//! - *Step time.* A step is the simulated step, plus the overheads of the run: that of a step once, that of an action for each action.
//! - *Transfers.* Worker n of the prediction has the links of worker n of the run. A transfer over a link takes its latency plus bytes /
//!   bandwidth, and keeps no worker busy. To count a transfer only once, a send of the run counts only as far as it took longer than
//!   that. The cause `other` of the log is assumed to contain no transfers.
//! - *Sizes.* The bytes of a transfer are known at the boundaries of the run. Elsewhere their mean is assumed.

use std::ops::Range;

use stageline_schedule::{Checked, Costs, Placement, Schedule, ScheduleError, StageCost, check, simulate};

use super::error::PredictError;
use super::measured::{LayerCost, Measured};
use crate::log::record::Link;

/// The plan to predict for.
pub struct Target<'a> {
    /// The number of workers, P.
    pub workers: usize,
    /// The number of micro-batches, M. They have the size of those of the run.
    pub micro_batches: usize,
    /// The schedule, which generates the plan.
    pub schedule: &'a dyn Schedule,
    /// The partition of the layers into stages.
    pub cut: Cut,
}

/// A partition of the layers into stages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The partition of the run if it has as many stages as the plan, else the balanced one.
    OfTheRun,
    /// The most even partition into contiguous layers.
    Balanced,
    /// The given partition: the layers of each stage, by index.
    Given(Vec<Range<usize>>),
}

/// The predicted figures of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// The step time, in seconds.
    pub step: f64,
    /// The bubble, as a share of the *total* stage time.
    pub bubble: f64,
    /// The throughput, in tokens a second.
    pub tokens_per_s: f64,
    /// The most live micro-batches of each worker, counted over all its chunks.
    pub peak_live: Vec<usize>,
    /// The peak memory of each worker, in bytes; `None` if the run did not count memory.
    pub peak_bytes: Option<Vec<f64>>,
    /// The layers of each stage, by index.
    pub cut: Vec<Range<usize>>,
}

/// The transfers over one link, between two neighbouring stages of a plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Crossing {
    /// The stage before the link.
    pub stage: usize,
    /// The link to the next stage.
    pub link: Link,
    /// The bytes of a micro-batch in each direction.
    pub bytes: f64,
}

impl Crossing {
    /// Returns the seconds in which a micro-batch's activation and gradient cross the link.
    pub fn takes(&self) -> f64 {
        2.0 * self.link.takes(self.bytes)
    }
}

impl Measured {
    /// Predicts the figures of a plan.
    ///
    /// # Errors
    /// [`PredictError`] if the schedule has no such plan, the partition is invalid, or a link or its bytes are not known.
    pub fn predict(&self, target: &Target) -> Result<Prediction, PredictError> {
        let placed = self.place(target)?;
        Ok(self.predict_over(&placed, &placed.crossings))
    }

    /// Returns the links that a plan uses, in the order of the stages, each with the bubble of the plan if it were the only link.
    ///
    /// # Errors
    /// Fails as [`predict`](Self::predict) does.
    pub fn crossings(&self, target: &Target) -> Result<Vec<(Crossing, f64)>, PredictError> {
        let placed = self.place(target)?;
        let alone = |crossing: &Crossing| (*crossing, self.predict_over(&placed, &[*crossing]).bubble);
        Ok(placed.crossings.iter().map(alone).collect())
    }

    /// Generates and checks the plan, partitions the layers, and finds the links between stages.
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

    /// Simulates a plan in which only these links take time.
    fn predict_over(&self, placed: &Placed, crossings: &[Crossing]) -> Prediction {
        let Placed { checked, cut, .. } = placed;
        let plan = checked.plan();
        let (workers, micro_batches) = (plan.workers(), plan.micro_batches());
        let (costs, sends) = self.costs(placed, crossings);
        let timeline = simulate(checked, &costs);
        let actions = (2 * micro_batches * cut.len() / workers) as f64;
        let step = timeline.step() + self.step_overhead + self.action_overhead * actions;
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

    /// Returns the costs of each stage, in which sends occupy their workers, and the seconds of all sends of one micro-batch.
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

    /// Returns the smallest M up to `most` with a bubble of at most `bubble`, and its prediction; `None` if there is no such M. Ignores
    /// the M of the target, and skips any M that the schedule does not support.
    ///
    /// # Errors
    /// Fails as [`predict`](Self::predict) does.
    pub fn least_micro_batches(
        &self,
        target: &Target,
        bubble: f64,
        most: usize,
    ) -> Result<Option<(usize, Prediction)>, PredictError> {
        for micro_batches in 1..=most {
            match self.predict(&Target { micro_batches, cut: target.cut.clone(), ..*target }) {
                Ok(prediction) if prediction.bubble <= bubble => return Ok(Some((micro_batches, prediction))),
                Ok(_) | Err(PredictError::Schedule(ScheduleError::MicroBatches { .. })) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }
}

/// A plan with a partition of the layers, and the links between its stages.
struct Placed {
    checked: Checked,
    placement: Placement,
    cut: Vec<Range<usize>>,
    crossings: Vec<Crossing>,
}

/// Whether every stage has layers, and they follow those of the stage before.
fn is_cut(cut: &[Range<usize>], layers: usize, stages: usize) -> bool {
    let starts = [0].into_iter().chain(cut.iter().map(|range| range.end));
    let follow = cut.iter().zip(starts).all(|(range, start)| range.start == start && !range.is_empty());
    cut.len() == stages && follow && cut.last().is_some_and(|last| last.end == layers)
}
