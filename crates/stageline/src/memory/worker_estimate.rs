//! The memory that one worker is predicted to need ([`WorkerEstimate`]).

use crate::model::replica::Replica;

/// The predicted memory that one worker (a thread that runs one or more stages) needs in a training step, in bytes on
/// its device.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct WorkerEstimate {
    /// The data-parallel replica to which the worker belongs.
    pub replica: Replica,
    /// The indices of the stages that the worker runs, counted from 0 within its replica.
    pub stages: Vec<usize>,
    /// The bytes that the worker has in use between steps besides the parameters and optimizer states of its stages.
    /// The copies of these for a checkpoint are included, if the estimate counts them. On CPUs the rest is mostly the
    /// buffers in which each thread that computes tensor operations on the CPU packs the operands of matrix products.
    /// Each buffer is as large as the processor's L2 cache, whatever the model and the batch.
    pub other: u64,
    /// The bytes of the parameters of the worker's stages, with their copies in a lower precision, if there are any.
    pub parameters: u64,
    /// The bytes of the optimizer states that the worker's stages keep on its device.
    pub optimizer: u64,
    /// The peak, in bytes, of the optimizer states that the worker's stages keep in this host's memory because of
    /// [`OptimizerState::Host`](crate::OptimizerState), with their copies for a rollback and for a checkpoint. The
    /// worker's other peaks do not include this one. It is 0 for a worker on the CPU.
    pub optimizer_on_host: u64,
    /// The bytes of the gradient sums of the worker's stages; doubled when the gradients of a batch are summed in
    /// several groups of micro-batches.
    pub gradients: u64,
    /// The peak, in bytes, of the activations of all micro-batches that are live on the worker (between forward and
    /// backward) at one time.
    pub activations: u64,
    /// The peak, in bytes, of the tensors in flight that count for this worker: tensors that were sent and that their
    /// receiver still needs. A tensor counts for the receiver, or for the sender if both workers share a memory (an
    /// activation then counts in `activations`).
    pub transfers: u64,
    /// With overlapping steps, the bytes of the state that the worker keeps until the verdict on the previous step
    /// (whether its optimizer steps are kept or rolled back): the parameters and optimizer states before that step, and
    /// the gradient sums of that step. The verdict may arrive as late as the worker's next flush, so these bytes count
    /// during the whole step. The value is 0 if steps do not overlap.
    pub kept: u64,
    /// The worker's peak memory in bytes during its forwards and backwards, before the flush: parameters, optimizer
    /// states, gradient sums, activations, tensors in flight and working memory together.
    pub compute_peak: u64,
    /// The worker's peak memory in bytes during the flush, when its stages' optimizers step: parameters, optimizer
    /// states, gradient sums, states kept for a rollback and working memory together.
    pub flush_peak: u64,
}

impl WorkerEstimate {
    /// Returns the peak of the worker's memory over the whole training step, in bytes: the larger of the peaks before
    /// and during the flush.
    pub fn peak(&self) -> u64 {
        self.compute_peak.max(self.flush_peak)
    }
}
