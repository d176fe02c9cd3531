//! The lines of a log, as the structures that a program serialises: one JSON object a line.
//!
//! The first line describes the run ([`Run`]); one line for each training step ([`Step`]) and each validation ([`Validation`]) follows.
//! A line is recognised by a field that only its kind has: `plan`, `step` or `after_steps`. Times are in seconds unless a field says
//! otherwise. JSON has no NaN and no infinity, so these are written as `null`.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// A line of a log.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Line {
    /// The description of the run: the first line.
    Run(Box<Run>),
    /// The measurements of one step.
    Step(Box<Step>),
    /// A validation loss.
    Validation(Validation),
    /// Any other JSON value; readers skip it.
    Other(Value),
}

impl Line {
    /// Parses a line, whose kind is known by the field that only this kind has.
    ///
    /// # Errors
    /// [`serde_json::Error`] if the text is no JSON, or lacks a field of its kind.
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

/// Reads `null` as NaN.
fn or_nan<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

/// Returns the number of replicas in logs without the field.
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
    /// The version of the library that wrote the log.
    pub stageline: String,
    /// The name of the schedule.
    pub schedule: String,
    /// The plan, in PyTorch's CSV format.
    pub plan: String,
    /// The number of data-parallel replicas, each of which runs the plan on its own micro-batches. Figures of workers and stages, and
    /// events, are those of the first replica.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub replicas: usize,
    /// The number of micro-batches that a channel between two stages holds.
    pub channel_capacity: usize,
    /// The layers of the model, in order.
    pub layers: Vec<Layer>,
    /// The link between each stage and the next, as measured before the first step; `None` if both share a host's memory. Empty if
    /// nothing was measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<Option<Link>>,
    /// The estimated memory of each worker; empty if there is no estimate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<EstimatedMemory>,
    /// The targets in a micro-batch of one replica, in most models tokens.
    pub tokens_per_micro_batch: f64,
    /// The hardware and software of the run, by name.
    #[serde(default)]
    pub machine: BTreeMap<String, Value>,
    /// The settings of the run, by name.
    pub configuration: BTreeMap<String, Value>,
}

/// A link between two workers that do not share a host's memory.
///
/// A transfer of n bytes arrives after latency + n / bandwidth seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Link {
    /// The time from a send until the receiver can use an empty message, in seconds; finite and at least 0.
    pub latency: f64,
    /// The bandwidth in each direction, in bytes a second; finite and at least 1. Transfers in one direction follow each other.
    pub bandwidth: f64,
}

impl Link {
    /// Returns the time from a send until the receiver can use the bytes, in seconds.
    pub fn takes(self, bytes: f64) -> f64 {
        self.latency + bytes / self.bandwidth
    }
}

/// The memory of a worker in bytes, as estimated before the first step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EstimatedMemory {
    /// Parameters.
    pub parameters: u64,
    /// Optimizer states.
    pub optimizer: u64,
    /// Gradient sums.
    pub gradients: u64,
    /// Activations, at the most live micro-batches.
    pub activations: u64,
    /// The most that is in flight to and from other workers.
    #[serde(default)]
    pub transfers: u64,
    /// Parameters and optimizer states of the step before, which overlapping steps keep to roll back.
    #[serde(default)]
    pub kept: u64,
    /// Memory in use at all times, such as the buffers of kernel threads.
    pub other: u64,
    /// The peak of a step.
    pub peak: u64,
}

/// A layer of the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Layer {
    /// The name, such as `block 3`.
    pub name: String,
    /// The stage that has the layer.
    pub stage: usize,
    /// The compute of the layer, relative to the other layers of its stage; for example its FLOPs.
    pub weight: f64,
    /// The number of parameters.
    pub parameters: u64,
}

/// The measurements of one training step. Bubbles are shares of the *total* stage time, which is workers x step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// The number of the step, counted from 0.
    pub step: usize,
    /// The training loss per unit of weight; `None` if no target counted.
    pub loss: Option<f64>,
    /// The weight of all targets that counted, in most models their number.
    pub weight: f64,
    /// Throughput, in targets a second.
    pub tokens_per_s: f64,
    /// Model FLOP utilisation: the FLOPs of the training a second, as a share of the most that the devices can do; `None` if that is
    /// not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_flop_utilisation: Option<f64>,
    /// The time from the split of the batch to the last optimizer step, in seconds.
    pub step_seconds: f64,
    /// Whether workers waited for their device after every action, so that times are those of the device.
    #[serde(default)]
    pub synchronised: bool,
    /// The measured bubble.
    #[serde(deserialize_with = "or_nan")]
    pub bubble: f64,
    /// The bubble in theory, with equal stages and free transfers.
    #[serde(deserialize_with = "or_nan")]
    pub bubble_ideal: f64,
    /// The bubble of a simulation of the same plan with the costs of this step.
    #[serde(deserialize_with = "or_nan")]
    pub bubble_simulated: f64,
    /// The learning rate; `None` if the step was skipped, as are the next two.
    pub learning_rate: Option<f64>,
    /// The norm of all gradients together, before clipping.
    pub gradient_norm: Option<f64>,
    /// Whether the gradients were clipped.
    pub clipped: Option<bool>,
    /// The factor by which the loss was multiplied before the backward.
    pub loss_scale: f64,
    /// The time of each worker, by cause.
    pub workers: Vec<Account>,
    /// The costs of each stage, averaged over the micro-batches.
    pub stages: Vec<StageCosts>,
    /// The memory of each worker; empty if nothing counted it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<WorkerMemory>,
    /// The health of each parameter, in the steps that examine it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub health: Vec<Health>,
    /// The events of each worker, in the steps that are recorded for a timeline.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub timeline: Vec<Vec<Event>>,
}

