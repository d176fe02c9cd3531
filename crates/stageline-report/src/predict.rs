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

use stageline_schedule::{Checked, Costs, Placement, Schedule, ScheduleError, StageCost, balance, check, simulate};

use crate::footprint::Footprint;
use crate::network::{Hosts, Network, checked};
use crate::predict_error::PredictError;
use crate::record::{Layer, Link, StageCosts, Step};
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
    /// What a send takes its worker.
    send: f64,
    /// Micro-batches that a channel holds, if not all.
    capacity: Option<usize>,
    /// What crosses behind each stage of the run but the last, in bytes; none where the log does not say.
    crossing: Option<Vec<f64>>,
    /// What joins workers in predictions.
    network: Network,
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
    /// [`PredictError`] where the log has no step, does not say which stage has which layers, or has links of which no times can
    /// be made.
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
        Ok(Self {
            layers,
            footprint: Footprint::of(log, &cut),
            cut,
            tokens: log.run.tokens_per_micro_batch * log.run.replicas as f64,
            once,
            besides: (other - once) / actions,
            send: handing_over(log, &costs),
            capacity: Some(log.run.channel_capacity).filter(|capacity| *capacity < micro_batches),
            crossing: costs[..stages - 1].iter().map(|cost| cost.output_bytes).collect(),
            network: Network::of(log)?,
        })
    }

    /// The same stages, on workers of which any two are joined by such a link.
    ///
    /// # Errors
    /// [`PredictError::Link`] where no times can be made of it.
    pub fn over(self, link: Link) -> Result<Self, PredictError> {
        Ok(Self { network: Network::Uniform(checked(link)?), ..self })
    }

    /// The same stages, on workers of which those on different hosts are joined by such a link.
    ///
    /// # Errors
    /// [`PredictError::Link`] where no times can be made of it.
    pub fn between(self, hosts: Hosts, link: Link) -> Result<Self, PredictError> {
        Ok(Self { network: Network::Hosts(hosts, checked(link)?), ..self })
    }

    /// The same stages, on workers that share one host's memory.
    pub fn without_links(self) -> Self {
        Self { network: Network::Memory, ..self }
    }

    /// The link over which the most that crosses a boundary of the run takes the longest; `None` where there is no link.
    pub fn slowest_link(&self) -> Option<Link> {
        self.network.slowest(self.crossing.iter().flatten().copied().fold(0.0, f64::max))
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
        self.balanced_within(0..self.layers.len(), stages)
    }

    /// The most even cut of some layers.
    pub(crate) fn balanced_within(
        &self,
        layers: Range<usize>,
        stages: usize,
    ) -> Result<Vec<Range<usize>>, PredictError> {
        let work: Vec<_> = self.layers[layers.clone()].iter().map(|layer| layer.forward + layer.backward).collect();
        let cut = balance(&work, stages)?;
        Ok(cut.into_iter().map(|range| layers.start + range.start..layers.start + range.end).collect())
    }

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

    /// Seconds that a micro-batch's forward and backward take, on these layers.
    pub fn computes(&self, layers: Range<usize>) -> f64 {
        self.layers[layers].iter().map(|layer| layer.forward + layer.backward).sum()
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

    /// What crosses before a layer for a micro-batch, each way, in bytes.
    pub(crate) fn bytes_at(&self, layer: usize) -> Result<f64, PredictError> {
        let known = self.crossing.as_ref().filter(|bytes| !bytes.is_empty()).ok_or(PredictError::Bytes)?;
        let stage = self.cut.iter().position(|range| range.end == layer);
        let mean = known.iter().sum::<f64>() / known.len() as f64;
        Ok(stage.and_then(|stage| known.get(stage)).copied().unwrap_or(mean))
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

/// What a send took its worker beyond what crossed takes over its link: all, where it crossed none.
fn handing_over(log: &RunLog, costs: &[StageCosts]) -> f64 {
    let takes = |boundary: usize| {
        let link = log.run.links.get(boundary).copied().flatten()?;
        Some(link.takes(costs[boundary].output_bytes?))
    };
    let sends = costs.windows(2).enumerate().flat_map(|(boundary, pair)| {
        let crossing = takes(boundary).unwrap_or(0.0);
        [pair[0].send_activation - crossing, pair[1].send_gradient - crossing]
    });
    median(sends.filter(|send| *send > 0.0)).unwrap_or(0.0)
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
