//! The costs of a run divided among its layers: [`Measured`], the input of all predictions.

use std::num::NonZeroUsize;
use std::ops::Range;

use stageline_schedule::{BalanceError, Plan, balance, balance_for, short_plan};

use super::error::PredictError;
use super::footprint::Footprint;
use super::network::{Hosts, Network, checked};
use super::target::{Cut, Target};
use crate::log::record::{Link, Unit};

/// The costs of a logged run (times, bytes and memory), divided among the layers of its model. All predictions start
/// from them: [`of`](Self::of) computes them from a log, and [`predict`](Self::predict) simulates another plan with
/// them.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    pub(super) layers: Vec<LayerCost>,
    pub(super) footprint: Option<Footprint>,
    /// The logged run's partition of the model's layers: the range of layer indices of each stage.
    pub(super) cut: Vec<Range<usize>>,
    /// Whether the user has partitioned (cut) the run's model into stages by hand. If so, each layer in the log is a
    /// whole stage.
    pub(super) cut_by_hand: bool,
    /// The number of tokens in one micro-batch, summed over the data-parallel replicas, which each have a micro-batch
    /// of their own.
    pub(super) tokens: f64,
    /// Unit in which `tokens` counts the data: tokens, or samples if the data has no tokens.
    pub(super) unit: Unit,
    /// The loss weight of one micro-batch, over all data-parallel replicas; for a language model, the number of
    /// unmasked tokens.
    pub(super) weight: f64,
    /// Overhead of each step of the run in seconds, before the first action and after the last one. A prediction adds
    /// it to each step time.
    pub(super) step_overhead: f64,
    /// Runtime overhead in seconds for each action of a worker: a forward pass, a whole backward pass, or the input or
    /// weight gradient of a split one. A prediction adds it to the action's own time.
    pub(super) action_overhead: f64,
    /// Seconds that sending one tensor keeps the sending worker busy, excluding the network link's transfer time.
    pub(super) send_seconds: f64,
    /// Correction factor that predictions multiply simulated step times by (overheads included): the run's measured
    /// step time, without the overhead of measuring, divided by the simulated step time of the run's own plan.
    ///
    /// In a run, the times of micro-batches vary and stages wait for the slower ones; the simulation does not show
    /// this. The factor is 1 for a run over network links, because transfers may be the cause of its longer steps.
    pub(super) variation: f64,
    /// The number of micro-batches that a channel between two stages can hold; `None` if it can hold all micro-batches
    /// of a step.
    pub(super) capacity: Option<usize>,
    /// The size in bytes of one micro-batch's activation at each boundary between stages of the run, in the order of
    /// the stages. The gradient that comes back has the same size, and is not counted here. `None` if the log does not
    /// state the bytes.
    pub(super) boundary_bytes: Option<Vec<f64>>,
    /// The network links between workers that predictions assume: the links of the logged run, or others that the
    /// caller gives.
    pub(super) network: Network,
}

/// The seconds that one layer takes: its forward and backward pass on one micro-batch, and its part of the flush
/// (gradient norms and optimizer step) once per step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct LayerCost {
    pub(super) forward: f64,
    /// Seconds that the layer's whole backward pass on one micro-batch takes.
    pub(super) backward: f64,
    /// Seconds that the layer's input gradient takes for one micro-batch, as a part of `backward`.
    pub(super) input_gradient: f64,
    pub(super) flush: f64,
}

impl Measured {
    /// Returns the correction factor that predictions multiply simulated step times by (overheads included): the run's
    /// measured step time divided by the simulated one. It is 1 for a run over network links, because transfers may be
    /// the cause of its longer steps.
    pub fn variation(&self) -> f64 {
        self.variation
    }

    /// Replaces the run's network links for predictions: `link` (a latency and a bandwidth) connects any two workers.
    ///
    /// # Errors
    /// Returns [`PredictError::Link`] if the latency or bandwidth of `link` is invalid.
    pub fn over(self, link: Link) -> Result<Self, PredictError> {
        Ok(Self { network: Network::Uniform(checked(link)?), ..self })
    }

    /// Replaces the run's network links for predictions: `link` (a latency and a bandwidth) connects any two workers on
    /// different hosts. Workers on one host share its memory.
    ///
    /// # Errors
    /// Returns [`PredictError::Link`] if the latency or bandwidth of `link` is invalid.
    pub fn between(self, hosts: Hosts, link: Link) -> Result<Self, PredictError> {
        Ok(Self { network: Network::Hosts(hosts, checked(link)?), ..self })
    }

    /// Removes the run's network links for predictions: all workers share one host's memory, and transfers between them
    /// take no time.
    pub fn without_links(self) -> Self {
        Self { network: Network::Memory, ..self }
    }

    /// Replaces the run's channel capacity for predictions: each channel between two stages can hold `capacity`
    /// micro-batches.
    pub fn with_channels(self, capacity: NonZeroUsize) -> Self {
        Self { capacity: Some(capacity.get()), ..self }
    }

    /// Returns the number of micro-batches that a channel between two stages can hold in predictions; `None` if it can
    /// hold all micro-batches of a step.
    pub fn channel_capacity(&self) -> Option<usize> {
        self.capacity
    }

    /// Returns the slowest network link that predictions assume between workers: the one on which the run's largest
    /// transfer between stages takes the longest. Returns `None` if no workers are connected by network links.
    pub fn slowest_link(&self) -> Option<Link> {
        self.network.slowest(self.boundary_bytes.iter().flatten().copied().fold(0.0, f64::max))
    }

