//! What another plan would give, from what a run took.
//!
//! Every layer's cost is its share of what its stage took, medians over the steps; stages of another cut are sums of layers,
//! as even as contiguous layers can be. A step is the simulated one, and what the run had besides: threads, channels and the
//! cut of the batch, which grow with the number of actions.

use stageline_schedule::{
    BalanceError, CheckError, Costs, Schedule, ScheduleError, StageCost, balance, check, simulate,
};

use crate::record::{Layer, StageCosts};
use crate::run_log::{RunLog, median};

/// What is predicted.
pub struct Target<'a> {
    /// P.
    pub workers: usize,
    /// M, with micro-batches of the same size.
    pub micro_batches: usize,
    /// The schedule.
    pub schedule: &'a dyn Schedule,
}

/// What a plan would give.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// Seconds.
    pub step: f64,
    /// Share of the *total* stage time.
    pub bubble: f64,
    /// Targets a second.
    pub tokens_per_s: f64,
    /// Each worker's peak of live micro-batches, all its chunks together.
    pub peak_live: Vec<usize>,
    /// The layers of each stage, by their index.
    pub cut: Vec<std::ops::Range<usize>>,
}

/// What a run says of its model.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    layers: Vec<LayerCost>,
    /// Of a micro-batch.
    tokens: f64,
    /// What every action had besides, on its worker.
    besides: f64,
    /// What a send took.
    send: f64,
}

/// What one layer takes for a micro-batch, and for its part of the flush.
#[derive(Clone, Copy, Debug, PartialEq)]
struct LayerCost {
    forward: f64,
    backward: f64,
    flush: f64,
}

impl Measured {
    /// # Errors
    /// [`PredictError`] where the log has no step, or does not say which stage has which layers.
    pub fn of(log: &RunLog) -> Result<Self, PredictError> {
        let stages = log.plan.stages();
        let costs = (0..stages).map(|stage| stage_costs(log, stage)).collect::<Option<Vec<_>>>();
        let costs = costs.ok_or(PredictError::NoSteps)?;
        let layers = log.run.layers.iter().map(|layer| layer_cost(layer, &log.run.layers, &costs));
        let layers = layers.collect::<Option<Vec<_>>>().ok_or(PredictError::Layers { stages })?;
        let held = |stage: usize| log.run.layers.iter().any(|layer| layer.stage == stage);
        if !(0..stages).all(held) {
            return Err(PredictError::Layers { stages });
        }
        let actions = (2 * log.plan.micro_batches() * stages / log.plan.workers().max(1)).max(1) as f64;
        let besides = median(log.warm_steps().map(|step| {
            let other: f64 = step.workers.iter().map(|worker| worker.other).sum();
            other / step.workers.len().max(1) as f64
        }));
        let sends = costs.iter().flat_map(|cost| [cost.send_activation, cost.send_gradient]).filter(|send| *send > 0.0);
        Ok(Self {
            layers,
            tokens: log.run.tokens_per_micro_batch,
            besides: besides.unwrap_or(0.0).max(0.0) / actions,
            send: median(sends).unwrap_or(0.0),
        })
    }

    /// # Errors
    /// [`PredictError`] where there is no such plan, or there are fewer layers than stages.
    pub fn predict(&self, target: &Target) -> Result<Prediction, PredictError> {
        let stages = target.workers * target.schedule.chunks();
        let work: Vec<_> = self.layers.iter().map(|layer| layer.forward + layer.backward).collect();
        let cut = balance(&work, stages)?;
        let plan = target.schedule.plan(stages, target.micro_batches)?;
        let checked = check(plan, target.micro_batches)?;
        let sum = |range: &std::ops::Range<usize>, of: fn(&LayerCost) -> f64| {
            self.layers[range.clone()].iter().map(of).sum::<f64>()
        };
        let stage_cost = |range| {
            let (forward, backward) = (sum(range, |layer| layer.forward), sum(range, |layer| layer.backward));
            // A send keeps its worker; a backward's halves are taken to be halves.
            StageCost::new(forward + self.send, backward / 2.0 + self.send, backward / 2.0)
        };
        let flush = cut.iter().map(|range| sum(range, |layer| layer.flush)).collect();
        let costs = Costs::by_stage(cut.iter().map(stage_cost).collect()).with_optimizer(flush);
        let timeline = simulate(&checked, &costs);
        let actions = (2 * target.micro_batches * target.schedule.chunks()) as f64;
        let step = timeline.step() + self.besides * actions;
        let sends = 2.0 * self.send * (target.micro_batches * stages) as f64;
        let busy = timeline.busy().iter().sum::<f64>() - sends;
        Ok(Prediction {
            step,
            bubble: 1.0 - busy / (step * target.workers as f64),
            tokens_per_s: self.tokens * target.micro_batches as f64 / step,
            peak_live: checked.plan().peak_live(),
            cut,
        })
    }

    /// The smallest M, and not more than `most`, whose bubble is not above `bubble`; none if there is none.
    ///
    /// # Errors
    /// As for [`predict`](Self::predict), for other reasons than the number of micro-batches.
    pub fn least_micro_batches(
        &self,
        workers: usize,
        schedule: &dyn Schedule,
        bubble: f64,
        most: usize,
    ) -> Result<Option<(usize, Prediction)>, PredictError> {
        for micro_batches in 1..=most {
            match self.predict(&Target { workers, micro_batches, schedule }) {
                Ok(prediction) if prediction.bubble <= bubble => return Ok(Some((micro_batches, prediction))),
                Ok(_) | Err(PredictError::Schedule(ScheduleError::MicroBatches { .. })) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }
}

/// A stage's costs, medians over the steps.
fn stage_costs(log: &RunLog, stage: usize) -> Option<StageCosts> {
    let of =
        |cost: fn(&StageCosts) -> f64| median(log.warm_steps().filter_map(|step| step.stages.get(stage)).map(cost));
    Some(StageCosts {
        forward: of(|cost| cost.forward)?,
        backward: of(|cost| cost.backward)?,
        send_activation: of(|cost| cost.send_activation)?,
        send_gradient: of(|cost| cost.send_gradient)?,
        flush: of(|cost| cost.flush)?,
    })
}

/// A layer's share of its stage.
fn layer_cost(layer: &Layer, layers: &[Layer], stages: &[StageCosts]) -> Option<LayerCost> {
    let stage = stages.get(layer.stage)?;
    let siblings = || layers.iter().filter(|sibling| sibling.stage == layer.stage);
    let work = layer.weight / siblings().map(|sibling| sibling.weight).sum::<f64>().max(f64::MIN_POSITIVE);
    let parameters: u64 = siblings().map(|sibling| sibling.parameters).sum();
    let held = if parameters > 0 { layer.parameters as f64 / parameters as f64 } else { work };
    Some(LayerCost { forward: work * stage.forward, backward: work * stage.backward, flush: held * stage.flush })
}

/// Why nothing can be predicted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PredictError {
    /// The log has no step.
    #[error("the log has no step that computed anything; let the run go on for at least 3 steps")]
    NoSteps,
    /// The log does not say which stage has which layers.
    #[error("the log does not give each of the {stages} stages its layers; write it anew with `--log`")]
    Layers {
        /// The stages of the run.
        stages: usize,
    },
    /// There are fewer layers than stages.
    #[error(transparent)]
    Balance(#[from] BalanceError),
    /// The schedule has no such plan.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// The plan cannot run.
    #[error(transparent)]
    Check(#[from] CheckError),
}
