//! The costs of a run divided among its layers, from its log: [`Measured`], the input of all predictions.
//!
//! A layer has a share of the forward and backward of its stage by its weight, and a share of the flush by its
//! parameters. Time in the log that belongs to no stage becomes an overhead of each step and of each action.

use std::ops::Range;

use stageline_schedule::{Costs, StageCost, balance};

use super::error::PredictError;
use super::footprint::Footprint;
use super::network::{Hosts, Network, checked};
use super::prediction::{Cut, Target};
use crate::log::record::{Layer, Link, StageCosts, Step};
use crate::log::{RunLog, median};

/// The measured costs of a run by layer, from which [`predict`](Self::predict) simulates another plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    pub(super) layers: Vec<LayerCost>,
    pub(super) footprint: Option<Footprint>,
    /// The run's partition of the layers: the indices of the layers of each stage.
    pub(super) cut: Vec<Range<usize>>,
    /// The number of tokens in one micro-batch, summed over the data-parallel replicas, which each have a micro-batch
    /// of their own.
    pub(super) tokens: f64,
    /// The seconds of overhead in each step of the run, before the first action and after the last one. A prediction
    /// adds them to each step.
    pub(super) step_overhead: f64,
    /// The overhead of the runtime in seconds for each forward and each backward, in addition to the time of the
    /// compute itself.
    pub(super) action_overhead: f64,
    /// The seconds for which the send of one tensor keeps the sending worker busy, without the transfer time of the
    /// network link.
    pub(super) send_seconds: f64,
    /// The run's measured step time over the one that is simulated for the run's own plan. In the simulation all
    /// micro-batches of a stage take the same time; in a run they vary, and the stages wait for the slower ones. It is
    /// 1 for a run over network links, whose transfers may be the reason.
    pub(super) variation: f64,
    /// The number of micro-batches that a channel between two stages can hold; `None` if it can hold all micro-batches
    /// of a step.
    pub(super) capacity: Option<usize>,
    /// The bytes that one micro-batch sends across each boundary between stages of the run; `None` if the log does not
    /// state the bytes.
    pub(super) boundary_bytes: Option<Vec<f64>>,
    /// The network links between workers with which predictions are made: the links of the run, or links that replace
    /// them.
    pub(super) network: Network,
}

/// The seconds that one layer takes: its forward and backward of one micro-batch, and its part of the flush (gradient
/// norms and optimizer step) once a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct LayerCost {
    pub(super) forward: f64,
    pub(super) backward: f64,
    pub(super) flush: f64,
}

