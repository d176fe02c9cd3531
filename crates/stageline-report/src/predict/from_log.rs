//! Divides the costs in the log of a run among the layers of its model: [`Measured::of`].
//!
//! The forward and backward pass of a stage is divided among its layers by their weights, and its flush by their
//! parameters. Logged time that belongs to no stage becomes an overhead per step and per action.

use std::ops::Range;

use stageline_schedule::{Activity, Compute, Instruction};

use super::error::PredictError;
use super::footprint::{Footprint, share};
use super::measured::{LayerCost, Measured, actions_of_worker};
use super::network::Network;
use super::target::{Cut, Target};
use crate::log::record::{Layer, StageCosts, Step};
use crate::log::{RunLog, median};

impl Measured {
    /// Returns the costs of a run's layers, computed from its log as medians over the [warm steps](RunLog::warm_steps),
    /// which leave out the first two steps.
    ///
    /// # Errors
    /// Returns [`PredictError`] in these cases:
    ///
    /// - The log has no step that updated parameters.
    /// - The log does not state the layers of every stage, or has a time or size that is not above 0.
    /// - A network link has an invalid latency or bandwidth, or the log has network links but not one entry in `links`
    ///   for each boundary between stages.
    pub fn of(log: &RunLog) -> Result<Self, PredictError> {
        let (stages, micro_batches) = (log.plan.stages(), log.plan.micro_batches());
        let costs = (0..stages).map(|stage| stage_costs(log, stage)).collect::<Option<Vec<_>>>();
        let costs = costs.ok_or(PredictError::NoSteps)?;
        let step = median(log.warm_steps().map(Step::seconds_without_asking)).ok_or(PredictError::NoSteps)?;
        let weight = log.weight().ok_or(PredictError::NoSteps)?;
        let input_shares: Vec<_> = (0..stages).map(|stage| input_share(log, stage)).collect();
        let unknown = || PredictError::Layers { stages };
        let layers = log.run.layers.iter().map(|layer| layer_cost(layer, &log.run.layers, &costs, &input_shares));
        let layers = layers.collect::<Option<Vec<_>>>().ok_or_else(unknown)?;
        above_zero([
            ("the time of all layers", layers.iter().map(|layer| layer.forward + layer.backward).sum()),
            // Older logs of runs with split backward passes have 0 as the time of a backward pass.
            ("backward", costs.iter().map(|cost| cost.backward).sum()),
            ("step_seconds", step),
            ("weight", weight),
            ("tokens_per_micro_batch", log.run.tokens_per_micro_batch),
        ])?;
        let cut = cut_of(&log.run.layers, stages).ok_or_else(unknown)?;
        let other = median(log.warm_steps().map(|step| {
            let other: f64 = step.workers.iter().map(|worker| worker.other).sum();
            other / step.workers.len().max(1) as f64
        }));
        let other = other.unwrap_or(0.0).max(0.0);
        let step_overhead = outside_actions(log).min(other);
        let measured = Self {
            layers,
            footprint: Footprint::of(log, &cut),
            cut,
            cut_by_hand: log.run.cut_by_hand,
            tokens: log.run.tokens_per_micro_batch * log.run.replicas as f64,
            unit: log.run.unit,
            weight: weight / micro_batches as f64,
            step_overhead,
            action_overhead: (other - step_overhead) / actions_of_worker(&log.plan).max(1.0),
            send_seconds: send_seconds(log, &costs),
            variation: 1.0,
            capacity: set_capacity(log, micro_batches),
            boundary_bytes: costs[..stages - 1].iter().map(|cost| cost.output_bytes).collect(),
            network: Network::of(log)?,
        };
        if measured.network != Network::Memory {
            return Ok(measured);
        }
        let (workers, schedule) = (log.plan.workers(), &log.plan);
        let simulated = measured.predict(&Target { workers, micro_batches, schedule, cut: Cut::OfTheRun })?.step;
        Ok(Self { variation: step / simulated, ..measured })
    }
}

/// Returns the channel capacity that was set for the run, which also holds for other numbers of micro-batches (M).
/// Returns `None` if the run's channels held all `micro_batches` of a step because no capacity was set. A log without
/// settings cannot tell, so a capacity of M or more then counts as not set.
fn set_capacity(log: &RunLog, micro_batches: usize) -> Option<usize> {
    let is_set = log.run.configuration.contains_key("channel_capacity");
    Some(log.run.channel_capacity).filter(|capacity| is_set || *capacity < micro_batches)
}

