//! The line of a log with the measurements of a training step: the time of each worker by cause, and the costs, memory
//! and events of the stages.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
pub use stageline_schedule::{Account, Event, WorkerMemory};

use super::or_nan;

/// The measurements of one training step, as a line of the log. Every bubble is a fraction of the *total* stage time,
/// which is workers x step time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Zero-based number of the training step that this log line describes.
    pub step: usize,
    /// The mean training loss over the step's targets, weighted by the weights of the targets. It is `None` if the mean
    /// is not finite, for example because all targets are masked.
    pub loss: Option<f64>,
    /// The metrics of the step other than the loss, by name: the model's metrics as means over the step's targets, and
    /// values that the training program added.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metrics: BTreeMap<String, f64>,
    /// The loss weight of the step's batch: the sum of its targets' weights, usually the number of unmasked targets.
    pub weight: f64,
    /// The throughput of the step in tokens per second. Padding and tokens that are masked out in the loss count, too.
    /// The unit is samples per second if the dataset has no tokens.
    pub tokens_per_s: f64,
    /// The number of epochs (passes over the training dataset) after the step; `None` if the number of samples is not
    /// known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<f64>,
    /// The model FLOP utilisation (MFU): the training run's FLOPs per second, divided by the peak FLOPs per second of
    /// all used devices. Activation recomputation does not count. `None` if the peak is not known (`--peak-tflops`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_flop_utilisation: Option<f64>,
    /// The step time in seconds, from splitting the batch into micro-batches to the end of the last optimizer step.
    pub step_seconds: f64,
    /// The seconds that the run waited until the step's batch was loaded; 0 in older logs. `step_seconds` does not
    /// include this time. With overlapping steps, the previous step may have run meanwhile.
    #[serde(default)]
    pub batch_wait_seconds: f64,
    /// Whether the step was synchronised: workers waited for their device after every action. The recorded times then
    /// show when the device finished an action. In other steps they show when the host issued the action, which a GPU
    /// may finish later.
    #[serde(default)]
    pub synchronised: bool,
    /// The measured bubble of the step: the idle fraction of the total stage time (workers x step time), from 0 to 1.
    #[serde(deserialize_with = "or_nan")]
    pub bubble: f64,
    /// The ideal bubble of the plan, from 0 to 1. It assumes that all stages take equal time, a backward pass takes
    /// twice as long as a forward pass, and transfers take no time. For GPipe and 1F1B with P workers and M
    /// micro-batches it is (P - 1) / (M + P - 1).
    #[serde(deserialize_with = "or_nan")]
    pub bubble_ideal: f64,
    /// The bubble of a simulated step, to compare with the measured `bubble`: the idle fraction of workers x simulated
    /// step time, from 0 to 1. The simulation runs the same plan with this step's measured times of actions and
    /// transfers. It leaves out the runtime's overhead, such as threads that wake up late.
    #[serde(deserialize_with = "or_nan")]
    pub bubble_simulated: f64,
    /// The learning rate of the step; `None` if the step was skipped, which means that it updated no parameters.
    pub learning_rate: Option<f64>,
    /// The Euclidean norm of the gradients of all parameters together, before clipping; `None` if the step was skipped
    /// and updated no parameters.
    pub gradient_norm: Option<f64>,
    /// Whether the gradients of the step were clipped; `None` if the step was skipped and updated no parameters.
    pub clipped: Option<bool>,
    /// Loss scale of the step: the loss was multiplied by this value before the backward pass. It is 1 without loss
    /// scaling.
    pub loss_scale: f64,
    /// Breakdown of this step's time for each worker of the first replica, in seconds: compute, and idle time by cause.
    pub workers: Vec<Account>,
    /// Measured costs of each stage in this step, in stage order: times in seconds and tensor sizes in bytes, mostly
    /// means per micro-batch.
    pub stages: Vec<StageCosts>,
    /// Memory that each worker of the first replica had allocated at the beginning and at the peak of this step, in
    /// bytes; empty if memory was not measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<WorkerMemory>,
    /// The memory of each GPU of this host after a synchronised step, where workers waited for their devices. The list
    /// is empty for other steps, and if the run uses no GPU of this host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub device_memory: Vec<DeviceMemory>,
    /// The health of each parameter: training statistics such as its gradient norm and the size of its update. The list
    /// is empty in steps that do not measure them (`--health-every`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub health: Vec<Health>,
    /// The estimates of the gradient's squared norm and of its noise in the step; `None` in steps that do not measure
    /// them (`--noise-every`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub noise: Option<Noise>,
    /// The timed events of the step: one list for each worker of the first replica, in the order of time. It is empty
    /// in steps whose events are not logged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub timeline: Vec<Vec<Event>>,
}

/// Names the clock that measured a log's times: `device clock` if the steps were `synchronised` (workers waited for
/// their devices after every action), otherwise `host clock`.
pub(crate) fn clock(synchronised: bool) -> &'static str {
    if synchronised { "device clock" } else { "host clock" }
}

