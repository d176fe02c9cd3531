//! Converts the pipeline's step reports and memory estimates into records of the run's log.

use std::collections::BTreeMap;

use burn::tensor::Device;
use stageline::{
    Clock, Costs, Cut, CutError, DeviceMemory, DeviceName, GradientNoise, LayerCost, MemoryEstimate, Metric,
    NoiseReport, ParameterCount, ParameterHealth, StepReport, Update,
};
use stageline_report::record::{
    self, EstimatedMemory, Health, Layer, Noise, SignalAndNoise, StageCosts, StageNoise, Step,
};

/// Converts the pipeline's report on a training step into a log record. With `timeline`, the record contains the step's
/// events (one per worker action). Workers, stages and memory are those of the first replica.
///
/// Fields that the report cannot fill are set later by the log's writer: until then, device memory is empty, model FLOP
/// utilisation and epoch are `None`, and the wait for the batch is 0. Tokens per second are computed from the step's
/// loss weight (usually its number of targets), because the number of tokens is unknown here.
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

/// Returns the log records of a model's layers: name, stage, relative cost and number of parameters. The cost is the
/// measured time with `--cut measured`, and otherwise the FLOPs, or 0 if the blocks of the model report none. `cut` is
/// the partition of the layers into stages.
///
/// # Errors
/// Returns [`CutError`] if the cut names a layer that the model does not have.
pub fn layers(costs: &Costs, cut: &Cut) -> Result<Vec<Layer>, CutError> {
    let layers = costs.layers();
    let ranges = cut.ranges(layers.len())?.into_iter().enumerate();
    let are_timed = layers.iter().all(|layer| layer.time.is_some_and(|time| !time.is_zero()));
    let report_flops = costs.blocks_report_flops();
    let flops = |cost: &LayerCost| if report_flops { cost.flops } else { 0.0 };
    let layer = |stage: usize, cost: &LayerCost| Layer {
        name: cost.name.clone(),
        stage,
        weight: cost.time.filter(|_| are_timed).map_or(flops(cost), |time| time.as_secs_f64()),
        parameters: cost.parameters,
        trained: Some(cost.trained),
    };
    Ok(ranges.flat_map(|(stage, range)| layers[range].iter().map(move |cost| layer(stage, cost))).collect())
}

/// Returns log records with one layer per stage, for a hand-cut model, whose real layers are unknown. `parameters`
/// lists each stage's number of parameters.
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

/// Returns the metrics of a step or an evaluation as a map from names to values, for the log.
pub fn metrics(metrics: &[Metric]) -> BTreeMap<String, f64> {
    metrics.iter().map(|metric| (metric.name.to_owned(), metric.value)).collect()
}

/// Returns log records with each worker's estimated memory in the first replica: bytes per purpose, such as parameters
/// and activations, and the peak in bytes. `workers` is the number of workers per replica.
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

/// Returns a log record for each GPU with its allocated and reserved device memory, in bytes. GPUs whose memory is
/// unknown are left out.
pub fn device_memory(gpus: &[Device]) -> Vec<record::DeviceMemory> {
    let read = |gpu: &Device| {
        let DeviceMemory { in_use, reserved, .. } = DeviceMemory::of(gpu)?;
        Some(record::DeviceMemory { device: DeviceName::shown(gpu), in_use, reserved })
    };
    gpus.iter().filter_map(read).collect()
}

/// Returns log records with each stage's measured costs in a step: mean seconds per micro-batch for forward pass,
/// backward pass and sends; seconds of the flush (the end-of-step gradient-norm and optimizer phase); and bytes of
/// activations and outputs.
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

/// Returns the log record of a step's gradient noise, without the smoothed noise scales, which the log's writer adds.
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

/// Returns the log record of one parameter's statistics in a step: norms, update ratio, second moment, zeros and
/// histogram.
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
