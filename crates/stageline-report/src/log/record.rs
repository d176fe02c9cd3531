//! The structures of the lines of a log, which a training serialises: one JSON object a line.
//!
//! The first line describes the run ([`Run`]). One line for each training step ([`Step`]) and each validation
//! ([`Validation`]) follows. The kind of a line is recognised by a field that only this kind has: `plan`, `step` or
//! `after_steps`. Times are in seconds unless a field says otherwise. JSON has no NaN and no infinity, so these values
//! are written as `null`.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// One line of a run's log, by its kind: the run, a step, a validation, or another JSON value.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Line {
    /// The description of the run, which is the first line of the log.
    Run(Box<Run>),
    /// The measurements of one training step.
    Step(Box<Step>),
    /// The loss on validation data after some training steps.
    Validation(Validation),
    /// Any other JSON value; readers of the log skip such a line.
    Other(Value),
}

impl Line {
    /// Parses the text of one line of a run's log. The kind of the line is known by the field that only this kind has.
    ///
    /// # Errors
    /// Returns [`serde_json::Error`] if the text is no JSON, or lacks a field that lines of its kind must have.
    pub fn read(text: &str) -> Result<Self, serde_json::Error> {
        let value: Value = serde_json::from_str(text)?;
        let has = |field: &str| value.get(field).is_some();
        if has("plan") {
            return Ok(Self::Run(serde_json::from_value(value)?));
        }
        if has("step") {
            return Ok(Self::Step(serde_json::from_value(value)?));
        }
        if has("after_steps") {
            return Ok(Self::Validation(serde_json::from_value(value)?));
        }
        Ok(Self::Other(value))
    }
}

/// Deserializes a number of the log as a float; the value `null` stands for NaN, which JSON lacks.
fn or_nan<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

/// Returns 1, the number of replicas of a run whose log does not state the number.
fn one() -> usize {
    1
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde passes references
fn is_one(number: &usize) -> bool {
    *number == 1
}

/// The description of a run: the first line of its log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// The version of the stageline library that wrote the log.
    pub stageline: String,
    /// The name of the schedule that generated the run's plan, such as `1f1b`.
    pub schedule: String,
    /// The plan that the workers followed, in PyTorch's CSV format.
    pub plan: String,
    /// The number of data-parallel replicas, each of which runs the plan on its own micro-batches. The figures of
    /// workers and stages, and the events, are those of the first replica.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub replicas: usize,
    /// The number of micro-batches that a channel between two stages can hold.
    pub channel_capacity: usize,
    /// The layers of the model, in order, with the stage of each.
    pub layers: Vec<Layer>,
    /// The link between each stage and the next, as measured before the first step; `None` if the two stages share a
    /// host's memory. Empty if no link was measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<Option<Link>>,
    /// The memory of each worker as estimated before the first step; empty if there is no estimate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<EstimatedMemory>,
    /// The number of targets in a micro-batch of one replica; in most models, targets are tokens.
    pub tokens_per_micro_batch: f64,
    /// The hardware and software on which the run trained, by name.
    #[serde(default)]
    pub machine: BTreeMap<String, Value>,
    /// The settings with which the run was started, by name.
    pub configuration: BTreeMap<String, Value>,
}

/// The speed of the connection between two workers that do not share a host's memory: latency and bandwidth.
///
/// A transfer of n bytes arrives after latency + n / bandwidth seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Link {
    /// The time from a send until the receiver can use an empty message, in seconds; finite and at least 0.
    pub latency: f64,
    /// The bandwidth of the link in each direction, in bytes a second; finite and at least 1. Transfers in one
    /// direction follow each other.
    pub bandwidth: f64,
}

impl Link {
    /// Returns the time from the send of a message of `bytes` bytes until the receiver can use the message, in seconds.
    pub fn takes(self, bytes: f64) -> f64 {
        self.latency + bytes / self.bandwidth
    }
}

/// The memory of a worker in bytes, as estimated before the first step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EstimatedMemory {
    /// The bytes of the parameters of the worker's stages.
    pub parameters: u64,
    /// The bytes of the optimizer states of the worker's parameters.
    pub optimizer: u64,
    /// The bytes of the gradient sums of the worker's parameters.
    pub gradients: u64,
    /// The bytes of the activations that the worker keeps while its number of live micro-batches is highest.
    pub activations: u64,
    /// The most bytes that are in flight between the worker and other workers.
    #[serde(default)]
    pub transfers: u64,
    /// The bytes of the parameters and optimizer states of the previous step, which the worker keeps to roll back a
    /// speculative step.
    #[serde(default)]
    pub kept: u64,
    /// The bytes that the worker has in use at all times besides tensors of the model, such as the buffers of kernel
    /// threads.
    pub other: u64,
    /// The estimated peak of the worker's memory during a step, in bytes.
    pub peak: u64,
}

