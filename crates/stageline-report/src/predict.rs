//! What another plan would give, from what a run took.
//!
//! With as many stages as the run they are its own; of another cut they are sums of layers, as even as contiguous layers can be,
//! where a layer is its share of what its stage took. A step is the simulated one, and what the run had besides: the cut of the
//! batch once a step, threads and channels with every action.
//!
//! Workers are the first ones of the run, and joined as these were: what crosses a link that the run measured takes its latency
//! and what its bytes take, and keeps no worker. So that it counts once, a send of the run counts only as far as it took longer
//! than that, and what the run's accounts call `other` is taken to have no transfer in it. What crosses is known at the boundaries
//! of the run; elsewhere it is taken to be the mean of these.

use std::ops::Range;

use stageline_schedule::{Checked, Costs, Placement, Schedule, ScheduleError, StageCost, check, simulate};

use crate::measured::{LayerCost, Measured};
use crate::predict_error::PredictError;
use crate::record::Link;

/// What is predicted.
pub struct Target<'a> {
    /// P.
    pub workers: usize,
    /// M, with micro-batches of the same size.
    pub micro_batches: usize,
    /// The schedule.
    pub schedule: &'a dyn Schedule,
    /// Which stage has which layers.
    pub cut: Cut,
}

/// How a model is cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cut {
    /// As the run was, if it had as many stages; else balanced.
    OfTheRun,
    /// As evenly as contiguous layers go.
    Balanced,
    /// The layers of each stage, by their index.
    Given(Vec<Range<usize>>),
}

/// What a plan would give.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// Seconds.
    pub step: f64,
    /// Share of the *total* stage time.
    pub bubble: f64,
    /// Tokens a second.
    pub tokens_per_s: f64,
    /// Each worker's peak of live micro-batches, all its chunks together.
    pub peak_live: Vec<usize>,
    /// The most that each worker holds, in bytes; `None` where the run did not count that.
    pub peak_bytes: Option<Vec<f64>>,
    /// The layers of each stage, by their index.
    pub cut: Vec<Range<usize>>,
}

/// What crosses a link between two stages of a plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Crossing {
    /// The stage before it.
    pub stage: usize,
    /// The link to the stage behind it.
    pub link: Link,
    /// What crosses for a micro-batch, each way, in bytes.
    pub bytes: f64,
}

impl Crossing {
    /// How long a micro-batch's activations and its gradient take together, in seconds.
    pub fn takes(&self) -> f64 {
        2.0 * self.link.takes(self.bytes)
    }
}

impl Measured {
    /// # Errors
    /// [`PredictError`] where there is no such plan or cut, or what joins its workers is not known.
    pub fn predict(&self, target: &Target) -> Result<Prediction, PredictError> {
        let laid = self.lay(target)?;
        Ok(self.predict_over(&laid, &laid.crossings))
    }

    /// What crosses links, in order, each with the bubble that there would be if it were the only one.
    ///
    /// # Errors
    /// As for [`predict`](Self::predict).
    pub fn crossings(&self, target: &Target) -> Result<Vec<(Crossing, f64)>, PredictError> {
        let laid = self.lay(target)?;
        let alone = |crossing: &Crossing| (*crossing, self.predict_over(&laid, &[*crossing]).bubble);
        Ok(laid.crossings.iter().map(alone).collect())
    }

    /// What is to be simulated.
    fn lay(&self, target: &Target) -> Result<Laid, PredictError> {
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
        Ok(Laid { checked, placement, cut, crossings })
    }

    /// What comes of it where links are crossed there.
    fn predict_over(&self, laid: &Laid, crossings: &[Crossing]) -> Prediction {
        let Laid { checked, cut, .. } = laid;
        let plan = checked.plan();
        let (workers, micro_batches) = (plan.workers(), plan.micro_batches());
        let (costs, sends) = self.costs(laid, crossings);
        let timeline = simulate(checked, &costs);
        let actions = (2 * micro_batches * cut.len() / workers) as f64;
        let step = timeline.step() + self.once + self.besides * actions;
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

    /// What each stage takes, the sends to other workers included, which keep theirs; and those sends of one micro-batch.
    fn costs(&self, Laid { placement, cut, .. }: &Laid, crossings: &[Crossing]) -> (Costs, f64) {
        let sum =
            |range: &Range<usize>, of: fn(&LayerCost) -> f64| self.layers[range.clone()].iter().map(of).sum::<f64>();
        let hands_on = |stage: usize| stage + 1 < cut.len() && placement.worker(stage) != placement.worker(stage + 1);
        let mut sends = 0.0;
        let stage_cost = |(stage, range)| {
            let (forward, backward) = (sum(range, |layer| layer.forward), sum(range, |layer| layer.backward));
            let onwards = if hands_on(stage) { self.send } else { 0.0 };
            let back = if stage > 0 && hands_on(stage - 1) { self.send } else { 0.0 };
            sends += onwards + back;
            // A backward's halves are taken to be halves.
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

    /// The smallest M instead of the target's, and not more than `most`, whose bubble is not above `bubble`; none if there is none.
    ///
    /// # Errors
    /// As for [`predict`](Self::predict), for other reasons than the number of micro-batches.
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

/// A plan of a cut, and the links between its stages.
struct Laid {
    checked: Checked,
    placement: Placement,
    cut: Vec<Range<usize>>,
    crossings: Vec<Crossing>,
}

/// Whether every stage has layers, which follow on those of the one before.
fn is_cut(cut: &[Range<usize>], layers: usize, stages: usize) -> bool {
    let starts = [0].into_iter().chain(cut.iter().map(|range| range.end));
    let follow = cut.iter().zip(starts).all(|(range, start)| range.start == start && !range.is_empty());
    cut.len() == stages && follow && cut.last().is_some_and(|last| last.end == layers)
}
