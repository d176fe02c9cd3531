//! Lists this host's GPUs ([`Gpu`]) for each GPU API, such as CUDA.

#[cfg(feature = "gpu")]
use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::tensor::Device;

use crate::device::gpu_api::GpuApi;
use crate::device::gpu_search::GpuSearchError;
use crate::device::memory::DeviceMemory;

/// A GPU of this host: its model name and its memory. Returned by [`GpuApi::gpus`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Gpu {
    /// The name of the GPU's model, such as `NVIDIA H100`, or an error message that says why the GPU cannot be opened.
    pub model: Result<String, String>,
    /// Whether the GPU is software that runs on the CPU, such as Mesa's llvmpipe, instead of hardware.
    pub is_software: bool,
    /// The GPU's memory: its size, and the bytes that this program has reserved and uses. `None` if the GPU cannot be
    /// opened.
    pub memory: Option<DeviceMemory>,
}

impl Gpu {
    #[cfg(feature = "gpu")]
    fn open(device: &Device) -> Self {
        use crate::device::test_kernels::root_cause;
        use crate::threads::failure::Failure;

        let read = || {
            let model = device.identity().map(|identity| identity.name);
            (model.ok_or_else(|| "burn reports no model".to_owned()), DeviceMemory::of(device))
        };
        let cause = |panic| root_cause(&Failure::of_panic(panic).to_string());
        let (model, memory) = catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|panic| (Err(cause(panic)), None));
        Self { model, is_software: is_software(device), memory }
    }

    #[cfg(not(feature = "gpu"))]
    fn open(device: &Device) -> Self {
        let model = Err("this program was built without GPUs".to_owned());
        Self { model, is_software: is_software(device), memory: None }
    }
}

impl GpuApi {
    /// Searches for this host's GPUs that support this GPU API, and returns them as burn devices. A GPU's position in
    /// the list is the index in its name: 0 for `cuda:0`. The list is empty if the API's library is installed but
    /// reports no GPU.
    pub(crate) fn devices(self) -> Result<Vec<Device>, GpuSearchError> {
        match self {
            #[cfg(feature = "cuda")]
            Self::Cuda => {
                crate::device::cuda_driver::check()?;
                self.found(|| of_type(burn::tensor::DeviceType::Cuda))
            }
            #[cfg(feature = "rocm")]
            Self::Rocm => self.found(|| of_type(burn::tensor::DeviceType::Rocm)),
            #[cfg(all(feature = "wgpu", target_os = "linux"))]
            Self::Wgpu => self.found(webgpu_on_vulkan),
            #[cfg(all(feature = "wgpu", not(target_os = "linux")))]
            Self::Wgpu => self.found(|| of_type(burn::tensor::DeviceType::Wgpu)),
            #[cfg(feature = "vulkan")]
            Self::Vulkan => self.found(|| of_type(burn::tensor::DeviceType::Vulkan)),
            #[cfg(feature = "metal")]
            Self::Metal => self.found(|| of_type(burn::tensor::DeviceType::Metal)),
            #[allow(unreachable_patterns)] // with the features of all GPU APIs, the last arm is unreachable
            _ => Err(GpuSearchError::NotBuilt { api: self }),
        }
    }

    /// Searches for this host's GPUs that support this GPU API, opens them, and returns their models and memory. A
    /// GPU's position in the list is the index in its name: 0 for `cuda:0`.
    ///
    /// The list is empty if the API's library is installed but reports no GPU, for example because no driver is
    /// installed.
    ///
    /// # Errors
    /// Returns [`GpuSearchError`] in these cases:
    ///
    /// - This program was built without this GPU API.
    /// - The API's library is missing or broken.
    /// - The NVIDIA driver is too old.
    /// - The search for GPUs panics.
    pub fn gpus(self) -> Result<Vec<Gpu>, GpuSearchError> {
        Ok(self.devices()?.iter().map(Gpu::open).collect())
    }

    #[cfg(feature = "gpu")]
    fn found(self, enumerate: impl FnOnce() -> Vec<Device>) -> Result<Vec<Device>, GpuSearchError> {
        crate::device::kernel_cache::keep_kernels();
        crate::device::gpu_search::search(self, enumerate, crate::device::library::load)
    }
}

#[cfg(any(
    feature = "cuda",
    feature = "rocm",
    feature = "vulkan",
    feature = "metal",
    all(feature = "wgpu", not(target_os = "linux"))
))]
fn of_type(kind: burn::tensor::DeviceType) -> Vec<Device> {
    Device::enumerate(kind).into_vec()
}

/// Returns the GPUs that WebGPU finds through Vulkan, in the same order as burn's list of Vulkan devices.
///
/// burn's own list for WebGPU falls back to OpenGL devices if Vulkan finds no GPU. This would hide a missing or broken
/// Vulkan driver.
#[cfg(all(feature = "wgpu", target_os = "linux"))]
fn webgpu_on_vulkan() -> Vec<Device> {
    use burn::backend::{CubeDevice, WgpuBackend, WgpuDevice, WgpuDeviceKind};

    let kinds = [
        WgpuDeviceKind::DiscreteGpu(0),
        WgpuDeviceKind::IntegratedGpu(0),
        WgpuDeviceKind::VirtualGpu(0),
        WgpuDeviceKind::Cpu,
        WgpuDeviceKind::Other(0),
    ];
    let first = kinds.map(|kind| CubeDevice::Wgpu(WgpuDevice::new(kind).on(WgpuBackend::Vulkan)));
    // burn enumerates all devices of the same kind as a given one. All software devices have the same id, so they are
    // deduplicated.
    let found = first.into_iter().flat_map(|first| CubeDevice::enumerate(first.to_id()));
    let mut devices: Vec<_> = found.map(|id| Device::new(CubeDevice::from_id(id))).collect();
    devices.dedup();
    devices
}

/// Whether a GPU is software that runs on the CPU, such as Mesa's llvmpipe, instead of hardware.
#[cfg(feature = "wgpu")]
pub(super) fn is_software(device: &Device) -> bool {
    use burn::backend::{CubeDevice, DispatchDevice, WgpuDeviceKind};

    let device = device.clone().inner();
    matches!(device.as_dispatch(), DispatchDevice::Cube(CubeDevice::Wgpu(gpu)) if gpu.kind == WgpuDeviceKind::Cpu)
}

#[cfg(not(feature = "wgpu"))]
pub(super) fn is_software(_: &Device) -> bool {
    false
}

/// Returns the indices of the GPUs that `all` in a device name such as `wgpu:all` stands for: all hardware GPUs, or all
/// GPUs if none is hardware. `software` says for each GPU whether it is emulated in software on the CPU.
pub(super) fn indices_of_all(software: &[bool]) -> Vec<usize> {
    let hardware: Vec<_> = (0..software.len()).filter(|index| !software[*index]).collect();
    if hardware.is_empty() { (0..software.len()).collect() } else { hardware }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_gpus_leave_out_software_unless_there_is_nothing_else() {
        assert_eq!(indices_of_all(&[false, true, false]), [0, 2]);
        assert_eq!(indices_of_all(&[true, true]), [0, 1]);
        assert!(indices_of_all(&[]).is_empty());
    }
}
