//! Sends tensors to a device one after another ([`Sending`]), and limits the bytes in flight.

use burn::tensor::{Device, Tensor, TensorData};

/// Limit of bytes in flight (sent, but perhaps not yet received) to one device: 8 MiB. Above it, the sender waits until
/// the device has received everything sent.
const IN_FLIGHT: usize = 8 << 20;

/// Slice size in bytes: a larger tensor is sent to another host in several messages of this size. Slices are small
/// because both ends of a connection keep a buffer as large as the largest message.
const SLICE: usize = 1 << 16;

/// Sends tensors to one device. Counts the bytes in flight, which the device may not have received yet, and waits for
/// the device when there are more than 8 MiB.
pub(crate) struct Sending {
    device: Device,
    in_flight: usize,
}

impl Sending {
    pub(crate) fn to(device: Device) -> Self {
        Self { device, in_flight: 0 }
    }

    /// Moves a tensor to the device, and returns the moved tensor without an autodiff graph. If the device is on
    /// another host, a large tensor is sent in slices. The moved tensor requires a gradient if the given tensor does.
    pub(crate) fn send<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        let (is_trained, bytes) = (tensor.is_require_grad(), tensor.shape().num_elements() * tensor.dtype().size());
        let sent = if is_remote(&self.device) && bytes > SLICE {
            self.send_slices(tensor)
        } else {
            let sent = tensor.to_device(&self.device);
            self.count(bytes);
            sent
        };
        let sent = sent.detach();
        if is_trained { sent.require_grad() } else { sent }
    }

    fn send_slices<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        let (shape, dtype) = (tensor.shape(), tensor.dtype());
        let data = tensor.into_data();
        let mut received = Tensor::<1>::zeros([shape.num_elements()], (&self.device, dtype));
        for (index, slice) in data.as_bytes().chunks(SLICE).enumerate() {
            let (start, length) = (index * SLICE / dtype.size(), slice.len() / dtype.size());
            let values = TensorData::from_bytes_vec(slice.to_vec(), [length], dtype);
            let values = Tensor::from_data(values, (&self.device, dtype));
            received = received.slice_assign(start..start + length, values);
            self.count(slice.len());
        }
        received.reshape(shape)
    }

    fn count(&mut self, bytes: usize) {
        self.in_flight += bytes;
        if self.in_flight > IN_FLIGHT {
            self.arrive();
        }
    }

    /// Waits until the device has received all tensors that were sent to it, so that the host can free them. An error,
    /// such as an unreachable device, is ignored here, because the first forward pass on the device reports it.
    pub(crate) fn arrive(&mut self) {
        let _ = self.device.sync();
        self.in_flight = 0;
    }
}

/// Whether a device belongs to another host, whose server (`stageline serve`) makes it available. False in a build
/// without the feature `remote`.
#[cfg_attr(not(feature = "remote"), allow(unused_variables))]
pub fn is_remote(device: &Device) -> bool {
    #[cfg(feature = "remote")]
    return matches!(device.clone().inner().as_dispatch(), burn::backend::DispatchDevice::Remote(_));
    #[cfg(not(feature = "remote"))]
    false
}
