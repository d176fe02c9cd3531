//! What another plan would give, from what a run took.
//!
//! With as many stages as the run they are its own; of another cut they are sums of layers, as even as contiguous layers can be,
//! where a layer is its share of what its stage took. A step is the simulated one, and what the run had besides: the cut of the
//! batch once a step, threads and channels with every action.

use std::ops::Range;

use stageline_schedule::{
    BalanceError, CheckError, Costs, Placement, Schedule, ScheduleError, StageCost, balance, check, simulate,
};

use crate::footprint::Footprint;
use crate::record::{Layer, StageCosts, Step};
use crate::run_log::{RunLog, median};

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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// As the run was, if it had as many stages; else balanced.
    OfTheRun,
    /// As evenly as contiguous layers go.
    Balanced,
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

/// What stages on different workers hand each other crosses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// From the send to the moment the other can take it, but for what its size takes, in seconds.
    pub latency: f64,
    /// Each way, in bytes a second; what crosses follows each other.
    pub bandwidth: f64,
}

/// What a run says of its model.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    layers: Vec<LayerCost>,
    footprint: Option<Footprint>,
    /// The run's own.
    cut: Vec<Range<usize>>,
    /// Of a micro-batch of every replica.
    tokens: f64,
    /// What a step has besides, once.
    once: f64,
    /// What every action has besides, on its worker.
    besides: f64,
    /// What a send takes.
    send: f64,
    /// Micro-batches that a channel holds, if not all.
    capacity: Option<usize>,
    /// What crosses behind each stage of the run but the last, in bytes; none where the log does not say.
    crossing: Option<Vec<f64>>,
    /// Over which it does in predictions, if not over the run's.
    link: Option<Link>,
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
        let (stages, micro_batches) = (log.plan.stages(), log.plan.micro_batches());
        let costs = (0..stages).map(|stage| stage_costs(log, stage)).collect::<Option<Vec<_>>>();
        let costs = costs.ok_or(PredictError::NoSteps)?;
        let unknown = || PredictError::Layers { stages };
        let layers = log.run.layers.iter().map(|layer| layer_cost(layer, &log.run.layers, &costs));
        let layers = layers.collect::<Option<Vec<_>>>().ok_or_else(unknown)?;
        let cut = cut_of(&log.run.layers, stages).ok_or_else(unknown)?;
        let other = median(log.warm_steps().map(|step| {
            let other: f64 = step.workers.iter().map(|worker| worker.other).sum();
            other / step.workers.len().max(1) as f64
        }));
        let other = other.unwrap_or(0.0).max(0.0);
        let once = once_a_step(log).min(other);
        let actions = (2 * micro_batches * stages / log.plan.workers().max(1)).max(1) as f64;
        let sends = costs.iter().flat_map(|cost| [cost.send_activation, cost.send_gradient]).filter(|send| *send > 0.0);
        Ok(Self {
            layers,
            footprint: Footprint::of(log, &cut),
            cut,
            tokens: log.run.tokens_per_micro_batch * log.run.replicas as f64,
            once,
            besides: (other - once) / actions,
            send: median(sends).unwrap_or(0.0),
            capacity: Some(log.run.channel_capacity).filter(|capacity| *capacity < micro_batches),
            crossing: costs[..stages - 1].iter().map(|cost| cost.output_bytes).collect(),
            link: None,
        })
    }

    /// The same stages, where they are joined by such links.
    ///
    /// What crosses where the run has no boundary is taken to be the mean of what crosses at those that it has.
    ///
    /// # Errors
    /// [`PredictError::Bytes`] where the log does not say what crosses.
    pub fn over(self, link: Link) -> Result<Self, PredictError> {
        let known = self.crossing.as_ref().is_some_and(|bytes| !bytes.is_empty());
        if known { Ok(Self { link: Some(link), ..self }) } else { Err(PredictError::Bytes) }
    }

    /// The most that crosses one boundary of the run for a micro-batch, in bytes.
    pub fn most_crossing(&self) -> Option<f64> {
        self.crossing.as_ref()?.iter().copied().reduce(f64::max)
    }

    /// The layers of each stage of the run, by their index.
    pub fn cut(&self) -> &[Range<usize>] {
        &self.cut
    }

    /// The most even cut.
    ///
    /// # Errors
    /// [`PredictError::Balance`] where there are fewer layers than stages.
    pub fn balanced(&self, stages: usize) -> Result<Vec<Range<usize>>, PredictError> {
        let work: Vec<_> = self.layers.iter().map(|layer| layer.forward + layer.backward).collect();
        Ok(balance(&work, stages)?)
    }

    /// # Errors
    /// [`PredictError`] where there is no such plan, or there are fewer layers than stages.
    pub fn predict(&self, target: &Target) -> Result<Prediction, PredictError> {
        let stages = target.workers * target.schedule.chunks();
        let cut = match target.cut {
            Cut::OfTheRun if stages == self.cut.len() => self.cut.clone(),
            _ => self.balanced(stages)?,
        };
        let plan = target.schedule.plan(stages, target.micro_batches)?;
        let capacity = self.capacity.unwrap_or(target.micro_batches).min(target.micro_batches);
        let checked = check(plan, capacity)?;
        let sum =
            |range: &Range<usize>, of: fn(&LayerCost) -> f64| self.layers[range.clone()].iter().map(of).sum::<f64>();
        let (costs, sends) = self.costs(&cut, &checked.placement(), sum);
        let flush = cut.iter().map(|range| sum(range, |layer| layer.flush)).collect();
        let costs = Costs::by_stage(costs).with_links(self.links(&cut)).with_optimizer(flush);
        let timeline = simulate(&checked, &costs);
        let actions = (2 * target.micro_batches * target.schedule.chunks()) as f64;
        let step = timeline.step() + self.once + self.besides * actions;
        let busy = timeline.busy().iter().sum::<f64>() - sends * target.micro_batches as f64;
        Ok(Prediction {
            step,
            bubble: 1.0 - busy / (step * target.workers as f64),
            tokens_per_s: self.tokens * target.micro_batches as f64 / step,
            peak_live: checked.plan().peak_live(),
            peak_bytes: self.footprint.as_ref().map(|footprint| footprint.peaks(&cut, checked.plan())),
            cut,
        })
    }

    /// What each stage takes, the sends to other workers included, which keep theirs; and those sends of one micro-batch.
    fn costs(
        &self,
        cut: &[Range<usize>],
        placement: &Placement,
        sum: impl Fn(&Range<usize>, fn(&LayerCost) -> f64) -> f64,
    ) -> (Vec<StageCost>, f64) {
        let crosses = |stage: usize| stage + 1 < cut.len() && placement.worker(stage) != placement.worker(stage + 1);
        let mut sends = 0.0;
        let stage_cost = |(stage, range)| {
            let (forward, backward) = (sum(range, |layer| layer.forward), sum(range, |layer| layer.backward));
            let onwards = if crosses(stage) { self.send } else { 0.0 };
            let back = if stage > 0 && crosses(stage - 1) { self.send } else { 0.0 };
            sends += onwards + back;
            // A backward's halves are taken to be halves.
            let cost = StageCost::new(forward + onwards, backward / 2.0 + back, backward / 2.0);
            cost.with_latency(self.link.map_or(0.0, |link| link.latency))
        };
        (cut.iter().enumerate().map(stage_cost).collect(), sends)
    }

    /// How long a micro-batch occupies the link behind each stage.
    fn links(&self, cut: &[Range<usize>]) -> Vec<f64> {
        let (Some(link), Some(crossing)) = (self.link, &self.crossing) else { return vec![0.0; cut.len()] };
        let mean = crossing.iter().sum::<f64>() / crossing.len().max(1) as f64;
        let ends = || self.cut.iter().map(|range| range.end);
        let behind = |range: &Range<usize>| {
            let bytes = ends().position(|end| end == range.end).and_then(|stage| crossing.get(stage));
            bytes.copied().unwrap_or(mean) / link.bandwidth
        };
        cut.iter().map(behind).collect()
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
            match self.predict(&Target { workers, micro_batches, schedule, cut: Cut::Balanced }) {
                Ok(prediction) if prediction.bubble <= bubble => return Ok(Some((micro_batches, prediction))),
                Ok(_) | Err(PredictError::Schedule(ScheduleError::MicroBatches { .. })) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }
}

