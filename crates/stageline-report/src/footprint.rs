//! What workers would hold under another plan, in bytes, from what they held in a run.
//!
//! Parameters and optimizer states belong to layers; so do gradients, of 4 bytes a parameter; activations are held once for every
//! live micro-batch. In the flush a worker holds what is resident twice, as it is and as it was. What a worker held besides at its
//! peak (the buffers of its kernel threads, workspaces of kernels, gradients in flight) stays as it was.
//! A layer has its share of its stage's activations by its share of the stage's FLOPs, and of what is resident by its parameters.

use std::ops::Range;

use stageline_schedule::{Plan, StageMemory};

use crate::record::Layer;
use crate::run_log::{RunLog, median};

/// What the layers of a run held.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Footprint {
    layers: Vec<LayerBytes>,
    /// What each worker held besides at its peak.
    besides: Vec<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct LayerBytes {
    resident: f64,
    gradients: f64,
    /// For a live micro-batch.
    activation: f64,
}

impl Footprint {
    /// `None` where the run did not count what it held.
    pub(crate) fn of(log: &RunLog, cut: &[Range<usize>]) -> Option<Self> {
        let (plan, layers) = (&log.plan, &log.run.layers);
        let worker_of = workers(plan);
        let of_worker = |worker: usize, of: fn(&crate::record::WorkerMemory) -> u64| {
            median(log.warm_steps().filter_map(|step| Some(of(step.memory.get(worker)?) as f64)))
        };
        let activation =
            |stage: usize| median(log.warm_steps().filter_map(|step| step.stages.get(stage)?.activation_bytes));
        let bytes = |layer: &Layer| {
            let worker = worker_of[layer.stage];
            let on_worker = layers.iter().filter(|other| worker_of[other.stage] == worker);
            let on_stage = layers.iter().filter(|other| other.stage == layer.stage);
            let parameters = share(layer, on_worker, |layer| layer.parameters as f64);
            // The buffers of its threads belong to the worker, not to its layers.
            let other = log.run.memory.get(worker).map_or(0.0, |estimate| estimate.other as f64);
            let activations = share(layer, on_stage, |layer| layer.weight);
            Some(LayerBytes {
                resident: parameters * (of_worker(worker, |memory| memory.resident)? - other).max(0.0),
                gradients: 4.0 * layer.parameters as f64,
                activation: activations * activation(layer.stage)?,
            })
        };
        let layers = layers.iter().map(bytes).collect::<Option<Vec<_>>>()?;
        let mut footprint = Self { layers, besides: Vec::new() };
        let known = footprint.peaks(cut, plan);
        let besides = known.into_iter().enumerate();
        footprint.besides = besides
            .map(|(worker, known)| Some((of_worker(worker, |memory| memory.peak)? - known).max(0.0)))
            .collect::<Option<_>>()?;
        Some(footprint)
    }

    /// Each worker's peak under a plan of a cut.
    pub(crate) fn peaks(&self, cut: &[Range<usize>], plan: &Plan) -> Vec<f64> {
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
        let most = self.besides.iter().copied().fold(0.0, f64::max);
        let besides = |worker: usize| if peaks.len() == self.besides.len() { self.besides[worker] } else { most };
        peaks.iter().enumerate().map(|(worker, peak)| peak + besides(worker)).collect()
    }
}

/// The worker of each stage.
fn workers(plan: &Plan) -> Vec<usize> {
    let mut worker_of = vec![0; plan.stages()];
    for (worker, row) in plan.rows().iter().enumerate() {
        row.iter().for_each(|action| worker_of[action.stage] = worker);
    }
    worker_of
}

/// A layer's share among others, of which it is one; an equal one where none has any of it.
fn share<'a>(layer: &Layer, others: impl Iterator<Item = &'a Layer> + Clone, of: fn(&Layer) -> f64) -> f64 {
    let all: f64 = others.clone().map(of).sum();
    if all > 0.0 { of(layer) / all } else { 1.0 / others.count().max(1) as f64 }
}