/// The time of one worker in a step, by cause, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Account {
    /// Time that the worker computed.
    pub busy: f64,
    /// Idle time while the pipeline filled.
    pub fill: f64,
    /// Idle time while the pipeline drained.
    pub drain: f64,
    /// Idle time because another worker had more to compute.
    pub imbalance: f64,
    /// Idle time because of transfers.
    pub transfer: f64,
    /// Idle time because another worker's part of the flush was longer.
    pub flush: f64,
    /// Time added to the step by asking devices whether they are done; the same for all workers.
    #[serde(default)]
    pub asking: f64,
    /// Time in threads and channels, and for the split of the batch.
    pub other: f64,
}

impl Step {
    /// Returns the seconds of the step without those added by asking devices whether they are done.
    pub(crate) fn seconds_without_asking(&self) -> f64 {
        self.step_seconds - self.workers.first().map_or(0.0, |account| account.asking)
    }
}

impl Account {
    /// Returns the seconds of each cause of idle time, with its name.
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

/// The costs of a stage: times of a micro-batch and of the flush in seconds, sizes of a micro-batch in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StageCosts {
    /// The time of a forward.
    pub forward: f64,
    /// The time of a whole backward.
    pub backward: f64,
    /// The time of sending an output to the next stage.
    pub send_activation: f64,
    /// The time of sending a gradient to the stage before.
    pub send_gradient: f64,
    /// The time of gradient norms and the optimizer step.
    pub flush: f64,
    /// The bytes that a forward keeps for its backward; `None` if nothing counted them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activation_bytes: Option<f64>,
    /// The bytes that the stage sends to the next one; `None` for the last stage, or if nothing counted them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_bytes: Option<f64>,
}

/// The memory of a worker in a step, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerMemory {
    /// Memory in use between steps: parameters and optimizer states.
    pub resident: u64,
    /// The most memory in use during the step.
    pub peak: u64,
}

/// The health of one parameter in a step. Norms are Euclidean, over all elements.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Health {
    /// The stage that trains the parameter.
    pub stage: usize,
    /// The path of the parameter in the module of its stage, such as `0.linear.weight`.
    pub parameter: String,
    /// The norm of the gradient, before clipping.
    #[serde(deserialize_with = "or_nan")]
    pub gradient_norm: f64,
    /// The norm of the parameter after the step.
    #[serde(deserialize_with = "or_nan")]
    pub parameter_norm: f64,
    /// The norm of the update as a share of the norm of the parameter.
    #[serde(deserialize_with = "or_nan")]
    pub update_ratio: f64,
    /// The mean of the optimizer's second moment; `None` if the optimizer keeps none.
    pub second_moment: Option<f64>,
    /// The share of gradient elements that are exactly 0.
    #[serde(deserialize_with = "or_nan")]
    pub zeros: f64,
    /// The bins of a histogram of gradient elements by size: the lower end of a bin, and the number of elements in it.
    pub histogram: Vec<(f64, u64)>,
}

/// One activity of a worker. Times are in seconds since the step began.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// The stage for which the worker acted.
    pub stage: usize,
    /// An instruction of the lowered plan, such as `2F0` or `2SEND_F0`, or a part of the step: `start`, `reduce`, `finish`,
    /// `verdict`, `optimizer` or `follow`.
    pub activity: String,
    /// The time at which the activity began.
    pub start: f64,
    /// The time at which the activity ended.
    pub end: f64,
    /// The part of the activity in which the worker waited for others, in seconds.
    pub waited: f64,
    /// The cause of the wait, such as `stage 1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waited_for: Option<String>,
    /// The memory that the worker had in use at the end, in bytes; `None` if nothing counted it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<u64>,
}

/// The loss on validation data, after some steps.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Validation {
    /// The number of training steps before the validation.
    pub after_steps: usize,
    /// The validation loss per unit of weight.
    #[serde(deserialize_with = "or_nan")]
    pub validation_loss: f64,
}
