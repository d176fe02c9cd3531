//! Keeps sent tensors alive until NCCL has read them.
//!
//! NCCL reads a sent tensor later, on the communication stream, and burn 0.22 does not count that read as a use. If the
//! tensor were dropped after the send, the next kernel of the compute stream could get its memory. The kernel could
//! overwrite the tensor before NCCL has read it.
//!
//! Therefore the tensors sent last are kept. Before the next send, the compute stream is made to wait for all transfers
//! submitted so far, and the kept tensors are dropped. By then those transfers are one micro-batch old, so the stream
//! seldom waits. The host waits only until burn's server of the device has queued that wait, not for the device.

use burn::backend::Dispatch;
use burn::backend::distributed::DistributedOps;
use burn::tensor::kind::Basic;
use burn::tensor::{Device, Tensor};

use crate::device::location::between_cuda;
use crate::device::remote::moved;
use crate::transfer::hand_over::for_another_thread;

/// The tensors that a stage sent last to one neighbouring stage on another GPU. They are kept in memory until the next
/// send to this neighbour, because NCCL reads sent tensors later.
pub(crate) struct Sent {
    from: Device,
    last: Vec<Box<dyn Send>>,
}

impl Sent {
    pub(crate) fn new(from: Device) -> Self {
        Self { from, last: Vec::new() }
    }

    /// Makes the sending GPU's compute stream wait for all transfers submitted so far. Then drops the sent tensors that
    /// were kept in memory for these transfers.
    pub(crate) fn settle(&mut self) {
        if !self.last.is_empty() {
            let from = self.from.clone().inner();
            Dispatch::sync_collective(from.as_dispatch());
            // Dropped memory is free at once, even for kernels that burn's server of the device has yet to launch. An
            // answer from the server shows that it has reached the wait.
            let _ = from.memory_pool_usage();
            self.last.clear();
        }
    }

    /// Sends a tensor that is in no autodiff graph to a device, and returns the tensor there. Between two GPUs, the
    /// sent tensor is kept in memory until the next [`settle`](Self::settle), because NCCL may read it later.
    pub(crate) fn send<const D: usize, K: Basic + 'static>(
        &mut self,
        tensor: Tensor<D, K>,
        to: &Device,
    ) -> Tensor<D, K> {
        if !between_cuda(&tensor.device(), to) {
            return moved(for_another_thread(tensor, to), to);
        }
        // The tensor has to be contiguous: otherwise burn sends a copy of its own, which nobody keeps alive.
        let shape = tensor.shape();
        let flat = tensor.reshape([shape.num_elements()]);
        self.last.push(Box::new(flat.clone()));
        flat.to_device(to).reshape(shape)
    }
}
