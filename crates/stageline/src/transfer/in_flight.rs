//! Keeps sent tensors alive until NCCL has read them.
//!
//! NCCL reads a sent tensor later, on the communication stream, and burn 0.22 does not count that read as a use. If the
//! tensor were dropped right after the send, the compute stream's next kernel could get its memory, and overwrite it
//! before NCCL has read it.
//!
//! Therefore the tensors sent last are kept. Before the next send, the compute stream is made to wait for all transfers
//! submitted so far, and the kept tensors are dropped. By then those transfers are one micro-batch old, so the stream
//! seldom waits. The host thread does not wait for the device, only until burn's server of the device has enqueued the
//! stream's wait.

use burn::backend::Dispatch;
use burn::backend::distributed::DistributedOps;
use burn::tensor::kind::Basic;
use burn::tensor::{Device, Tensor};

use crate::device::location::between_cuda;
use crate::device::remote::moved;
use crate::transfer::hand_over::for_another_thread;

/// The tensors that a stage last sent to one neighbouring stage on another GPU. They are kept alive until the next send
/// to this neighbour, because NCCL reads sent tensors asynchronously.
pub(crate) struct Sent {
    from: Device,
    last: Vec<Box<dyn Send>>,
}

impl Sent {
    pub(crate) fn new(from: Device) -> Self {
        Self { from, last: Vec::new() }
    }

    /// Makes the sending GPU's compute stream wait for all transfers submitted so far, and then drops the sent tensors
    /// that were kept alive for them. Must be called before the next send.
    pub(crate) fn settle(&mut self) {
        if !self.last.is_empty() {
            let from = self.from.clone().inner();
            Dispatch::sync_collective(from.as_dispatch());
            // Dropped memory is free immediately, even for kernels that burn's server of the device has yet to launch.
            // An answer from the server shows that it has enqueued the stream's wait.
            let _ = from.memory_pool_usage();
            self.last.clear();
        }
    }

    /// Sends a tensor, which must not be in an autodiff graph, to a device, and returns the tensor there. Between two
    /// CUDA devices, the sent tensor is kept alive until the next call of [`settle`](Self::settle) (before the next
    /// send), because NCCL may read it later.
    pub(crate) fn send<const D: usize, K: Basic + 'static>(
        &mut self,
        tensor: Tensor<D, K>,
        to: &Device,
    ) -> Tensor<D, K> {
        if !between_cuda(&tensor.device(), to) {
            return moved(for_another_thread(tensor, to), to);
        }
        // The tensor has to be contiguous. Otherwise burn would send a contiguous copy, which would not be kept alive.
        let shape = tensor.shape();
        let flat = tensor.reshape([shape.num_elements()]);
        self.last.push(Box::new(flat.clone()));
        flat.to_device(to).reshape(shape)
    }
}
