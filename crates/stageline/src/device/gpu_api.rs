//! The interfaces by which programs use GPUs ([`GpuApi`]), and the GPUs of this host that each of them finds.

use std::fmt;

use burn::tensor::Device;

/// An interface by which programs use the GPUs of this host. One GPU can be a device of several of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GpuApi {
    /// NVIDIA's CUDA.
    Cuda,
    /// AMD's ROCm (HIP).
    Rocm,
    /// WebGPU's shaders (WGSL), on whichever graphics interface the host has: Vulkan, Metal or DirectX 12.
    Wgpu,
    /// Vulkan, with shaders in SPIR-V.
    Vulkan,
    /// Apple's Metal, with its own shading language.
    Metal,
}

impl GpuApi {
    /// Every interface, in the order in which messages list them.
    pub const ALL: [Self; 5] = [Self::Cuda, Self::Rocm, Self::Wgpu, Self::Vulkan, Self::Metal];

    /// Returns the name of the interface in device names, such as `cuda` in `cuda:0`. It is also the name of the Cargo
    /// feature with which a program must be built to use the interface.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cuda => "cuda",
            Self::Rocm => "rocm",
            Self::Wgpu => "wgpu",
            Self::Vulkan => "vulkan",
            Self::Metal => "metal",
        }
    }

    /// Returns the interface with this name; `None` if there is none.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|api| api.name() == name)
    }

    /// Returns the devices of this host that the interface finds; `None` if this program was built without it.
    pub(crate) fn devices(self) -> Option<Vec<Device>> {
        match self {
            #[cfg(feature = "cuda")]
            Self::Cuda => Some(found(burn::tensor::DeviceType::Cuda)),
            #[cfg(feature = "rocm")]
            Self::Rocm => Some(found(burn::tensor::DeviceType::Rocm)),
            #[cfg(feature = "wgpu")]
            Self::Wgpu => Some(found(burn::tensor::DeviceType::Wgpu)),
            #[cfg(feature = "vulkan")]
            Self::Vulkan => Some(found(burn::tensor::DeviceType::Vulkan)),
            #[cfg(feature = "metal")]
            Self::Metal => Some(found(burn::tensor::DeviceType::Metal)),
            #[allow(unreachable_patterns)] // a build may have all of them
            _ => None,
        }
    }

    /// Returns the model names of the GPUs of this host that the interface finds, by their index in device names; a GPU
    /// that cannot be opened is `None`. The result is `None` if this program was built without the interface.
    pub fn models(self) -> Option<Vec<Option<String>>> {
        Some(self.devices()?.iter().map(model).collect())
    }

    /// Returns the advice for a user whose GPU was not found by this interface: the parts of the system that it needs.
    pub const fn needs(self) -> &'static str {
        match self {
            Self::Cuda => "check `nvidia-smi`, install the NVIDIA driver (libcuda)",
            Self::Rocm => "check `rocminfo`, install ROCm (libamdhip64) and the driver amdgpu",
            Self::Wgpu | Self::Vulkan => {
                "check `vulkaninfo --summary`, install the Vulkan loader (`libvulkan1`) and a driver such as \
                 `mesa-vulkan-drivers`"
            }
            Self::Metal => "Metal is a part of macOS 13 or later, on Apple's processors",
        }
    }

    /// Returns the advice for a user whose GPU was found, but fails its test kernels.
    pub(crate) const fn computes_with(self) -> &'static str {
        match self {
            Self::Cuda => {
                "kernels are compiled with libdevice, a file of the CUDA toolkit that is searched for in CUDA_PATH, \
                 /usr/local/cuda, /opt/cuda, /usr/lib/cuda and /usr; `nvidia-smi` shows whether device memory is free"
            }
            Self::Rocm => {
                "kernels are compiled by ROCm's compiler (libhiprtc); `rocm-smi` shows whether memory is free"
            }
            Self::Wgpu => "another interface to the same GPU may work, such as `vulkan` or `metal`",
            Self::Vulkan | Self::Metal => "update the driver, or use the same GPU as a device of `wgpu`",
        }
    }
}

impl fmt::Display for GpuApi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Opens a device and returns the name of its model; `None` if it cannot be opened, or is not a GPU.
fn model(device: &Device) -> Option<String> {
    #[cfg(feature = "gpu")]
    {
        let name = std::panic::AssertUnwindSafe(|| device.identity().map(|identity| identity.name));
        std::panic::catch_unwind(name).ok().flatten()
    }
    #[cfg(not(feature = "gpu"))]
    {
        let _ = device;
        None
    }
}

/// Returns the devices of one kind that burn finds; empty if its search panics, for example because a driver is broken.
#[cfg(feature = "gpu")]
fn found(kind: burn::tensor::DeviceType) -> Vec<Device> {
    let enumerate = std::panic::AssertUnwindSafe(|| Device::enumerate(kind).into_vec());
    std::panic::catch_unwind(enumerate).unwrap_or_default()
}
