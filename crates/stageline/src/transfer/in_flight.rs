//! What a GPU may not have sent yet.
//!
//! NCCL reads what is sent on the communication stream, later. burn 0.22 does not count that as a use: where the tensor is dropped,
//! its memory goes to the next kernel of the compute stream, which may overwrite it before it was read. So what was sent last is
//! kept; before the next is sent, the compute stream is made to wait for all transfers up to then, and lets it go. That
//! transfer is by then a micro-batch old, so there is seldom anything to wait for. The host waits until burn's servers of the
//! device have come to that, and not for the device.

use burn::backend::Dispatch;
use burn::backend::distributed::DistributedOps;
use burn::tensor::kind::Basic;
use burn::tensor::{Device, Tensor};

use crate::device::location::between_gpus;
use crate::device::remote::moved;
use crate::transfer::hand_over::for_another_thread;

/// The last that one end of a boundary sent.
pub(crate) struct Sent {
    from: Device,
    last: Vec<Box<dyn Send>>,
}

impl Sent {
    pub(crate) fn new(from: Device) -> Self {
        Self { from, last: Vec::new() }
    }

    /// Lets go of what was sent before.
    pub(crate) fn settle(&mut self) {
        if !self.last.is_empty() {
            let from = self.from.clone().inner();
            Dispatch::sync_collective(from.as_dispatch());
            // What is let go of is free at once, also for what burn's server of the device has yet to launch. Its answer shows that it
            // has come to the wait.
            let _ = from.memory_pool_usage();
            self.last.clear();
        }
    }

    /// Moves a tensor of no graph, and keeps what NCCL reads of it.
    pub(crate) fn send<const D: usize, K: Basic + 'static>(
        &mut self,
        tensor: Tensor<D, K>,
        to: &Device,
    ) -> Tensor<D, K> {
        if !between_gpus(&tensor.device(), to) {
            return moved(for_another_thread(tensor, to), to);
        }
        // Without gaps, or burn would send a copy that nobody keeps.
        let shape = tensor.shape();
        let flat = tensor.reshape([shape.num_elements()]);
        self.last.push(Box::new(flat.clone()));
        flat.to_device(to).reshape(shape)
    }
}
