//! Predicts the step time, bubble, throughput and memory of another plan, by simulation with the costs of a run:
//! [`Prediction`].
//!
//! - *Stages.* If the plan has the same number of stages as the run, the prediction uses the run's stages. Otherwise a
//!   stage's costs are the sum of its layers' costs. A layer's costs are its part of the costs of its stage in the run.
//! - *Step time.* The predicted step is the simulated step plus the overheads of the run. The overhead of a step is
//!   added once, and the overhead of an action for each action of a worker. The input and weight gradient of a split
//!   backward pass are two actions. The sum is multiplied by a correction factor (the run's variation): the run's own
//!   step time, divided by the step time that is simulated for the run in this way.
//!
//! A prediction lacks two costs that the log of a run with another schedule does not show: the fixed work of each chunk
//! in addition to its layers, and the extra work of a split backward pass compared with a whole one. Layers without
//! FLOPs, such as embeddings, count as free within their stage. Only the log of a run with the predicted schedule
//! contains these costs.

use std::ops::Range;

use stageline_schedule::{CheckError, Checked, Placement, ScheduleError, check, simulate};

use super::error::PredictError;
use super::measured::{Measured, actions_of_worker};
use super::plan_costs::Crossing;
use super::target::{Cut, Target, is_cut};
use crate::log::record::Unit;

/// Maximum product `stages * M * M` for a search through all plans up to M micro-batches. The search time grows with
/// this product, and reaches about 10 s at this limit.
const MOST_TO_SEARCH: usize = 100_000_000;

/// The predicted performance of a plan: its step time, bubble, throughput and memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// Predicted step time of the plan, in seconds.
    pub step: f64,
    /// Predicted bubble: the idle fraction of `workers x step time`; 0.1 is 10%.
    pub bubble: f64,
    /// The predicted throughput of a plan: the loss weight of the targets that it processes per second. In most models,
    /// this is the number of unmasked tokens per second. The throughput in a log also counts masked tokens.
    pub tokens_per_s: f64,
    /// The unit of `tokens_per_s`: tokens, or samples for data without tokens.
    pub unit: Unit,
    /// Peak number of live micro-batches of each worker, summed over its chunks (stages). A micro-batch is live while
    /// the worker retains its activations for a backward pass.
    pub peak_live: Vec<usize>,
    /// The predicted peak of each worker's device memory, in bytes; `None` if the run did not measure memory.
    pub peak_bytes: Option<Vec<f64>>,
    /// The predicted plan's partition (cut) of the model's layers into stages: the range of layer indices, from 0, of
    /// each stage.
    pub cut: Vec<Range<usize>>,
}

impl Measured {
    /// Predicts the step time, bubble, throughput and memory of the plan that `target` describes.
    ///
    /// # Errors
    /// Returns [`PredictError`] in these cases:
    ///
    /// - The schedule has no plan for these numbers of workers and micro-batches.
    /// - The schedule's plan deadlocks with the channels of the run.
    /// - The partition of the layers is invalid.
    /// - A network link, or the bytes that it carries, are not known.
    pub fn predict(&self, target: &Target) -> Result<Prediction, PredictError> {
        let placed = self.place(target)?;
        Ok(self.predict_over(&placed, &placed.crossings))
    }

