//! Predicts the peak memory of each worker under another plan, from the memory that a run measured.
//!
//! The model of a worker's memory:
//!
//! - Parameters and optimizer states (the resident memory) and gradients (4 bytes per parameter) belong to layers. A
//!   layer has a part of its worker's resident memory in proportion to its number of parameters.
//! - Activations are kept once for each live micro-batch (from its forward pass to its backward pass). A stage's
//!   activations are divided among its layers in proportion to their `weight` in the log. This is the relative cost of
//!   a layer's forward and backward pass, such as its FLOPs.
//! - During the flush (gradient norms and optimizer step) the resident memory is in use twice: the new parameters and
//!   optimizer states, and the old ones.
//! - The rest of a worker's peak stays as the run had it. It consists of buffers of the threads that compute matrix
//!   products on the CPU, workspaces of compute kernels, and gradients in flight.

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
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct LayerBytes {
    resident: f64,
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
        let bytes = |layer: &Layer| {
            let worker = worker_of[layer.stage];
            let on_worker = layers.iter().filter(|other| worker_of[other.stage] == worker);
            let on_stage = layers.iter().filter(|other| other.stage == layer.stage);
            let parameters = share(layer, on_worker, |layer| layer.parameters as f64);
            // The buffers of the threads that run compute kernels belong to the worker, not to its layers.
            let other = log.run.memory.get(worker).map_or(0.0, |estimate| estimate.other as f64);
            let activations = share(layer, on_stage, |layer| layer.weight);
            Some(LayerBytes {
                resident: parameters * (typical(worker, |memory| memory.resident)? - other).max(0.0),
                gradients: 4.0 * layer.parameters as f64,
                activation: activations * activation(layer.stage)?,
            })
        };
        let layers = layers.iter().map(bytes).collect::<Option<Vec<_>>>()?;
        let mut footprint = Self { layers, rest: Vec::new() };
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
            peaks[worker] += sum(&cut[stage], |layer| layer.resident + layer.gradients);
            flush[worker] += sum(&cut[stage], |layer| 2.0 * layer.resident + layer.gradients);
        }
        let peaks: Vec<_> = peaks.into_iter().zip(flush).map(|(steady, flush)| f64::max(steady, flush)).collect();
        // With another number of workers, each gets the largest `rest` of a worker of the run.
        let most = self.rest.iter().copied().fold(0.0, f64::max);
        let rest = |worker: usize| if peaks.len() == self.rest.len() { self.rest[worker] } else { most };
        peaks.iter().enumerate().map(|(worker, peak)| peak + rest(worker)).collect()
    }
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
fn share<'a>(layer: &Layer, group: impl Iterator<Item = &'a Layer> + Clone, figure: fn(&Layer) -> f64) -> f64 {
    let all: f64 = group.clone().map(figure).sum();
    if all > 0.0 { figure(layer) / all } else { 1.0 / group.count().max(1) as f64 }
}
