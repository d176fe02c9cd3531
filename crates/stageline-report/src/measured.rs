//! What a run says of its model, and of the machine that it ran on.

use std::ops::Range;

use stageline_schedule::balance;

use crate::footprint::Footprint;
use crate::network::{Hosts, Network, checked};
use crate::predict_error::PredictError;
use crate::record::{Layer, Link, StageCosts, Step};
use crate::run_log::{RunLog, median};

/// What a run says of its model.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    pub(crate) layers: Vec<LayerCost>,
    pub(crate) footprint: Option<Footprint>,
    /// The run's own.
    pub(crate) cut: Vec<Range<usize>>,
    /// Of a micro-batch of every replica.
    pub(crate) tokens: f64,
    /// What a step has besides, once.
    pub(crate) once: f64,
    /// What every action has besides, on its worker.
    pub(crate) besides: f64,
    /// What a send takes its worker.
    pub(crate) send: f64,
    /// Micro-batches that a channel holds, if not all.
    pub(crate) capacity: Option<usize>,
    /// What crosses behind each stage of the run but the last, in bytes; none where the log does not say.
    pub(crate) crossing: Option<Vec<f64>>,
    /// What joins workers in predictions.
    pub(crate) network: Network,
}

/// What one layer takes for a micro-batch, and for its part of the flush.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LayerCost {
    pub(crate) forward: f64,
    pub(crate) backward: f64,
    pub(crate) flush: f64,
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

    /// Seconds that a micro-batch's forward and backward take, on these layers.
    pub fn computes(&self, layers: Range<usize>) -> f64 {
        self.layers[layers].iter().map(|layer| layer.forward + layer.backward).sum()
    }

    /// What crosses before a layer for a micro-batch, each way, in bytes.
    pub(crate) fn bytes_at(&self, layer: usize) -> Result<f64, PredictError> {
        let known = self.crossing.as_ref().filter(|bytes| !bytes.is_empty()).ok_or(PredictError::Bytes)?;
        let stage = self.cut.iter().position(|range| range.end == layer);
        let mean = known.iter().sum::<f64>() / known.len() as f64;
        Ok(stage.and_then(|stage| known.get(stage)).copied().unwrap_or(mean))
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