/// A layer of the model, with the stage that trains it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Layer {
    /// The name of the model's layer, such as `block 3`.
    pub name: String,
    /// The number of the stage to which the layer belongs.
    pub stage: usize,
    /// The compute of the layer, relative to that of the other layers of its stage; for example the layer's FLOPs.
    pub weight: f64,
    /// The number of elements of the layer's parameters.
    pub parameters: u64,
}

/// The measurements of one training step. Every bubble is a share of the *total* stage time, which is workers x step
/// time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// The number of the training step, counted from 0.
    pub step: usize,
    /// The training loss of the step per unit of target weight; `None` if no target counted.
    pub loss: Option<f64>,
    /// The metrics of the step beside its loss, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metrics: BTreeMap<String, f64>,
    /// The sum of the weights of all targets that counted in the step; in most models, the number of these targets.
    pub weight: f64,
    /// The throughput of the step, in targets a second.
    pub tokens_per_s: f64,
    /// The model FLOP utilisation: the training's FLOPs a second as a share of the devices' peak; `None` if the peak is
    /// not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_flop_utilisation: Option<f64>,
    /// The duration of the step, from the split of the batch to the last optimizer step, in seconds.
    pub step_seconds: f64,
    /// Whether the step was synchronised: workers waited for their device after every action, so that times are those
    /// of the device.
    #[serde(default)]
    pub synchronised: bool,
    /// The measured bubble of the step, as a share of the total stage time.
    #[serde(deserialize_with = "or_nan")]
    pub bubble: f64,
    /// The bubble that the plan would have in theory, with equal stages and free transfers.
    #[serde(deserialize_with = "or_nan")]
    pub bubble_ideal: f64,
    /// The bubble that a simulation of the same plan gives with the costs of this step.
    #[serde(deserialize_with = "or_nan")]
    pub bubble_simulated: f64,
    /// The learning rate of the step; `None` if the step was skipped.
    pub learning_rate: Option<f64>,
    /// The norm of the gradients of all parameters together, before clipping; `None` if the step was skipped.
    pub gradient_norm: Option<f64>,
    /// Whether the gradients of the step were clipped; `None` if the step was skipped.
    pub clipped: Option<bool>,
    /// The factor by which the loss was multiplied before the backward of the step.
    pub loss_scale: f64,
    /// The time of each worker in the step, divided into compute and the causes of idle time.
    pub workers: Vec<Account>,
    /// The costs of each stage in the step, averaged over the micro-batches.
    pub stages: Vec<StageCosts>,
    /// The memory that each worker used in the step; empty if memory was not counted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<WorkerMemory>,
    /// The health of each parameter (norms, update ratio, zeros); empty in steps that do not examine it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub health: Vec<Health>,
    /// The events of each worker; empty in steps that are not recorded for a timeline.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub timeline: Vec<Vec<Event>>,
}

/// The time of one worker in a step, divided into compute and the causes of idle time, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Account {
    /// The seconds in which the worker computed: forwards, backwards, and its part of the flush.
    pub busy: f64,
    /// The seconds in which the worker was idle while the pipeline filled.
    pub fill: f64,
    /// The seconds in which the worker was idle while the pipeline drained.
    pub drain: f64,
    /// The seconds in which the worker was idle because another worker had more to compute.
    pub imbalance: f64,
    /// The seconds in which the worker was idle because of transfers between stages.
    pub transfer: f64,
    /// The seconds in which the worker was idle because another worker's part of the flush was longer.
    pub flush: f64,
    /// The seconds that were added to the step by asking devices whether they have finished; the same for all workers.
    #[serde(default)]
    pub asking: f64,
    /// The seconds that the runtime took and no other cause explains: threads, channels and the split of the batch.
    pub other: f64,
}

/// Returns the name of the clock of times in a log: `device clock` for synchronised steps, in which workers wait for
/// their devices, else `host clock`.
pub(crate) fn clock(synchronised: bool) -> &'static str {
    if synchronised { "device clock" } else { "host clock" }
}