impl Step {
    /// Whether the step's batch has at least one target that is not masked out. Without one, the step computes nothing.
    pub fn has_target(&self) -> bool {
        self.weight > 0.0
    }

    /// Returns the name of the clock that measured the step's times and bubbles. It is `device clock` if workers waited
    /// for their devices after every action, else `host clock`.
    pub fn clock(&self) -> &'static str {
        clock(self.synchronised)
    }

    /// Returns the names of the layers with entries in `health` for this step, in the order of the model. `health` has
    /// training statistics of each parameter, such as its gradient norm and update ratio. The result is empty if the
    /// step did not measure them.
    pub fn layers(&self) -> Vec<&str> {
        let mut layers: Vec<&str> = Vec::new();
        for layer in self.health.iter().map(|health| layer_of(&health.parameter)) {
            if !layers.contains(&layer) {
                layers.push(layer);
            }
        }
        layers
    }

    /// Returns the entries of `health` for all parameters of the layer with the name `layer`. They are training
    /// statistics of this step, such as gradient norm and update ratio. The result is empty if the step did not measure
    /// them.
    pub fn health_of(&self, layer: &str) -> Vec<&Health> {
        self.health.iter().filter(|health| layer_of(&health.parameter) == layer).collect()
    }

    /// Returns the step time in seconds, minus the overhead of device synchronisation. This overhead arises in
    /// synchronised steps, where workers wait after every action until their device has finished.
    pub(crate) fn seconds_without_asking(&self) -> f64 {
        self.step_seconds - self.workers.first().map_or(0.0, |account| account.asking)
    }
}

/// The measured costs of a stage in a step, the input of predictions: mean times and mean sizes of one micro-batch, and
/// the time of the flush (the end-of-step gradient norms and optimizer step). Times are in seconds, sizes in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StageCosts {
    /// The measured seconds of a stage's forward pass on one micro-batch, as a mean over the micro-batches of the step.
    pub forward: f64,
    /// The measured seconds of a stage's whole backward pass on one micro-batch, as a mean over the micro-batches of
    /// the step. It computes the gradients of inputs and of weights.
    pub backward: f64,
    /// Mean time per micro-batch, in seconds, that the sending and the receiving worker together spend on transferring
    /// the stage's output (activation) to the next stage.
    pub send_activation: f64,
    /// Mean time per micro-batch, in seconds, that the sending and the receiving worker together spend on transferring
    /// the gradient of the stage's input to the previous stage.
    pub send_gradient: f64,
    /// Seconds that the stage takes for its gradient norms and optimizer step at the end of a training step (the
    /// flush).
    pub flush: f64,
    /// Bytes of activations that the stage's forward pass on one micro-batch saves in device memory for the backward
    /// pass; `None` if memory was not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activation_bytes: Option<f64>,
    /// The size in bytes of the stage's output (activation) for one micro-batch, which it sends to the next stage;
    /// `None` for the last stage, or if the bytes were not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_bytes: Option<f64>,
}

/// The memory of a GPU, in bytes, when a training step was reported. With overlapping steps (`--flush ahead`), the next
/// step is already running by then, so its tensors count as well.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceMemory {
    /// The name that the GPU was opened with, such as `cuda:0`.
    pub device: String,
    /// The GPU memory that the training run uses between two steps, in bytes: parameters, optimizer state and the
    /// kernels' workspaces. With overlapping steps it includes the activations and gradients of the next step that
    /// exist by then. It is not the peak within a step.
    pub in_use: u64,
    /// The bytes that the training run has reserved on the GPU: those in use, and those that its memory pools keep for
    /// later tensors.
    pub reserved: u64,
}

/// One step's estimates of the squared norm of the true gradient and of the gradient's noise (the trace of its
/// covariance), from the gradients of the micro-batches (McCandlish et al., 2018,
/// [arXiv:1812.06162](https://arxiv.org/abs/1812.06162)). Their ratio is the noise scale: the batch size at which the
/// gradient has as much noise as signal. Batch sizes are in units of loss weight, most often tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Noise {
    /// Noise scale of the whole gradient, roughly estimated from this step alone: a loss weight, which is a number of
    /// tokens for a language model. It is `None` if the estimated squared norm of the gradient is not above 0.
    pub scale: Option<f64>,
    /// The noise scale of the gradient from running averages of its squared norm and variance over the steps of the
    /// run. It is a loss weight, which is a number of tokens for a language model. A resumed run starts these averages
    /// from scratch. It is `None` if the averaged squared norm is not above 0.
    pub smoothed_scale: Option<f64>,
    /// The estimates of the gradient's squared norm and noise over all parameters of the model, from this step alone.
    pub total: SignalAndNoise,
    /// The estimates and the noise scales of the gradient in each stage, in the order of the stages.
    pub stages: Vec<StageNoise>,
}

