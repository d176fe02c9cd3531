//! The lines of a run's log: JSON objects, one a line, of which everything else is made.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// A line of a log.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Line {
    /// The first line.
    Run(Box<Run>),
    /// What one step did.
    Step(Box<Step>),
    /// A loss on what is not trained on.
    Validation(Validation),
    /// What else a program wants to say; it is kept, and not shown.
    Other(Value),
}

impl Line {
    /// Reads a line by the field that only its kind has.
    ///
    /// # Errors
    /// Where it is no JSON, or lacks what its kind has.
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

/// JSON has no NaN and no infinity: they are written as `null`.
fn or_nan<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

/// Logs of one replica do not say so.
fn one() -> usize {
    1
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde passes references
fn is_one(number: &usize) -> bool {
    *number == 1
}

/// What was run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// The version of the library.
    pub stageline: String,
    /// The name of the schedule.
    pub schedule: String,
    /// The plan, as PyTorch's CSV.
    pub plan: String,
    /// How many replicas follow the plan, each with its own micro-batches. What the log has of workers, stages and events is of the
    /// first one.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub replicas: usize,
    /// How many micro-batches a channel holds.
    pub channel_capacity: usize,
    /// The layers of the model, in order.
    pub layers: Vec<Layer>,
    /// What the probe at the start measured between each stage and the next, an entry a boundary: `None` where both share a host's
    /// memory. Empty where there was no probe.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<Option<Link>>,
    /// What each worker was estimated to hold, where that could be known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<EstimatedMemory>,
    /// Targets in a micro-batch, tokens most often.
    pub tokens_per_micro_batch: f64,
    /// What it ran on, and with.
    #[serde(default)]
    pub machine: BTreeMap<String, Value>,
    /// Everything that was set.
    pub configuration: BTreeMap<String, Value>,
}

/// What joins two workers that do not share a host's memory.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Link {
    /// From the send to the moment the other can take it, but for what its size takes, in seconds.
    pub latency: f64,
    /// Each way, in bytes a second, finite and at least 1; what crosses follows each other.
    pub bandwidth: f64,
}

impl Link {
    /// From the send of so many bytes to the moment the other can take them, in seconds.
    pub fn takes(self, bytes: f64) -> f64 {
        self.latency + bytes / self.bandwidth
    }
}

/// What a worker was estimated to hold before the first step, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EstimatedMemory {
    /// Parameters.
    pub parameters: u64,
    /// What optimizers remember.
    pub optimizer: u64,
    /// The sums of gradients.
    pub gradients: u64,
    /// The live micro-batches, at most.
    pub activations: u64,
    /// What is on its way to and from other workers, at most.
    #[serde(default)]
    pub transfers: u64,
    /// What is kept of the step before, where steps overlap.
    #[serde(default)]
    pub kept: u64,
    /// What is always there besides.
    pub other: u64,
    /// The most in a step.
    pub peak: u64,
}

/// A layer of the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Layer {
    /// What it is.
    pub name: String,
    /// The stage that has it.
    pub stage: usize,
    /// Its part of what the stage computes, as against the stage's other layers.
    pub weight: f64,
    /// How many parameters it has.
    pub parameters: u64,
}

/// What one step did. Times are in seconds, bubbles shares of the *total* stage time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// The step, from 0.
    pub step: usize,
    /// Per unit of weight; none where no target counted.
    pub loss: Option<f64>,
    /// How many targets counted.
    pub weight: f64,
    /// Targets a second.
    pub tokens_per_s: f64,
    /// The FLOPs of the model's training that this is, as a share of what its devices can do at most, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_flop_utilisation: Option<f64>,
    /// From the cut batch to the last optimizer step.
    pub step_seconds: f64,
    /// Whether workers waited for their device after every action, so that times are the device's.
    #[serde(default)]
    pub synchronised: bool,
    /// Measured.
    #[serde(deserialize_with = "or_nan")]
    pub bubble: f64,
    /// In theory, with equal stages and free transfers.
    #[serde(deserialize_with = "or_nan")]
    pub bubble_ideal: f64,
    /// Of the same plan with the costs of this step.
    #[serde(deserialize_with = "or_nan")]
    pub bubble_simulated: f64,
    /// This and the next two are none where the step was skipped.
    pub learning_rate: Option<f64>,
    /// Of all gradients together, before they were clipped.
    pub gradient_norm: Option<f64>,
    /// Whether they were clipped.
    pub clipped: Option<bool>,
    /// What the loss was multiplied by before the backward.
    pub loss_scale: f64,
    /// Where each worker's time went.
    pub workers: Vec<Account>,
    /// What each stage took for a micro-batch, on average.
    pub stages: Vec<StageCosts>,
    /// What each worker held, where that was counted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<WorkerMemory>,
    /// Each parameter, in the steps that examine it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub health: Vec<Health>,
    /// Each worker's events, in the steps that are drawn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub timeline: Vec<Vec<Event>>,
}

