//! The memory that one worker is predicted to need ([`WorkerEstimate`]).

use crate::model::replica::Replica;

/// The predicted memory need of one worker (a thread that runs one or more stages) in a training step, in bytes.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct WorkerEstimate {
    /// The data-parallel replica that the worker belongs to.
    pub replica: Replica,
    /// The indices of the stages that the worker runs, in ascending order, counted from 0 within its replica.
    pub stages: Vec<usize>,
    /// The bytes that the worker has in use between steps, besides the parameters and optimizer states of its stages.
    /// On CPUs they are mostly buffers for matrix products, one for each thread. For a worker on the CPU, they include
    /// the copies of its parameters and optimizer states while a checkpoint is written.
    pub other: u64,
    /// The bytes of the parameters of the worker's stages. If the stages compute in a lower precision, the copies in
    /// this precision are included.
    pub parameters: u64,
    /// The bytes of the optimizer states that the worker's stages keep on its device.
    pub optimizer: u64,
    /// The peak bytes of the optimizer states that the worker's stages keep in host memory
    /// ([`OptimizerState::Host`](crate::OptimizerState)). Copies for a rollback and for a checkpoint are included. The
    /// worker's other figures do not include these bytes. The value is 0 for a worker on the CPU.
    pub optimizer_on_host: u64,
    /// The bytes of host memory for the copies of the worker's parameters and optimizer states while a checkpoint is
    /// written. The worker's other figures do not include these bytes. The value is 0 if the training writes no
    /// checkpoints, for a worker on the CPU, whose copies count in `other`, and in replicas after the first, which write
    /// none.
    pub checkpoint_on_host: u64,
    /// The bytes of the gradient sums of the worker's stages. They are doubled if the gradients are summed in several
    /// groups of micro-batches.
    pub gradients: u64,
    /// The peak bytes of the activations of all micro-batches that are live on the worker (between forward and backward
    /// pass).
    pub activations: u64,
    /// The peak bytes of tensors in flight: sent, and still needed by the receiver. They count for the receiver if the
    /// two workers have separate memories. Otherwise gradients count for the sender, and activations count in
    /// `activations`.
    pub transfers: u64,
    /// The bytes of the state that the worker keeps for a rollback of the previous step, if steps overlap; otherwise 0.
    /// The state consists of the parameters and optimizer states before that step, and of its gradient sums. These
    /// bytes count during the whole step, because the decision on the rollback may come late.
    pub kept: u64,
    /// The worker's peak memory in bytes during its forward and backward passes, before the flush (the optimizer
    /// steps). It includes parameters, optimizer states, gradient sums, activations, tensors in flight and working
    /// memory.
    pub compute_peak: u64,
    /// The worker's peak memory in bytes during the flush, when its stages' optimizers step. It includes parameters,
    /// optimizer states, gradient sums, states kept for a rollback, and working memory.
    pub flush_peak: u64,
}

impl WorkerEstimate {
    /// Returns the bytes of host memory that a worker on another device needs; 0 for a worker on the CPU.
    pub(crate) fn on_host(&self) -> u64 {
        self.optimizer_on_host + self.checkpoint_on_host
    }

    /// Returns the peak of the worker's memory over the whole training step, in bytes: the larger of the peaks before
    /// and during the flush (the optimizer steps).
    pub fn peak(&self) -> u64 {
        self.compute_peak.max(self.flush_peak)
    }
}