    /// Returns each network link between neighbouring stages of the predicted plan, in the order of the stages. Each
    /// link is paired with the predicted bubble (0 to 1) if only this link's transfers take time. Compute times are the
    /// same as in [`predict`](Self::predict).
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
        let (stages, layers) = (target.schedule.stages_on(target.workers), self.layers.len());
        let cut = match &target.cut {
            Cut::Given(cut) if !is_cut(cut, layers, stages) => {
                return Err(PredictError::Cut { cut: cut.clone(), layers, stages });
            }
            _ => self.cut_for(target)?,
        };
        let plan = target.schedule.plan(stages, target.micro_batches)?;
        if plan.workers() != target.workers {
            return Err(PredictError::Workers { own: plan.workers(), workers: target.workers });
        }
        let capacity = self.capacity.unwrap_or(target.micro_batches).min(target.micro_batches);
        let checked = check(plan, capacity)?;
        let placement = checked.placement();
        let crossings = self.crossings_on(&placement, &cut)?;
        Ok(Placed { checked, placement, cut, crossings })
    }

    /// Simulates the predicted plan and returns its step time, bubble, throughput and memory. Only transfers over the
    /// network links in `crossings` take time; other transfers are free.
    fn predict_over(&self, placed: &Placed, crossings: &[Crossing]) -> Prediction {
        let Placed { checked, placement, cut, .. } = placed;
        let plan = checked.plan();
        let (workers, micro_batches) = (plan.workers(), plan.micro_batches());
        let (costs, sends) = self.costs_over(placement, cut, crossings);
        let timeline = simulate(checked, &costs);
        let actions = actions_of_worker(plan);
        let step = self.variation * (timeline.step() + self.step_overhead + self.action_overhead * actions);
        let busy = timeline.busy().iter().sum::<f64>() - sends * micro_batches as f64;
        // If the run was faster than its simulation, its workers also computed faster.
        let busy = busy * self.variation.min(1.0);
        Prediction {
            step,
            bubble: 1.0 - busy / (step * workers as f64),
            tokens_per_s: self.weight * micro_batches as f64 / step,
            unit: self.unit,
            peak_live: plan.peak_live(),
            peak_bytes: self.footprint.as_ref().map(|footprint| footprint.peaks(cut, plan)),
            cut: cut.clone(),
        }
    }

    /// Returns the smallest number of micro-batches M, from 1 to `most`, whose predicted bubble is at most `bubble`,
    /// with its prediction. Bubbles are fractions of the total stage time, from 0 to 1. Returns `None` if there is no
    /// such M. Skips numbers that the schedule does not support, and those whose plan deadlocks with the run's channel
    /// capacity. `target`'s own number of micro-batches is used only to find the partition of the layers, which is the
    /// same for all M.
    ///
    /// # Errors
    /// Returns the same errors as [`predict`](Self::predict), and [`PredictError::TooManyPlans`] if the plans up to
    /// `most` would take too long to simulate ([`most_to_search`](Self::most_to_search)).
    pub fn least_micro_batches(
        &self,
        target: &Target,
        bubble: f64,
        most: usize,
    ) -> Result<Option<(usize, Prediction)>, PredictError> {
        let stages = target.schedule.stages_on(target.workers);
        let fewer = Self::most_to_search(stages);
        if most > fewer {
            return Err(PredictError::TooManyPlans { stages, most, fewer });
        }
        let target = &self.with_its_cut(target)?;
        for micro_batches in 1..=most {
            let prediction = self.predict_with(target, micro_batches)?;
            if let Some(prediction) = prediction.filter(|prediction| prediction.bubble <= bubble) {
                return Ok(Some((micro_batches, prediction)));
            }
        }
        Ok(None)
    }

    /// Returns the largest number of micro-batches up to which [`least_micro_batches`](Self::least_micro_batches)
    /// simulates plans of `stages` stages. Its time grows with the square of this number.
    pub fn most_to_search(stages: usize) -> usize {
        (MOST_TO_SEARCH / stages.max(1)).isqrt()
    }

    /// Returns `target` with its partition of the layers made explicit ([`Cut::Given`]), so that predictions for
    /// several numbers of micro-batches share one partition instead of searching for it each time.
    pub(super) fn with_its_cut<'t>(&self, target: &Target<'t>) -> Result<Target<'t>, PredictError> {
        let cut = match &target.cut {
            Cut::Given(cut) => cut.clone(),
            _ => self.cut_for(target)?,
        };
        Ok(Target { cut: Cut::Given(cut), ..*target })
    }

    /// Predicts the step time, bubble, throughput and memory of the plan that `target` describes, but with another
    /// number of micro-batches. Returns `None` if the schedule has no plan for this number, or only one that deadlocks
    /// with the run's channel capacity. For `target`'s own number, a deadlock is an error. All other errors of
    /// [`predict`](Self::predict) are returned.
    pub(super) fn predict_with(
        &self,
        target: &Target,
        micro_batches: usize,
    ) -> Result<Option<Prediction>, PredictError> {
        match self.predict(&Target { micro_batches, cut: target.cut.clone(), ..*target }) {
            Ok(prediction) => Ok(Some(prediction)),
            // With another number of micro-batches, the run's channel capacity may be too small.
            Err(PredictError::Check(CheckError::Deadlock { .. })) if micro_batches != target.micro_batches => Ok(None),
            Err(PredictError::Schedule(ScheduleError::MicroBatches { .. })) => Ok(None),
            // A plan that a search found, or that was read from a file, exists for one number of micro-batches only.
            Err(PredictError::Schedule(ScheduleError::Shape { written, asked })) if written.0 == asked.0 => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The predicted plan, which is complete and does not deadlock, with its partition of the layers into stages and the
/// network links between the stages.
struct Placed {
    checked: Checked,
    placement: Placement,
    cut: Vec<Range<usize>>,
    crossings: Vec<Crossing>,
}
