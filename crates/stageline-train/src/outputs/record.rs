//! Converts the pipeline's reports of steps and estimates of memory into the records of the run's log.

use std::collections::BTreeMap;

use burn::tensor::Device;
use stageline::{
    Clock, Costs, Cut, CutError, DeviceMemory, DeviceName, GradientNoise, LayerCost, MemoryEstimate, Metric,
    NoiseReport, ParameterCount, ParameterHealth, StepReport, Update,
};
use stageline_report::record::{
    self, EstimatedMemory, Health, Layer, Noise, SignalAndNoise, StageCosts, StageNoise, Step,
};

/// Returns the log record of a training step, from the pipeline's report of the step. If `timeline` is true, the record
/// contains the events of the step. Its workers, stages and memory belong to the first replica.
///
/// Some fields need facts that the report lacks, and the log's writer sets them later. Until then, the memory of GPUs
/// is empty, the model FLOP utilisation and the epoch are `None`, and the wait for the batch is 0. The tokens per
/// second are computed from the loss weight of the step, because the number of tokens is not known here.
pub fn step(report: &StepReport, timeline: bool) -> Step {
    let (gradient_norm, clipped) = match report.update {
        Update::Stepped { gradient_norm, clipped } => (Some(gradient_norm), Some(clipped)),
        _ => (None, None),
    };
    let step_seconds = report.step_time.as_secs_f64();
    let first = report.recording.of_replica(0);
    Step {
        step: report.step,
        loss: report.loss.is_finite().then_some(report.loss),
        metrics: metrics(&report.metrics).into_iter().filter(|(_, value)| value.is_finite()).collect(),
        weight: report.weight(),
        tokens_per_s: report.weight() / step_seconds,
        epoch: None,
        model_flop_utilisation: None,
        step_seconds,
        batch_wait_seconds: 0.0,
        synchronised: report.recording.clock() == Clock::Synchronised,
        bubble: report.bubble(),
        bubble_ideal: report.ideal_bubble(),
        bubble_simulated: report.recording.simulated_bubble(),
        learning_rate: report.stages.last().and_then(|stage| stage.learning_rate),
        gradient_norm,
        clipped,
        loss_scale: report.loss_scale,
        workers: first.accounts(),
        stages: stages(report),
        memory: first.memory().unwrap_or_default(),
        device_memory: Vec::new(),
        health: report.health.iter().map(health).collect(),
        noise: report.noise.as_ref().map(noise),
        timeline: if timeline { first.events().to_vec() } else { Vec::new() },
    }
}

/// Returns every layer of the model for the run's log, with its name, stage, relative cost and parameters. The cost is
/// the measured time (`--cut measured`), and otherwise the FLOPs. `cut` is the partition of the layers into stages.
///
/// # Errors
/// Returns [`CutError`] if the cut names a layer that the model does not have.
pub fn layers(costs: &Costs, cut: &Cut) -> Result<Vec<Layer>, CutError> {
    let layers = costs.layers();
    let ranges = cut.ranges(layers.len())?.into_iter().enumerate();
    let are_timed = layers.iter().all(|layer| layer.time.is_some_and(|time| !time.is_zero()));
    let layer = |stage: usize, cost: &LayerCost| Layer {
        name: cost.name.clone(),
        stage,
        weight: cost.time.filter(|_| are_timed).map_or(cost.flops, |time| time.as_secs_f64()),
        parameters: cost.parameters,
        trained: Some(cost.trained),
    };
    Ok(ranges.flat_map(|(stage, range)| layers[range].iter().map(move |cost| layer(stage, cost))).collect())
}

/// Returns the layers of a model that the user has cut by hand, for the run's log. Its real layers are not known, so
/// each stage is logged as one layer. `parameters` lists the number of parameters of each stage.
pub fn stages_as_layers(parameters: &[ParameterCount]) -> Vec<Layer> {
    let layer = |(stage, count): (usize, &ParameterCount)| Layer {
        name: format!("stage {stage}"),
        stage,
        weight: 1.0,
        parameters: count.trained + count.frozen,
        trained: Some(count.trained),
    };
    parameters.iter().enumerate().map(layer).collect()
}

