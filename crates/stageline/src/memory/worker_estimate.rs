//! The memory that one worker is predicted to need ([`WorkerEstimate`]).

use crate::model::replica::Replica;

/// The predicted memory need of one worker (a thread that runs one or more stages) in a training step, in bytes.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct WorkerEstimate {
    /// The data-parallel replica that the worker belongs to.
    pub replica: Replica,
    /// Zero-based indices, within the replica, of the stages that the worker runs, in ascending order.
    pub stages: Vec<usize>,
    /// The bytes that the worker has allocated between steps, in addition to its stages' parameters and optimizer
    /// states. On CPUs they are mostly buffers for matrix products, one for each thread. For a worker on the CPU, they
    /// include the copies of its parameters and optimizer states while a checkpoint is written.
    pub other: u64,
    /// The bytes of the parameters of the worker's stages. If the stages compute in a lower precision, the copies in
    /// this precision are included.
    pub parameters: u64,
    /// The bytes of the optimizer states that the worker's stages keep on its device.
    pub optimizer: u64,
    /// The peak bytes of the optimizer states that the worker's stages keep in host memory
    /// ([`OptimizerState::Host`](crate::OptimizerState)). Copies for a rollback and for a checkpoint are included. No
    /// other field includes these bytes. 0 for a worker on the CPU.
    pub optimizer_on_host: u64,
    /// The bytes of host memory for copies of the worker's parameters and optimizer states while a checkpoint is
    /// written. No other field includes them. The value is 0 in these cases:
    ///
    /// - The run writes no checkpoints.
    /// - The worker is not in replica 0, which alone writes checkpoints.
    /// - The worker is on the CPU, so that `other` includes its copies.
    pub checkpoint_on_host: u64,
    /// The bytes of the gradient sums of the worker's stages; twice as much if gradients are summed in several groups
    /// of micro-batches.
    pub gradients: u64,
    /// The peak bytes of activations on the worker, over all live micro-batches (between their forward and backward
    /// pass).
    pub activations: u64,
    /// The peak bytes of tensors in flight: sent by a stage, and not yet used by the receiver. Between workers with
    /// separate memories, they count for the receiver. In shared memory, gradients count for the sender, and
    /// activations are part of `activations`.
    pub transfers: u64,
    /// If steps overlap, the bytes that the worker keeps to roll back the previous step: its gradient sums, and the
    /// parameters and optimizer states from before it; otherwise 0. They count during the whole step, because the
    /// decision on a rollback may come late.
    pub kept: u64,
    /// The worker's peak memory in bytes during its forward and backward passes. It includes parameters, optimizer
    /// states, gradient sums, activations, tensors in flight and temporary memory.
    pub compute_peak: u64,
    /// The worker's peak memory in bytes during the flush (the optimizer steps at the end of a training step). It
    /// includes parameters, optimizer states, gradient sums, states kept for a rollback, and temporary memory.
    pub flush_peak: u64,
}

impl WorkerEstimate {
    /// Returns the bytes of host memory that a worker on a GPU or another device needs for optimizer states and
    /// checkpoint copies; 0 for a worker on the CPU.
    pub(crate) fn on_host(&self) -> u64 {
        self.optimizer_on_host + self.checkpoint_on_host
    }

    /// Returns the peak of the worker's memory over the whole training step, in bytes: the larger of the peaks before
    /// and during the flush (the optimizer steps).
    pub fn peak(&self) -> u64 {
        self.compute_peak.max(self.flush_peak)
    }
}
