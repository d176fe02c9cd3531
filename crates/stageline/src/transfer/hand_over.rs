//! Tensors that come to a device outside the plan's transfers: batches, and parameters that stages share.
//!
//! Between GPUs they go by the host, because what a plan does not order could deadlock NCCL (see `turns`).

use burn::tensor::kind::Basic;
use burn::tensor::{Bool, Device, Int, Tensor};

use crate::device::location::{between_gpus, one_gpu};
use crate::device::remote::{by_the_host, moved};
use crate::model::payload::{Payload, PayloadMapper};

/// Places a payload on a device, out of any graph.
pub(crate) fn place<P: Payload>(payload: P, device: &Device) -> P {
    payload.map(&mut Place(device))
}

/// Places a tensor on a device for another thread, out of any graph.
pub(crate) fn hand_tensor<const D: usize>(tensor: Tensor<D>, device: &Device) -> Tensor<D> {
    Place(device).float(for_another_thread(tensor.inner(), device))
}

/// A tensor that another thread goes on with on the same GPU, in memory of its own.
///
/// The other thread's stream waits for the one that has written it only if it has not waited since the memory was *allocated*
/// (cubecl 0.11), and fusion writes results into memory of operands. To flip something is a kernel by itself, which writes where
/// nothing was.
pub(crate) fn for_another_thread<const D: usize, K: Basic>(tensor: Tensor<D, K>, to: &Device) -> Tensor<D, K> {
    if one_gpu(&tensor.device(), to) { tensor.flip([0]).flip([0]) } else { tensor }
}

struct Place<'a>(&'a Device);

impl PayloadMapper for Place<'_> {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        self.place(tensor.inner())
    }
    fn int<const D: usize>(&mut self, tensor: Tensor<D, Int>) -> Tensor<D, Int> {
        self.place(tensor.inner())
    }
    fn bool<const D: usize>(&mut self, tensor: Tensor<D, Bool>) -> Tensor<D, Bool> {
        self.place(tensor.inner())
    }
}

impl Place<'_> {
    fn place<const D: usize, K: Basic>(&self, tensor: Tensor<D, K>) -> Tensor<D, K> {
        if between_gpus(&tensor.device(), self.0) { by_the_host(tensor, self.0) } else { moved(tensor, self.0) }
    }
}