/// Returns the metrics of a step or an evaluation for the log, as a map from names to values.
pub fn metrics(metrics: &[Metric]) -> BTreeMap<String, f64> {
    metrics.iter().map(|metric| (metric.name.to_owned(), metric.value)).collect()
}

/// Returns the estimated memory of each worker of the first replica, for the log. It has the bytes for each purpose,
/// such as parameters and activations, and the peak in bytes. `workers` is the number of workers of a replica.
pub fn estimate(estimate: &MemoryEstimate, workers: usize) -> Vec<EstimatedMemory> {
    let estimated = |worker: stageline::WorkerEstimate| EstimatedMemory {
        parameters: worker.parameters,
        optimizer: worker.optimizer,
        optimizer_on_host: worker.optimizer_on_host,
        gradients: worker.gradients,
        activations: worker.activations,
        transfers: worker.transfers,
        kept: worker.kept,
        other: worker.other,
        peak: worker.peak(),
    };
    estimate.workers().into_iter().take(workers).map(estimated).collect()
}

/// Returns a log record for each GPU with its memory in use and its reserved memory, in bytes. A GPU whose memory is
/// not known is left out.
pub fn device_memory(gpus: &[Device]) -> Vec<record::DeviceMemory> {
    let read = |gpu: &Device| {
        let DeviceMemory { in_use, reserved, .. } = DeviceMemory::of(gpu)?;
        Some(record::DeviceMemory { device: DeviceName::shown(gpu), in_use, reserved })
    };
    gpus.iter().filter_map(read).collect()
}

/// Returns the measured costs of each stage in a training step, for the log. They are the mean times of a forward pass,
/// a backward pass and the sends of one micro-batch, in seconds. They also contain the time of the flush (the end of
/// the step), and the bytes of activations and outputs.
fn stages(report: &StepReport) -> Vec<StageCosts> {
    let (costs, micro_batches) = (report.recording.costs(), report.micro_batches);
    let (activations, outputs) = (report.recording.activations(), report.recording.outputs());
    let stage_costs = |stage: usize| {
        let activation_bytes = activations.as_ref().map(|bytes| bytes[stage]);
        let mut sum = StageCosts {
            flush: costs.optimizer(stage),
            activation_bytes,
            output_bytes: outputs[stage],
            ..StageCosts::default()
        };
        for micro_batch in 0..micro_batches {
            let (cost, share) = (costs.stage(stage, micro_batch), 1.0 / micro_batches as f64);
            sum.forward += cost.forward * share;
            sum.backward += cost.backward * share;
            sum.send_activation += cost.send_activation * share;
            sum.send_gradient += cost.send_gradient * share;
        }
        sum
    };
    (0..report.stages.len()).map(stage_costs).collect()
}

/// Returns the log record of the gradient noise in one step. The smoothed noise scales over several steps are left
/// unset, because only the log's writer knows them.
fn noise(report: &NoiseReport) -> Noise {
    let estimates =
        |noise: &GradientNoise| SignalAndNoise { squared_norm: noise.squared_norm, variance: noise.variance };
    let of_stage =
        |noise: &GradientNoise| StageNoise { scale: noise.scale(), smoothed_scale: None, estimate: estimates(noise) };
    Noise {
        scale: report.total.scale(),
        smoothed_scale: None,
        total: estimates(&report.total),
        stages: report.stages.iter().map(of_stage).collect(),
    }
}

/// Returns the log record of one parameter's norms, update ratio, second moment, zeros and histogram in a step.
pub fn health(health: &ParameterHealth) -> Health {
    Health {
        stage: health.stage,
        parameter: health.name.clone(),
        gradient_norm: health.gradient_norm,
        parameter_norm: health.parameter_norm,
        update_ratio: health.update_ratio(),
        second_moment: health.second_moment,
        zeros: health.zeros,
        histogram: health.histogram.bins().filter(|(_, count)| *count > 0).collect(),
    }
}
