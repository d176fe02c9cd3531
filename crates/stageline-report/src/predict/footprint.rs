//! Predicts the peak memory of each worker under another plan, from the memory that a run measured.
//!
//! The model of a worker's memory:
//!
//! - Parameters and optimizer states (the resident memory) and gradients (4 bytes per trained parameter) belong to
//!   layers. A frozen parameter takes 4 bytes, and a trained one also its optimizer state. The measured resident memory
//!   of a worker is divided among its layers in proportion to these bytes.
//! - Activations are kept once for each live micro-batch (from its forward pass to its backward pass). A stage's
//!   activations are divided among its layers in proportion to their `weight` in the log, the relative cost of a
//!   layer's forward and backward pass (such as its FLOPs).
//! - During the flush trained parameters and their optimizer states are in memory twice: the new ones, and the old ones
//!   for a rollback. Without a rollback (`--rollback false`) they are in memory once.
//! - The rest of a worker's peak stays as the run had it: buffers of the threads that compute matrix products on the
//!   CPU, workspaces of compute kernels, and gradients in flight.

use std::ops::Range;

use stageline_schedule::{Plan, StageMemory};

use crate::log::record::{Layer, WorkerMemory};
use crate::log::{RunLog, median};

/// The measured memory of a run in bytes, divided among the layers of its model. The memory under another plan is
/// predicted from it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Footprint {
    layers: Vec<LayerBytes>,
    /// The part of each worker's measured peak memory that belongs to no layer, such as workspaces of compute kernels,
    /// in bytes.
    rest: Vec<f64>,
    /// How often the trained parameters and their optimizer states are in memory during the flush: 2, or 1 without a
    /// rollback.
    in_flush: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct LayerBytes {
    frozen: f64,
    /// The bytes of a layer's trained parameters and their optimizer states.
    trained: f64,
    gradients: f64,
    /// The bytes of a layer's activations that are kept for one live micro-batch, from its forward pass to its backward
    /// pass.
    activation: f64,
}

impl Footprint {
    /// Returns the memory that a run measured, divided among the layers of its model; `None` if the run did not count
    /// memory. `cut` is the run's partition of the layers into stages.
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
        // With another number of workers, each gets the largest `rest` of a worker of the run.
        let most = self.rest.iter().copied().fold(0.0, f64::max);
        let rest = |worker: usize| if peaks.len() == self.rest.len() { self.rest[worker] } else { most };
        peaks.iter().enumerate().map(|(worker, peak)| peak + rest(worker)).collect()
    }
}

/// Returns the bytes of optimizer states for one element of a trained parameter, from the run's estimate of its memory.
/// Without an estimate, or with states on the host, returns 8, the bytes of AdamW.
fn state_bytes(log: &RunLog) -> f64 {
    let states: f64 = log.run.memory.iter().map(|estimate| estimate.optimizer as f64).sum();
    let trained: f64 = log.run.layers.iter().map(|layer| layer.trained() as f64).sum();
    if states > 0.0 && trained > 0.0 { states / trained } else { 8.0 }
}

/// Whether the stages of a run kept copies of parameters and optimizer states for a rollback, by the setting `rollback`
/// in its log.
fn rolls_back(log: &RunLog) -> bool {
    !log.run.configuration.get("rollback").is_some_and(|value| *value == false || *value == "false")
}

/// Returns, for each stage of a plan, the number of the worker that runs the stage.
fn workers(plan: &Plan) -> Vec<usize> {
    let mut worker_of = vec![0; plan.stages()];
    for (worker, row) in plan.rows().iter().enumerate() {
        row.iter().for_each(|action| worker_of[action.stage] = worker);
    }
    worker_of
}

/// Returns the fraction, from 0 to 1, that `layer` has of the sum of a figure, such as the number of parameters, over
/// all layers in `group`. The group has the layers of one worker or stage, with `layer` among them. If the sum is 0,
/// the fractions of all layers are equal.
fn share<'a>(layer: &Layer, group: impl Iterator<Item = &'a Layer> + Clone, figure: impl Fn(&Layer) -> f64) -> f64 {
    let all: f64 = group.clone().map(&figure).sum();
    if all > 0.0 { figure(layer) / all } else { 1.0 / group.count().max(1) as f64 }
}
