//! Tensors that come to a device outside the plan's transfers: batches, and parameters that stages share.
//!
//! Between GPUs they go by the host, because what a plan does not order could deadlock NCCL (see `turns`).

use burn::tensor::kind::Basic;
use burn::tensor::{Bool, Device, Int, Tensor};

use crate::location::between_gpus;
use crate::payload::{Payload, PayloadMapper};
use crate::remote::{by_the_host, moved};

/// Places a payload on a device, out of any graph.
pub(crate) fn place<P: Payload>(payload: P, device: &Device) -> P {
    payload.map(&mut Place(device))
}

/// Places a tensor on a device, out of any graph.
pub(crate) fn place_tensor<const D: usize>(tensor: Tensor<D>, device: &Device) -> Tensor<D> {
    Place(device).float(tensor)
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
