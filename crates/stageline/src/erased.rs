//! A float tensor whose rank is not part of its type.

use burn::tensor::kind::BridgeTensor;
use burn::tensor::{Device, Tensor};

use crate::finite::tensor_is_finite;
use crate::payload::bytes_of;
use crate::remote::moved;
use crate::sent::Sent;

/// A float tensor, its rank erased.
#[derive(Clone)]
pub(crate) struct Erased {
    tensor: BridgeTensor,
    pub(crate) bytes: u64,
    to_device: fn(BridgeTensor, &Device) -> BridgeTensor,
    send: fn(BridgeTensor, &Device, &mut Sent) -> BridgeTensor,
    is_finite: fn(BridgeTensor) -> bool,
}

impl Erased {
    pub(crate) fn new<const D: usize>(tensor: Tensor<D>) -> Self {
        let to_device = |tensor, device: &Device| moved(Tensor::<D>::from_bridge(tensor), device).into_bridge();
        let send = |tensor, device: &Device, sent: &mut Sent| {
            sent.send(Tensor::<D>::from_bridge(tensor), device).into_bridge()
        };
        let is_finite = |tensor| tensor_is_finite(Tensor::<D>::from_bridge(tensor));
        let bytes = bytes_of(&tensor);
        Self { tensor: tensor.into_bridge(), bytes, to_device, send, is_finite }
    }

    /// The tensor, which must be of the rank that it was made from.
    pub(crate) fn tensor<const D: usize>(self) -> Tensor<D> {
        Tensor::from_bridge(self.tensor)
    }

    pub(crate) fn moved_to(self, device: &Device) -> Self {
        Self { tensor: (self.to_device)(self.tensor, device), ..self }
    }

    pub(crate) fn sent_to(self, device: &Device, sent: &mut Sent) -> Self {
        Self { tensor: (self.send)(self.tensor, device, sent), ..self }
    }

    pub(crate) fn is_finite(&self) -> bool {
        (self.is_finite)(self.tensor.clone())
    }
}
