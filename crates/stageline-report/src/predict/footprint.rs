//! Predicts the peak memory of each worker under another plan, from the memory that a run measured.
//!
//! The model of a worker's memory:
//!
//! - Parameters, optimizer state (together the resident memory) and gradients (4 bytes per trained parameter) belong to
//!   layers. A frozen parameter takes 4 bytes; a trained one also has optimizer state. The measured resident memory of
//!   a worker is divided among its layers in proportion to these bytes.
//! - Activations are retained once for each live micro-batch (from its forward pass to its backward pass). A stage's
//!   activations are divided among its layers in proportion to their `weight` in the log, the relative cost of a
//!   layer's forward and backward pass (such as its FLOPs).
//! - During the flush (the end-of-step gradient norms and optimizer step), trained parameters and their optimizer state
//!   are in memory twice: the new values, and the old ones for a rollback. Without a rollback (`--rollback false`) they
//!   are in memory once.
//! - The rest of a worker's peak stays as in the run: buffers of the threads that compute matrix products on the CPU,
//!   workspaces of compute kernels, and gradients in flight.

use std::ops::Range;

use stageline_schedule::{Plan, StageMemory};

use crate::log::record::{Layer, WorkerMemory};
use crate::log::{RunLog, median};

/// The measured memory of a run in bytes, divided among the layers of its model. Predictions of the memory under
/// another plan are computed from it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Footprint {
    layers: Vec<LayerBytes>,
    /// Bytes of each worker's measured peak memory that belong to no layer, such as workspaces of compute kernels.
    rest: Vec<f64>,
    /// Number of copies of the trained parameters and their optimizer state that are in memory during the flush: 2, or
    /// 1 without a rollback.
    in_flush: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct LayerBytes {
    frozen: f64,
    /// Bytes of the layer's trained parameters and their optimizer states.
    trained: f64,
    gradients: f64,
    /// Bytes of the layer's activations that are retained for one live micro-batch, from its forward pass to its
    /// backward pass.
    activation: f64,
}

impl Footprint {
    /// Divides a run's measured memory among its model's layers; `None` if the run did not measure memory. `cut` is the
    /// run's partition of the layers into stages.
    pub(super) fn of(log: &RunLog, cut: &[Range<usize>]) -> Option<Self> {
        let (plan, layers) = (&log.plan, &log.run.layers);
        let worker_of = workers(plan);
        let typical = |worker: usize, figure: fn(&WorkerMemory) -> u64| {
            median(log.warm_steps().filter_map(|step| Some(figure(step.memory.get(worker)?) as f64)))
        };
        let activation =
            |stage: usize| median(log.warm_steps().filter_map(|step| step.stages.get(stage)?.activation_bytes));
        let per_trained = 4.0 + state_bytes(log);
        let bytes = |layer: &Layer| {
            let worker = worker_of[layer.stage];
            let on_worker = layers.iter().filter(|other| worker_of[other.stage] == worker);
            let on_stage = layers.iter().filter(|other| other.stage == layer.stage);
            let frozen = |layer: &Layer| 4.0 * (layer.parameters - layer.trained()) as f64;
            let size = |layer: &Layer| frozen(layer) + per_trained * layer.trained() as f64;
            // The buffers of the threads that run compute kernels belong to the worker, not to its layers.
            let other = log.run.memory.get(worker).map_or(0.0, |estimate| estimate.other as f64);
            let of_worker = (typical(worker, |memory| memory.resident)? - other).max(0.0);
            let resident = of_worker * share(layer, on_worker, size);
            let of_frozen = if frozen(layer) > 0.0 { resident * frozen(layer) / size(layer) } else { 0.0 };
            let activations = share(layer, on_stage, |layer| layer.weight);
            Some(LayerBytes {
                frozen: of_frozen,
                trained: resident - of_frozen,
                gradients: 4.0 * layer.trained() as f64,
                activation: activations * activation(layer.stage)?,
            })
        };
        let layers = layers.iter().map(bytes).collect::<Option<Vec<_>>>()?;
        let in_flush = if rolls_back(log) { 2.0 } else { 1.0 };
        let mut footprint = Self { layers, rest: Vec::new(), in_flush };
        let of_layers = footprint.peaks(cut, plan).into_iter().enumerate();
        footprint.rest = of_layers
            .map(|(worker, of_layers)| Some((typical(worker, |memory| memory.peak)? - of_layers).max(0.0)))
            .collect::<Option<_>>()?;
        Some(footprint)
    }

    /// Returns the predicted peak of each worker's device memory in bytes, under a plan and a partition `cut` of the
    /// layers into stages.
    pub(super) fn peaks(&self, cut: &[Range<usize>], plan: &Plan) -> Vec<f64> {
        let sum = |range: &Range<usize>, of: fn(&LayerBytes) -> f64| self.layers[range.clone()].iter().map(of).sum();
        let activations: Vec<_> =
            cut.iter().map(|range| StageMemory::whole(sum(range, |layer| layer.activation))).collect();
        let mut peaks = plan.peak_memory(&activations);
        let mut flush = vec![0.0; peaks.len()];
        for (stage, worker) in workers(plan).into_iter().enumerate() {
            let once = sum(&cut[stage], |layer| layer.frozen + layer.trained + layer.gradients);
            peaks[worker] += once;
            flush[worker] += once + (self.in_flush - 1.0) * sum(&cut[stage], |layer| layer.trained);
        }
        let peaks: Vec<_> = peaks.into_iter().zip(flush).map(|(steady, flush)| f64::max(steady, flush)).collect();
        // With another number of workers, each worker gets the largest `rest` of any worker of the run.
        let most = self.rest.iter().copied().fold(0.0, f64::max);
        let rest = |worker: usize| if peaks.len() == self.rest.len() { self.rest[worker] } else { most };
        peaks.iter().enumerate().map(|(worker, peak)| peak + rest(worker)).collect()
    }
}

/// Returns the bytes of optimizer state per element of a trained parameter, from the run's memory estimate. Without an
/// estimate, or with optimizer state in host memory, returns 8, as for AdamW.
fn state_bytes(log: &RunLog) -> f64 {
    let states: f64 = log.run.memory.iter().map(|estimate| estimate.optimizer as f64).sum();
    let trained: f64 = log.run.layers.iter().map(|layer| layer.trained() as f64).sum();
    if states > 0.0 && trained > 0.0 { states / trained } else { 8.0 }
}

/// Whether the stages of a run retained copies of parameters and optimizer state for a rollback, according to the
/// logged setting `rollback`.
fn rolls_back(log: &RunLog) -> bool {
    !log.run.configuration.get("rollback").is_some_and(|value| *value == false || *value == "false")
}

/// Returns the index of the worker that runs each stage of a plan.
fn workers(plan: &Plan) -> Vec<usize> {
    let mut worker_of = vec![0; plan.stages()];
    for (worker, row) in plan.rows().iter().enumerate() {
        row.iter().for_each(|action| worker_of[action.stage] = worker);
    }
    worker_of
}

/// Returns `figure(layer) / sum of figure over group`, a fraction from 0 to 1. `figure` is a measure of a layer, such
/// as its number of parameters. `group` has the layers of one worker or stage, with `layer` among them. If the sum is
/// 0, the fractions of all layers are equal.
pub(super) fn share<'a>(
    layer: &Layer,
    group: impl Iterator<Item = &'a Layer> + Clone,
    figure: impl Fn(&Layer) -> f64,
) -> f64 {
    let all: f64 = group.clone().map(&figure).sum();
    if all > 0.0 { figure(layer) / all } else { 1.0 / group.count().max(1) as f64 }
}