impl Measured {
    /// Returns the costs of a run by layer, computed from its log as medians over the [warm steps](RunLog::warm_steps),
    /// which leave out the first two.
    ///
    /// # Errors
    /// Returns [`PredictError`] if the log has no step that updated parameters, does not state the layers of every
    /// stage, or has network links of an invalid latency or bandwidth.
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
        let step_overhead = outside_actions(log).min(other);
        let actions = (2 * micro_batches * stages / log.plan.workers().max(1)).max(1) as f64;
        let measured = Self {
            layers,
            footprint: Footprint::of(log, &cut),
            cut,
            tokens: log.run.tokens_per_micro_batch * log.run.replicas as f64,
            step_overhead,
            action_overhead: (other - step_overhead) / actions,
            send_seconds: send_seconds(log, &costs),
            variation: 1.0,
            capacity: Some(log.run.channel_capacity).filter(|capacity| *capacity < micro_batches),
            boundary_bytes: costs[..stages - 1].iter().map(|cost| cost.output_bytes).collect(),
            network: Network::of(log)?,
        };
        if measured.network != Network::Memory {
            return Ok(measured);
        }
        let (workers, schedule) = (log.plan.workers(), &log.plan);
        let simulated = measured.predict(&Target { workers, micro_batches, schedule, cut: Cut::OfTheRun })?.step;
        let step = median(log.warm_steps().map(|step| step.step_seconds)).ok_or(PredictError::NoSteps)?;
        Ok(Self { variation: step / simulated, ..measured })
    }

    /// Returns the factor by which predicted steps are longer than simulated ones: the run's measured step time over the
    /// simulated one of its own plan; 1 for a run over network links.
    pub fn variation(&self) -> f64 {
        self.variation
    }

    /// Returns the measured costs of a run for predictions in which the network link `link` (a latency and a bandwidth)
    /// connects any two workers, in place of the run's own links.
    ///
    /// # Errors
    /// Returns [`PredictError::Link`] if the latency or bandwidth of `link` is invalid.
    pub fn over(self, link: Link) -> Result<Self, PredictError> {
        Ok(Self { network: Network::Uniform(checked(link)?), ..self })
    }

    /// Returns the measured costs of a run for predictions in which the network link `link` (a latency and a bandwidth)
    /// connects any two workers on different hosts, in place of the run's own links. Workers on one host share its
    /// memory.
    ///
    /// # Errors
    /// Returns [`PredictError::Link`] if the latency or bandwidth of `link` is invalid.
    pub fn between(self, hosts: Hosts, link: Link) -> Result<Self, PredictError> {
        Ok(Self { network: Network::Hosts(hosts, checked(link)?), ..self })
    }

    /// Returns the measured costs of a run for predictions without network links: all workers share the memory of one
    /// host, and transfers between them take no time.
    pub fn without_links(self) -> Self {
        Self { network: Network::Memory, ..self }
    }

    /// Returns the network link between workers on which the largest tensor that crosses a stage boundary of the run
    /// takes the longest; `None` if no workers are connected by network links.
    pub fn slowest_link(&self) -> Option<Link> {
        self.network.slowest(self.boundary_bytes.iter().flatten().copied().fold(0.0, f64::max))
    }

    /// Returns the run's partition of the layers: the indices of the layers of each stage.
    pub fn cut(&self) -> &[Range<usize>] {
        &self.cut
    }

    /// Returns the most even partition of the model's layers into `stages` contiguous stages, by the measured time of a
    /// forward and backward.
    ///
    /// # Errors
    /// Returns [`PredictError::Balance`] if the model has fewer layers than stages.
    pub fn balanced(&self, stages: usize) -> Result<Vec<Range<usize>>, PredictError> {
        self.balanced_within(0..self.layers.len(), stages)
    }

    /// Returns the most even partition of the layers with indices in `layers` into `stages` contiguous stages, by the
    /// measured time of a forward and backward.
    pub(super) fn balanced_within(
        &self,
        layers: Range<usize>,
        stages: usize,
    ) -> Result<Vec<Range<usize>>, PredictError> {
        let work: Vec<_> = self.layers[layers.clone()].iter().map(|layer| layer.forward + layer.backward).collect();
        let cut = balance(&work, stages)?;
        Ok(cut.into_iter().map(|range| layers.start + range.start..layers.start + range.end).collect())
    }

    /// Returns the measured costs of each stage of the partition `cut`, in milliseconds: forward and backward of one
    /// micro-batch, and the flush. Transfers between the stages take no time.
    pub fn stage_costs(&self, cut: &[Range<usize>]) -> Costs {
        let sum = |range: &Range<usize>, of: fn(&LayerCost) -> f64| {
            1e3 * self.layers[range.clone()].iter().map(of).sum::<f64>()
        };
        let stage = |range: &Range<usize>| {
            // The log does not split a backward, so both halves are assumed to be equal.
            let backward = sum(range, |layer| layer.backward) / 2.0;
            StageCost::new(sum(range, |layer| layer.forward), backward, backward)
        };
        let flush = cut.iter().map(|range| sum(range, |layer| layer.flush)).collect();
        Costs::by_stage(cut.iter().map(stage).collect()).with_optimizer(flush)
    }

    /// Returns the seconds of one micro-batch's forward and backward on a range of layers.
    pub fn computes(&self, layers: Range<usize>) -> f64 {
        self.layers[layers].iter().map(|layer| layer.forward + layer.backward).sum()
    }

    /// Returns the bytes that one micro-batch sends, in each direction, across a stage boundary before the layer with
    /// index `layer`. If the run had no boundary there, returns the mean over the run's boundaries.
    pub(super) fn bytes_at(&self, layer: usize) -> Result<f64, PredictError> {
        let known = self.boundary_bytes.as_ref().filter(|bytes| !bytes.is_empty()).ok_or(PredictError::Bytes)?;
        let stage = self.cut.iter().position(|range| range.end == layer);
        let mean = known.iter().sum::<f64>() / known.len() as f64;
        Ok(stage.and_then(|stage| known.get(stage)).copied().unwrap_or(mean))
    }
}