    /// Returns the number of layers of the logged run's model.
    pub fn layers(&self) -> usize {
        self.layers.len()
    }

    /// Whether the user has partitioned (cut) the logged run's model into stages by hand. If so, each layer in the log
    /// is a whole stage, and a training run of the model always has these stages and rejects the flag `--cut`.
    pub fn is_cut_by_hand(&self) -> bool {
        self.cut_by_hand
    }

    /// Returns the logged run's partition (cut) of the model's layers into stages: the range of layer indices, from 0,
    /// of each stage.
    pub fn cut(&self) -> &[Range<usize>] {
        &self.cut
    }

    /// Returns the most even partition of the model's layers into `stages` contiguous stages, by the measured time of a
    /// forward and backward pass. An entry is the range of layer indices, from 0, of one stage.
    ///
    /// If the user has cut the model into stages by hand, each layer is one of these stages. A partition into fewer
    /// stages then joins some of them. A training run can use it only after a change to the model's code.
    ///
    /// # Errors
    /// Returns [`PredictError::Balance`] if the model has fewer than `stages` layers, or [`PredictError::CutByHand`] if
    /// the user has cut the model by hand into fewer than `stages` stages.
    pub fn balanced(&self, stages: usize) -> Result<Vec<Range<usize>>, PredictError> {
        self.check_stages(stages)?;
        self.balanced_within(0..self.layers.len(), stages)
    }

    /// Returns the partition of the layers into the stages of the plan that `target` describes:
    ///
    /// - The partition that `target` gives, if it gives one.
    /// - The run's own partition, if `target` asks for it and has the same number of stages.
    /// - Otherwise a partition by the layers' measured times. With one stage per worker, it is the most even one; with
    ///   several, one with a short simulated step.
    ///
    /// # Errors
    /// Returns the errors of [`balanced`](Self::balanced).
    pub fn cut_for(&self, target: &Target) -> Result<Vec<Range<usize>>, PredictError> {
        let Target { workers, micro_batches, schedule, cut } = target;
        let stages = schedule.stages_on(*workers);
        match cut {
            Cut::Given(cut) => return Ok(cut.clone()),
            Cut::OfTheRun if stages == self.cut.len() => return Ok(self.cut.clone()),
            Cut::OfTheRun | Cut::Balanced => {}
        }
        let even = self.balanced(stages)?;
        let plan = if stages == *workers { None } else { short_plan(*schedule, stages, *micro_batches) };
        let Some(plan) = plan else { return Ok(even) };
        let work: Vec<_> = self.layers.iter().map(|layer| layer.forward + layer.backward).collect();
        Ok(balance_for(&plan, &work, &vec![1.0; stages]).unwrap_or(even))
    }

    /// Checks that the layers can be partitioned into `stages` stages. Returns [`PredictError::CutByHand`] if the user
    /// has cut the model by hand into fewer stages. Otherwise returns [`PredictError::Balance`] if there are fewer
    /// layers than stages, or no stages.
    fn check_stages(&self, stages: usize) -> Result<(), PredictError> {
        let own = self.layers.len();
        if self.cut_by_hand && stages > own {
            return Err(PredictError::CutByHand { own, stages });
        }
        if stages > own || stages == 0 { Err(BalanceError { layers: own, stages }.into()) } else { Ok(()) }
    }

    /// Returns the most even partition of the layers with indices in `layers` into `stages` contiguous stages, by the
    /// measured time of a forward and backward pass. Returns [`PredictError::Balance`] if there are fewer layers than
    /// stages, or no stages.
    pub(super) fn balanced_within(
        &self,
        layers: Range<usize>,
        stages: usize,
    ) -> Result<Vec<Range<usize>>, PredictError> {
        let work: Vec<_> = self.layers[layers.clone()].iter().map(|layer| layer.forward + layer.backward).collect();
        let cut = balance(&work, stages)?;
        Ok(cut.into_iter().map(|range| layers.start + range.start..layers.start + range.end).collect())
    }

    /// Returns the measured seconds of one micro-batch's forward and backward pass on the layers with the indices
    /// `layers`, from 0.
    ///
    /// # Panics
    /// Panics if the model has no layers with these indices.
    pub fn computes(&self, layers: Range<usize>) -> f64 {
        self.layers[layers].iter().map(|layer| layer.forward + layer.backward).sum()
    }

    /// Returns the size in bytes of one micro-batch's activation at a stage boundary before the layer with the index
    /// `layer`. The gradient that comes back has the same size. If the run had no boundary there, returns the mean over
    /// the run's boundaries. Returns [`PredictError::Bytes`] if the log does not state the bytes.
    pub(super) fn bytes_at(&self, layer: usize) -> Result<f64, PredictError> {
        let known = self.boundary_bytes.as_ref().filter(|bytes| !bytes.is_empty()).ok_or(PredictError::Bytes)?;
        let stage = self.cut.iter().position(|range| range.end == layer);
        let mean = known.iter().sum::<f64>() / known.len() as f64;
        Ok(stage.and_then(|stage| known.get(stage)).copied().unwrap_or(mean))
    }
}

/// Returns the mean number of actions per worker in a step: forward passes, whole backward passes, and the input and
/// weight gradients of split ones.
pub(super) fn actions_of_worker(plan: &Plan) -> f64 {
    plan.rows().iter().map(Vec::len).sum::<usize>() as f64 / plan.workers().max(1) as f64
}