/// Returns [`PredictError::NotAboveZero`] for the first of several named values that is not above 0.
fn above_zero<const N: usize>(values: [(&'static str, f64); N]) -> Result<(), PredictError> {
    match values.into_iter().find(|(_, value)| *value <= 0.0) {
        Some((name, _)) => Err(PredictError::NotAboveZero(name)),
        None => Ok(()),
    }
}

/// Returns the run's partition of the model's layers: for each stage, the range of the indices of its layers. Returns
/// `None` if a stage has no layer, or the layers are not in the order of their stages.
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

/// Returns the overhead of a step in seconds: the time before its first computation (such as a forward pass), plus the
/// time after its last event.
///
/// The times come from one step with logged events. It is the first that is synchronised (workers wait for their
/// devices after every action) if the run's medians come from synchronised steps, and otherwise the first that is not.
/// Returns 0 if there is no such step.
fn outside_actions(log: &RunLog) -> f64 {
    let drawn = |step: &&Step| !step.timeline.is_empty() && step.synchronised == log.synchronised();
    let Some(step) = log.steps_since_resume().find(drawn) else { return 0.0 };
    let events = || step.timeline.iter().flatten();
    let Some(first) = events().filter(|event| event.computes()).map(|event| event.start).min() else { return 0.0 };
    let last = events().map(|event| event.end).max().unwrap_or_default();
    first.as_secs_f64() + (step.step_seconds - last.as_secs_f64()).max(0.0)
}

/// Returns the input gradient's share, from 0 to 1, of the time of a stage's backward pass, from the logged events.
/// Returns 0.5 if the log has no events, or if the run's schedule does not split backward passes.
fn input_share(log: &RunLog, stage: usize) -> f64 {
    let events = || {
        log.steps_since_resume().flat_map(|step| step.timeline.iter().flatten()).filter(|event| event.stage == stage)
    };
    let seconds = |half: Compute| {
        let is_half = |activity| matches!(activity, Activity::Instruction(Instruction::Compute(action)) if action.compute == half);
        events().filter(|event| is_half(event.activity)).map(|event| event.worked().as_secs_f64()).sum::<f64>()
    };
    let (input, weight) = (seconds(Compute::InputGradient), seconds(Compute::WeightGradient));
    if input > 0.0 && weight > 0.0 { input / (input + weight) } else { 0.5 }
}

/// Returns the measured costs of a stage of the run: the times of its actions in seconds, and the bytes of its output.
/// They are medians over the [warm steps](RunLog::warm_steps), which leave out the first two steps. `activation_bytes`
/// is `None`, because memory predictions read it from the log. Returns `None` if the stage is in none of the warm
/// steps.
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

/// Returns how long a send keeps the sending worker busy, in seconds, beyond the network link's transfer time. The
/// result is the median over the stages' sends that took longer than their transfer time, or 0 if none did.
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

/// Computes a layer's times for its forward pass, backward pass and flush (gradient norms and optimizer step), in
/// seconds, as shares of its stage's measured times.
///
/// Each layer in the log has a weight, its relative cost of a forward and backward pass. The stage's forward and
/// backward pass are divided among its layers in proportion to these weights. If all of them are 0, because the layers
/// report no FLOPs, the passes are divided in proportion to the numbers of parameters. The stage's flush is divided in
/// proportion to the numbers of trained parameters of its layers, or as the passes if the stage trains none.
///
/// `layers` has all layers of the model, `stages` the costs of each stage, and `input_shares` the fraction of the input
/// gradient in each stage's backward pass. Returns `None` if `stages` lacks the stage of the layer.
fn layer_cost(layer: &Layer, layers: &[Layer], stages: &[StageCosts], input_shares: &[f64]) -> Option<LayerCost> {
    let stage = stages.get(layer.stage)?;
    let siblings = || layers.iter().filter(|sibling| sibling.stage == layer.stage);
    let has_weights = siblings().any(|sibling| sibling.weight > 0.0);
    let work = share(layer, siblings(), |of| if has_weights { of.weight } else { of.parameters as f64 });
    let trains = siblings().any(|sibling| sibling.trained() > 0);
    let trained = if trains { share(layer, siblings(), |of| of.trained() as f64) } else { work };
    let backward = work * stage.backward;
    Some(LayerCost {
        forward: work * stage.forward,
        backward,
        input_gradient: input_shares.get(layer.stage)? * backward,
        flush: trained * stage.flush,
    })
}