/// The noise of the gradient of one stage's parameters at one step: its noise scales, and this step's estimates of the
/// squared norm and the noise. A noise scale is the loss weight (for a language model, the number of tokens) of the
/// batch whose gradient has as much noise as signal.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StageNoise {
    /// The noise scale of the gradient of a stage's parameters, roughly estimated from this step alone: a loss weight,
    /// which is a number of tokens for a language model. It is `None` if the estimated squared norm of the gradient is
    /// not above 0, and in older logs.
    pub scale: Option<f64>,
    /// The noise scale of the gradient of a stage's parameters: a loss weight, which is a number of tokens for a
    /// language model. It is computed from running averages of the squared norm and the variance over the steps. It is
    /// `None` if the averaged squared norm is not above 0, and in older logs.
    pub smoothed_scale: Option<f64>,
    /// The estimates of the gradient's squared norm and noise over the parameters of a stage, from this step alone.
    #[serde(flatten)]
    pub estimate: SignalAndNoise,
}

/// One training step's estimates of the gradient's signal (`squared_norm`) and noise (`variance`). A batch's loss
/// weight is the divisor of its loss sum, usually its number of unmasked targets: for a language model, tokens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SignalAndNoise {
    /// The estimate of the squared norm of the gradient that a batch of infinite size would have; it can be negative.
    pub squared_norm: f64,
    /// The gradient's estimated noise: the variance of each of its elements, for a batch of loss weight 1 (such as one
    /// unmasked token), summed over all elements.
    pub variance: f64,
}

/// The health of one parameter in a step: statistics of its values, its gradient and its update, which show whether it
/// trains well. Norms are Euclidean, over all elements.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Health {
    /// Zero-based index of the stage that trains the parameter described by these statistics.
    pub stage: usize,
    /// The checkpoint name of the parameter that these statistics describe, such as `blocks.3.linear.weight`.
    pub parameter: String,
    /// Euclidean norm of the parameter's gradient in the step, before clipping.
    #[serde(deserialize_with = "or_nan")]
    pub gradient_norm: f64,
    /// Euclidean norm of the parameter's values after the step.
    #[serde(deserialize_with = "or_nan")]
    pub parameter_norm: f64,
    /// Update ratio of the parameter in the step: `norm(change of its values) / norm(its values after the step)`, with
    /// Euclidean norms.
    #[serde(deserialize_with = "or_nan")]
    pub update_ratio: f64,
    /// The optimizer's second moment of the gradient (its running mean square), averaged over the parameter's elements;
    /// `None` if the optimizer keeps none.
    pub second_moment: Option<f64>,
    /// Fraction of the elements of the parameter's gradient in the step that are exactly 0, from 0 to 1.
    #[serde(deserialize_with = "or_nan")]
    pub zeros: f64,
    /// Histogram of the absolute values of the parameter's gradient, with a bin for each power of two. An entry is
    /// `(lower end, number of elements)` of a bin. Zeros are not counted, and empty bins are left out.
    pub histogram: Vec<(f64, u64)>,
}

impl Health {
    /// Returns the update ratio of several parameters together, such as those of a layer. It is the norm of their
    /// update in the step, divided by the norm of their values after it. Returns NaN if there is no parameter.
    pub fn update_ratio_of(parameters: &[&Self]) -> f64 {
        let norm = |of: fn(&Self) -> f64| parameters.iter().map(|health| of(health).powi(2)).sum::<f64>().sqrt();
        norm(|health| health.update_ratio * health.parameter_norm) / norm(|health| health.parameter_norm)
    }

    /// Returns the norm of the update of several parameters together in a step, divided by the norm of their gradients
    /// before clipping. Returns NaN if there is no parameter, or all gradients are 0.
    pub fn update_to_gradient_of(parameters: &[&Self]) -> f64 {
        let norm = |of: fn(&Self) -> f64| parameters.iter().map(|health| of(health).powi(2)).sum::<f64>().sqrt();
        let gradient = norm(|health| health.gradient_norm);
        if gradient > 0.0 { norm(|health| health.update_ratio * health.parameter_norm) / gradient } else { f64::NAN }
    }

    /// Returns the mean over several parameters of the optimizer's second moments (running mean squares of the
    /// gradient); NaN if the optimizer keeps none.
    pub fn second_moment_of(parameters: &[&Self]) -> f64 {
        let moments: Vec<_> = parameters.iter().filter_map(|health| health.second_moment).collect();
        moments.iter().sum::<f64>() / moments.len() as f64
    }
}

/// Returns the name of the layer that a parameter belongs to: the first dot-separated segment of the parameter's name,
/// followed by the second segment if that is a number. The layer of `blocks.3.linear.weight` is `blocks.3`, and the
/// layer of `head.weight` is `head`.
pub fn layer_of(parameter: &str) -> &str {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let mut ends = parameter.match_indices('.').map(|(at, _)| at);
    let Some(first) = ends.next() else { return parameter };
    let second = ends.next().unwrap_or(parameter.len());
    &parameter[..if is_number(&parameter[first + 1..second]) { second } else { first }]
}
