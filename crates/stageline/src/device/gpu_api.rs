//! The interfaces by which programs use GPUs ([`GpuApi`]), and the GPUs of this host that each of them finds.

use std::fmt;

use burn::tensor::Device;

/// An interface by which programs use the GPUs of this host. One GPU can be a device of several of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GpuApi {
    /// CUDA, NVIDIA's interface to its GPUs.
    Cuda,
    /// ROCm (HIP), AMD's interface to its GPUs.
    Rocm,
    /// WebGPU, an interface to GPUs of any maker, with shaders in WGSL. WebGPU runs on the host's graphics interface:
    /// Vulkan, Metal or DirectX 12.
    Wgpu,
    /// Vulkan, an interface to GPUs of any maker, with shaders in SPIR-V.
    Vulkan,
    /// Metal, Apple's interface to its GPUs, with shaders in Metal's own language.
    Metal,
}

impl GpuApi {
    /// The list of all interfaces to GPUs (CUDA, ROCm, WebGPU, Vulkan and Metal), in the order in which messages list
    /// them.
    pub const ALL: [Self; 5] = [Self::Cuda, Self::Rocm, Self::Wgpu, Self::Vulkan, Self::Metal];

    /// Returns the name that this interface to GPUs has in device names, such as `cuda` in `cuda:0`. The Cargo feature
    /// with which a program must be built to use the interface has the same name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cuda => "cuda",
            Self::Rocm => "rocm",
            Self::Wgpu => "wgpu",
            Self::Vulkan => "vulkan",
            Self::Metal => "metal",
        }
    }

    /// Returns the interface to GPUs with the given name, such as `cuda` or `vulkan`; `None` if no interface has this
    /// name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|api| api.name() == name)
    }

    /// Returns the GPUs of this host that the interface (such as CUDA) finds, as burn's devices; `None` if this program
    /// was built without the interface.
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

    /// Returns the model names of the GPUs of this host that the interface (such as CUDA) finds, in the order of their
    /// indices in device names; the entry of a GPU that cannot be opened is `None`. The whole result is `None` if this
    /// program was built without the interface.
    pub fn models(self) -> Option<Vec<Option<String>>> {
        Some(self.devices()?.iter().map(model).collect())
    }

    /// Returns the advice in the error message for a GPU that this interface (such as CUDA) did not find: the drivers
    /// and libraries that the interface needs, and how to check them.
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

    /// Returns the advice in the error message for a GPU that was found, but cannot run a test computation: the
    /// compiler or driver that may be missing, or another interface to the same GPU.
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

/// Opens a device and returns the model name of its GPU; `None` if the device cannot be opened, or is not a GPU.
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

/// Returns the devices that burn finds on this host for one interface to GPUs, such as CUDA. The list is empty if
/// burn's search panics, for example because a driver is broken.
#[cfg(feature = "gpu")]
fn found(kind: burn::tensor::DeviceType) -> Vec<Device> {
    let enumerate = std::panic::AssertUnwindSafe(|| Device::enumerate(kind).into_vec());
    std::panic::catch_unwind(enumerate).unwrap_or_default()
}