/// Where one worker's part of a step went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Account {
    /// It computed.
    pub busy: f64,
    /// The pipeline was not yet full.
    pub fill: f64,
    /// The pipeline ran empty.
    pub drain: f64,
    /// Another worker had more to compute.
    pub imbalance: f64,
    /// Transfers took their time.
    pub transfer: f64,
    /// Another worker's part of the flush was longer.
    pub flush: f64,
    /// Devices were asked whether they are done.
    #[serde(default)]
    pub asking: f64,
    /// Threads, channels, the cut of the batch.
    pub other: f64,
}

impl Step {
    /// How long it took but for what the questions to devices added to it, in seconds.
    pub(crate) fn seconds_unasked(&self) -> f64 {
        // The same for all workers.
        self.step_seconds - self.workers.first().map_or(0.0, |account| account.asking)
    }
}

impl Account {
    /// The causes of idleness, by name.
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

/// What a stage took: for a micro-batch on average, and for its part of the flush.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StageCosts {
    /// A forward.
    pub forward: f64,
    /// A whole backward.
    pub backward: f64,
    /// The send of an output.
    pub send_activation: f64,
    /// The send of a gradient.
    pub send_gradient: f64,
    /// Norms and the optimizer step.
    pub flush: f64,
    /// What a forward left for its backward, in bytes, where that was counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activation_bytes: Option<f64>,
    /// What it handed to the next stage, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_bytes: Option<f64>,
}

/// What a worker held, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerMemory {
    /// After the step: parameters and optimizer states.
    pub resident: u64,
    /// The most in the step.
    pub peak: u64,
}

/// What a step did to one parameter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Health {
    /// The stage that trains it.
    pub stage: usize,
    /// Where it is in the stage's module.
    pub parameter: String,
    /// The norm of its gradient, not yet clipped.
    #[serde(deserialize_with = "or_nan")]
    pub gradient_norm: f64,
    /// Its norm after the step.
    #[serde(deserialize_with = "or_nan")]
    pub parameter_norm: f64,
    /// The norm of the step as a share of that.
    #[serde(deserialize_with = "or_nan")]
    pub update_ratio: f64,
    /// The mean of its optimizer's second moment, if it keeps one.
    pub second_moment: Option<f64>,
    /// The share of gradient elements that are 0.
    #[serde(deserialize_with = "or_nan")]
    pub zeros: f64,
    /// How many elements of the gradient are of a size from each power of two on.
    pub histogram: Vec<(f64, u64)>,
}

/// Something that a worker did. Times are since the step began.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// For which stage.
    pub stage: usize,
    /// An instruction of the lowered plan, such as `2F0` or `2SEND_F0`, or a part of the step: `start`, `reduce`, `finish`,
    /// `verdict`, `optimizer` or `follow`.
    pub activity: String,
    /// When it began.
    pub start: f64,
    /// When it ended.
    pub end: f64,
    /// How long of that it waited for others.
    pub waited: f64,
    /// For whom, such as `stage 1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waited_for: Option<String>,
    /// What its worker held when it ended, in bytes, where that was counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<u64>,
}

/// A loss on what is not trained on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Validation {
    /// After how many steps.
    pub after_steps: usize,
    /// Per unit of weight.
    #[serde(deserialize_with = "or_nan")]
    pub validation_loss: f64,
}