/// Returns the run's partition of the model's layers: for each stage, the range of the indices of its layers. The
/// result is `None` if one of the `stages` stages has no layer, or the layers are not in the order of their stages.
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

/// Returns the overhead of a step in seconds: the time before its first compute plus the time after its last event. The
/// measurement is of the first step with logged events. If the run's medians are computed from synchronised steps
/// (workers waited for their devices after every action), only synchronised steps are considered. Returns 0 if there is
/// no such step.
fn outside_actions(log: &RunLog) -> f64 {
    let drawn = |step: &&Step| !step.timeline.is_empty() && step.synchronised == log.synchronised();
    let Some(step) = log.steps.iter().find(drawn) else { return 0.0 };
    let events = || step.timeline.iter().flatten();
    let Some(first) = events().filter(|event| event.computes()).map(|event| event.start).min() else { return 0.0 };
    let last = events().map(|event| event.end).max().unwrap_or_default();
    first.as_secs_f64() + (step.step_seconds - last.as_secs_f64()).max(0.0)
}

/// Returns the measured costs of a stage of the run: the times of its actions in seconds and the bytes of its output,
/// as medians over the [warm steps](RunLog::warm_steps), which leave out the first two. The bytes of activations are
/// left unset. Returns `None` if no such step has the stage.
fn stage_costs(log: &RunLog, stage: usize) -> Option<StageCosts> {
    let typical =
        |cost: fn(&StageCosts) -> f64| median(log.warm_steps().filter_map(|step| step.stages.get(stage)).map(cost));
    Some(StageCosts {
        forward: typical(|cost| cost.forward)?,
        backward: typical(|cost| cost.backward)?,
        send_activation: typical(|cost| cost.send_activation)?,
        send_gradient: typical(|cost| cost.send_gradient)?,
        flush: typical(|cost| cost.flush)?,
        activation_bytes: None,
        output_bytes: median(log.warm_steps().filter_map(|step| step.stages.get(stage)?.output_bytes)),
    })
}

/// Returns the seconds for which a send keeps the sending worker busy, in addition to the transfer time of the network
/// link. The result is the median over the sends between neighbouring stages; sends that took no longer than their
/// transfer time are ignored. Returns 0 if no send took longer.
fn send_seconds(log: &RunLog, costs: &[StageCosts]) -> f64 {
    let transfer_seconds = |boundary: usize| {
        let link = log.run.links.get(boundary).copied().flatten()?;
        Some(link.takes(costs[boundary].output_bytes?))
    };
    let sends = costs.windows(2).enumerate().flat_map(|(boundary, pair)| {
        let transfer = transfer_seconds(boundary).unwrap_or(0.0);
        [pair[0].send_activation - transfer, pair[1].send_gradient - transfer]
    });
    median(sends.filter(|send| *send > 0.0)).unwrap_or(0.0)
}

/// Returns the seconds that a layer takes for its forward, backward and flush, each as the layer's share of the
/// measured time of its stage. `layers` has all layers of the model, and `stages` has the costs of each stage. Returns
/// `None` if `stages` lacks the stage of the layer.
fn layer_cost(layer: &Layer, layers: &[Layer], stages: &[StageCosts]) -> Option<LayerCost> {
    let stage = stages.get(layer.stage)?;
    let siblings = || layers.iter().filter(|sibling| sibling.stage == layer.stage);
    let work = layer.weight / siblings().map(|sibling| sibling.weight).sum::<f64>().max(f64::MIN_POSITIVE);
    let parameters: u64 = siblings().map(|sibling| sibling.parameters).sum();
    let trained = if parameters > 0 { layer.parameters as f64 / parameters as f64 } else { work };
    Some(LayerCost { forward: work * stage.forward, backward: work * stage.backward, flush: trained * stage.flush })
}
