//! Tells where a device is (this host's CPU, a GPU of this host, or another host), and whether two devices share
//! memory.

use burn::tensor::Device;
pub(crate) use stageline_nn::params::is_remote;

#[cfg(feature = "flex")]
pub(crate) fn is_host(device: &Device) -> bool {
    device.clone().inner() == Device::flex()
}

#[cfg(not(feature = "flex"))]
pub(crate) fn is_host(_: &Device) -> bool {
    false
}

/// Returns the CPU of this host as a device; `None` in a build without the feature `flex`.
#[cfg(feature = "flex")]
pub(crate) fn host() -> Option<Device> {
    Some(Device::flex())
}

#[cfg(not(feature = "flex"))]
pub(crate) fn host() -> Option<Device> {
    None
}

#[cfg(feature = "cuda")]
pub(crate) fn is_cuda(device: &Device) -> bool {
    use burn::backend::{CubeDevice, DispatchDevice};
    matches!(device.clone().inner().as_dispatch(), DispatchDevice::Cube(CubeDevice::Cuda(_)))
}

#[cfg(not(feature = "cuda"))]
pub(crate) fn is_cuda(_: &Device) -> bool {
    false
}

/// Whether a device is a GPU of this host.
pub(crate) fn is_gpu(device: &Device) -> bool {
    !is_host(device) && !is_remote(device)
}

/// Whether two devices share memory, so that tensors need not be copied between them. True for two equal devices, and
/// for any two CPU devices of this host.
pub(crate) fn share_memory(one: &Device, other: &Device) -> bool {
    one == other || (is_host(one) && is_host(other))
}

/// Whether two devices are different CUDA devices of this host. burn transfers tensors between them by NCCL if it is
/// installed.
pub(crate) fn between_cuda(from: &Device, to: &Device) -> bool {
    is_cuda(from) && is_cuda(to) && from.clone().inner() != to.clone().inner()
}

/// Whether two devices are different GPUs of this host that are not both CUDA devices. Tensors between them go through
/// host memory.
pub(crate) fn between_other_gpus(from: &Device, to: &Device) -> bool {
    is_gpu(from) && is_gpu(to) && from.clone().inner() != to.clone().inner() && !between_cuda(from, to)
}

/// Whether two devices are the same GPU of this host. If so, a tensor that one thread hands to another must be copied
/// first, because each thread issues its kernels on its own stream.
pub(crate) fn one_gpu(from: &Device, to: &Device) -> bool {
    is_gpu(from) && from.clone().inner() == to.clone().inner()
}

/// Returns, for each device, the index of its communication stream (a GPU's queue of transfers to other GPUs); `None`
/// unless it is a CUDA device of this host. Devices on the same GPU have the same index.
pub(crate) fn communication_streams(devices: &[Device]) -> Vec<Option<usize>> {
    let mut gpus: Vec<Device> = Vec::new();
    let mut stream = |device: &Device| {
        let gpu = device.clone().inner();
        gpus.iter().position(|known| *known == gpu).or_else(|| {
            gpus.push(gpu);
            Some(gpus.len() - 1)
        })
    };
    devices.iter().map(|device| if is_cuda(device) { stream(device) } else { None }).collect()
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use super::*;

    #[test]
    fn cores_have_no_communication_stream() {
        let autodiff = Device::flex().autodiff();
        assert!(!between_cuda(&autodiff, &Device::flex()) && share_memory(&autodiff, &Device::flex()));
        assert!(!is_remote(&autodiff) && !one_gpu(&autodiff, &autodiff));
        assert_eq!(communication_streams(&[Device::flex(), autodiff]), [None, None]);
    }
}