/// The layers of each stage, which must be consecutive, and at least one.
fn cut_of(layers: &[Layer], stages: usize) -> Option<Vec<Range<usize>>> {
    let mut cut = Vec::with_capacity(stages);
    for chunk in layers.chunk_by(|a, b| a.stage == b.stage) {
        if chunk[0].stage != cut.len() {
            return None;
        }
        let start = cut.last().map_or(0, |last: &Range<usize>| last.end);
        cut.push(start..start + chunk.len());
    }
    (cut.len() == stages).then_some(cut)
}

/// What is before the first compute and behind the last event, in the step whose events are known; 0 where none are.
fn once_a_step(log: &RunLog) -> f64 {
    let drawn = |step: &&Step| !step.timeline.is_empty() && step.synchronised == log.synchronised();
    let Some(step) = log.steps.iter().find(drawn) else { return 0.0 };
    let events = || step.timeline.iter().flatten();
    let computes = events().filter(|event| event.activity.ends_with(|last: char| last.is_ascii_digit()));
    let first = computes.map(|event| event.start).fold(f64::INFINITY, f64::min);
    let last = events().map(|event| event.end).fold(0.0, f64::max);
    if first.is_finite() { first + (step.step_seconds - last).max(0.0) } else { 0.0 }
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
        activation_bytes: None,
        output_bytes: median(log.warm_steps().filter_map(|step| step.stages.get(stage)?.output_bytes)),
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
    /// The log does not say what crosses between stages.
    #[error(
        "the log does not say how many bytes cross between stages; write it anew with `--log`, of 2 stages or more"
    )]
    Bytes,
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