impl Step {
    /// Returns the name of the clock of the step's times and bubbles: `device clock` if workers waited for their devices
    /// after every action, else `host clock`.
    pub fn clock(&self) -> &'static str {
        clock(self.synchronised)
    }

    /// Returns the step time in seconds, without the time that was added by asking devices whether they are done.
    pub(crate) fn seconds_without_asking(&self) -> f64 {
        self.step_seconds - self.workers.first().map_or(0.0, |account| account.asking)
    }
}

impl Account {
    /// Returns the names of the causes of a worker's idle time, each with the seconds of idle time that it explains.
    pub fn causes(&self) -> [(&'static str, f64); 7] {
        let Self { fill, drain, imbalance, transfer, flush, asking, other, .. } = *self;
        [
            ("fill", fill),
            ("drain", drain),
            ("imbalance", imbalance),
            ("transfer", transfer),
            ("flush", flush),
            ("asking", asking),
            ("other", other),
        ]
    }
}

/// The measured costs of a stage: times of a micro-batch and of the flush in seconds, sizes of a micro-batch in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StageCosts {
    /// The seconds of the stage's forward of one micro-batch.
    pub forward: f64,
    /// The seconds of the stage's whole backward of one micro-batch.
    pub backward: f64,
    /// The seconds of sending one micro-batch's output to the next stage.
    pub send_activation: f64,
    /// The seconds of sending one micro-batch's gradient to the previous stage.
    pub send_gradient: f64,
    /// The seconds of the stage's flush: gradient norms and the optimizer step.
    pub flush: f64,
    /// The bytes that the stage's forward of one micro-batch keeps for the backward; `None` if memory was not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activation_bytes: Option<f64>,
    /// The bytes that the stage sends to the next stage for one micro-batch; `None` for the last stage, or if the bytes
    /// were not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_bytes: Option<f64>,
}

/// The memory that a worker used in a step, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerMemory {
    /// The bytes that the worker has in use between steps: parameters and optimizer states.
    pub resident: u64,
    /// The most bytes that the worker had in use during the step.
    pub peak: u64,
}

/// The health of one parameter in a step: figures that show whether it trains well. Norms are Euclidean, over all
/// elements.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Health {
    /// The number of the stage that trains the parameter.
    pub stage: usize,
    /// The path of the parameter in the module of its stage, such as `0.linear.weight`.
    pub parameter: String,
    /// The norm of the parameter's gradient, before clipping.
    #[serde(deserialize_with = "or_nan")]
    pub gradient_norm: f64,
    /// The norm of the parameter after the step.
    #[serde(deserialize_with = "or_nan")]
    pub parameter_norm: f64,
    /// The norm of the parameter's update in the step, as a share of the norm of the parameter.
    #[serde(deserialize_with = "or_nan")]
    pub update_ratio: f64,
    /// The mean of the optimizer's second moment of the parameter; `None` if the optimizer keeps none.
    pub second_moment: Option<f64>,
    /// The share of the elements of the parameter's gradient that are exactly 0.
    #[serde(deserialize_with = "or_nan")]
    pub zeros: f64,
    /// The bins of a histogram of the gradient's elements by size: the lower end of each bin, and the number of
    /// elements in the bin.
    pub histogram: Vec<(f64, u64)>,
}

/// One activity of a worker in a step, such as a forward or a send. Times are in seconds since the step began.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// The number of the stage for which the worker acted.
    pub stage: usize,
    /// The name of the activity: an instruction of the lowered plan, such as `2F0` or `2SEND_F0`, or a part of the
    /// step: `start`, `reduce`, `finish`, `verdict`, `optimizer` or `follow`.
    pub activity: String,
    /// The time at which the activity began, in seconds since the step began.
    pub start: f64,
    /// The time at which the activity ended, in seconds since the step began.
    pub end: f64,
    /// The part of the activity's time in which the worker waited for other workers or the caller, in seconds.
    pub waited: f64,
    /// The stage or other cause for which the worker waited, such as `stage 1`; `None` if no cause is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waited_for: Option<String>,
    /// The memory that the worker had in use when the activity ended, in bytes; `None` if memory was not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<u64>,
}

/// The loss on validation data, measured after some training steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Validation {
    /// The number of training steps that were completed before the validation.
    pub after_steps: usize,
    /// The validation loss per unit of target weight.
    #[serde(deserialize_with = "or_nan")]
    pub validation_loss: f64,
    /// The metrics on validation data beside the loss, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metrics: BTreeMap<String, f64>,
}
