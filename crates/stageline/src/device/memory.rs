//! A GPU's memory ([`DeviceMemory`]): its size, the bytes that this program has reserved, and the bytes that it uses.

use burn::tensor::Device;

/// A GPU's memory in bytes: its size, the part that this program has reserved, and the part that this program uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceMemory {
    /// Size of the GPU's memory in bytes, including memory that other programs use. `None` if the GPU API reports no
    /// size, as with WebGPU.
    pub total: Option<u64>,
    /// Bytes that this program has reserved on the GPU: those that it uses, and those that its allocator keeps for
    /// later tensors.
    pub reserved: u64,
    /// Bytes on the GPU that this program's tensors and kernels use.
    pub in_use: u64,
}

impl DeviceMemory {
    /// Returns a GPU's memory size, and how many bytes this program has reserved and uses there. Opens the GPU if
    /// necessary. Returns `None` for a CPU, and for a device of another host, because its memory is not known here.
    ///
    /// # Panics
    /// Panics if the GPU cannot be opened.
    pub fn of(device: &Device) -> Option<Self> {
        let pool = device.memory_pool_usage()?;
        Some(Self { total: total(device), reserved: pool.bytes_reserved, in_use: pool.bytes_in_use })
    }
}

#[cfg(feature = "gpu")]
fn total(device: &Device) -> Option<u64> {
    use burn::backend::DispatchDevice;

    let device = device.clone().inner();
    match device.as_dispatch() {
        DispatchDevice::Cube(gpu) => gpu.client().properties().memory.max_memory(),
        _ => None,
    }
}

#[cfg(not(feature = "gpu"))]
fn total(_: &Device) -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(feature = "flex")]
    fn the_memory_of_a_cpu_is_not_that_of_a_gpu() {
        assert_eq!(DeviceMemory::of(&Device::flex().autodiff()), None);
    }

    #[test]
    #[cfg(feature = "wgpu")]
    fn tensors_are_in_use_and_their_memory_is_reserved() {
        let device = crate::DeviceName::parse_list("wgpu:0").unwrap().remove(0).open().unwrap();
        let tensor = burn::tensor::Tensor::<1>::ones([1 << 20], &device) + 1.0;
        device.sync().unwrap();
        let memory = DeviceMemory::of(&device).unwrap();
        assert!(memory.in_use >= 4 << 20 && memory.reserved >= memory.in_use, "{memory:?}");
        assert!(memory.total.is_none_or(|total| total > memory.in_use), "{memory:?}");
        drop(tensor);
    }
}
