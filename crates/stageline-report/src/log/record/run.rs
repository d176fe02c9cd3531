//! The first line of a log: the description of a run, with its layers, the network links between its stages and the
//! estimated memory.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::unit::Unit;

/// Returns 1, serde's default number of replicas for logs that do not state it.
fn one() -> usize {
    1
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde passes references
fn is_one(number: &usize) -> bool {
    *number == 1
}

/// The first line of a run's log, which describes the run: its plan, layers, settings and machine. All later lines
/// refer to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// The version of the stageline library that wrote the log.
    pub stageline: String,
    /// The name of the schedule that generated the run's plan, such as `1f1b`.
    pub schedule: String,
    /// The plan that the workers of the run followed (the order of forward and backward passes of each worker), in
    /// PyTorch's CSV format.
    pub plan: String,
    /// The number of data-parallel replicas, each of which runs the plan on its own micro-batches. The log records the
    /// workers, stages and events of the first replica only.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub replicas: usize,
    /// The number of micro-batches that a channel between two stages can hold before its sender blocks.
    pub channel_capacity: usize,
    /// The layers of the run's model, in order, each with the stage that it belongs to.
    pub layers: Vec<Layer>,
    /// Whether the user has partitioned (cut) the model into stages by hand. If so, a training run cannot partition it
    /// differently, and `layers` has one entry for each of these stages. False in older logs.
    #[serde(default)]
    pub cut_by_hand: bool,
    /// The network links (latency and bandwidth) between consecutive stages, which the run measured before the first
    /// step. Entry i is the link from stage i to stage i + 1; `None` if both stages share a host's memory. The list is
    /// empty if no link was measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<Option<Link>>,
    /// The device memory of each worker as estimated before the first step; empty if there is no estimate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<EstimatedMemory>,
    /// Bytes of host memory taken by batches: those of running steps, prefetched ones and validation batches. They are
    /// not included in any worker's estimated `memory`. 0 in older logs.
    #[serde(default)]
    pub batch_bytes: u64,
    /// The unit of `tokens_per_micro_batch` and of every step's `tokens_per_s`; tokens in older logs.
    #[serde(default)]
    pub unit: Unit,
    /// The number of tokens in a micro-batch of one replica; the number of samples if the data has no tokens.
    pub tokens_per_micro_batch: f64,
    /// Facts about the hardware and software of the run, by name, such as the system and the number of cores.
    #[serde(default)]
    pub machine: BTreeMap<String, Value>,
    /// The settings that the run was started with, by the name of the setting.
    pub configuration: BTreeMap<String, Value>,
}

/// A network link: the speed of the connection between two workers that do not share a host's memory.
///
/// A transfer of n bytes arrives after latency + n / bandwidth seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Link {
    /// The latency of the network link: the time, in seconds, from the sending of an empty message until the receiver
    /// can use it. It is finite and at least 0.
    pub latency: f64,
    /// The bandwidth of the network link in each direction, in bytes per second; finite and at least 1. Transfers in
    /// the same direction do not overlap: each begins after the one before it.
    pub bandwidth: f64,
}

impl Link {
    /// Returns the time, in seconds, from the sending of a message of `bytes` bytes until the receiver can use the
    /// message.
    pub fn takes(self, bytes: f64) -> f64 {
        self.latency + bytes / self.bandwidth
    }
}

/// The device memory of a worker in bytes, as estimated before the first step. For a worker on the CPU it is host
/// memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EstimatedMemory {
    /// Estimated bytes of the parameters of one worker's stages.
    pub parameters: u64,
    /// Estimated bytes of optimizer state that one worker stores in device memory.
    pub optimizer: u64,
    /// Estimated peak bytes of optimizer state that one worker stores in host memory (`--optimizer-state host`). They
    /// are not part of `peak`, which is device memory.
    #[serde(default)]
    pub optimizer_on_host: u64,
    /// Estimated bytes of one worker's accumulated gradients (summed over the micro-batches of a step). They count
    /// twice if gradients are accumulated in several groups of micro-batches.
    pub gradients: u64,
    /// Estimated peak bytes of activations that one worker retains for its live micro-batches, whose backward pass has
    /// not yet run.
    pub activations: u64,
    /// Estimated peak bytes of this worker's tensors in flight (sent, and still needed by the receiver). A tensor
    /// counts for its receiver if sender and receiver have separate memories. Otherwise a gradient counts for its
    /// sender, and an activation counts in `activations`.
    #[serde(default)]
    pub transfers: u64,
    /// Estimated bytes that a worker retains so that the previous step can be rolled back, if steps overlap with
    /// `--flush ahead`; otherwise 0. They hold the parameters and optimizer state from before that step, and its
    /// gradient sums.
    #[serde(default)]
    pub kept: u64,
    /// Estimated bytes of device memory that a worker always uses besides the model's tensors, such as the
    /// matrix-product buffers of CPU threads.
    pub other: u64,
    /// The estimated peak of one worker's device memory during a training step, in bytes.
    pub peak: u64,
}

/// A layer of the model, as the log of a run describes it: its name, its stage, its relative cost and its size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Layer {
    /// Name of the layer, such as `blocks.3`, or `blocks.3.mlp` for a half of a block.
    pub name: String,
    /// Zero-based index of the stage that the layer belongs to.
    pub stage: usize,
    /// Relative cost of the layer's forward and backward pass, such as its FLOPs, in a unit that all layers of the log
    /// share. Predictions divide a stage's measured time among its layers in proportion to these costs.
    pub weight: f64,
    /// Number of elements in all parameters of the layer, including frozen ones.
    pub parameters: u64,
    /// Number of elements in the trainable parameters of the layer. `None` in older logs, whose parameters all count as
    /// trainable: see [`trained`](Self::trained).
    #[serde(default)]
    pub trained: Option<u64>,
}

impl Layer {
    /// Returns the number of elements in the layer's trainable parameters.
    pub fn trained(&self) -> u64 {
        self.trained.map_or(self.parameters, |trained| trained.min(self.parameters))
    }
}
