//! The interfaces through which programs use GPUs ([`GpuApi`]), with the drivers and packages that they need.

use std::fmt;

/// An interface through which programs use the GPUs of this host. One GPU can often be used through several of these
/// interfaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GpuApi {
    /// CUDA, NVIDIA's interface to its GPUs.
    Cuda,
    /// ROCm (HIP), AMD's interface to its GPUs.
    Rocm,
    /// WebGPU, an interface to GPUs of any maker, with shaders in WGSL. It runs on the graphics interface of the
    /// system: Vulkan on Linux, Metal on macOS, and Vulkan or DirectX 12 on Windows. If neither of these two has a GPU,
    /// Windows uses OpenGL.
    ///
    /// If the program is also built with [`Vulkan`](GpuApi::Vulkan) or [`Metal`](GpuApi::Metal), WebGPU uses their
    /// shaders on the GPUs that it reaches through them.
    Wgpu,
    /// Vulkan, an interface to GPUs of any maker, with shaders in SPIR-V.
    Vulkan,
    /// Metal, Apple's interface to its GPUs, with shaders in Metal's own language.
    Metal,
}

impl GpuApi {
    /// The list of all interfaces to GPUs (CUDA, ROCm, WebGPU, Vulkan and Metal). Messages list the interfaces in this
    /// order.
    pub const ALL: [Self; 5] = [Self::Cuda, Self::Rocm, Self::Wgpu, Self::Vulkan, Self::Metal];

    /// Returns the name that an interface to GPUs, such as CUDA, has in device names: `cuda` in `cuda:0`. The Cargo
    /// feature that a program must be built with to use the interface has the same name.
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

    /// Returns the packages that contain the library and the driver of an interface to GPUs, as words of an error
    /// message.
    pub(super) const fn packages(self) -> &'static str {
        match self {
            Self::Cuda => {
                "the NVIDIA driver, version 570 or later (package `nvidia-driver` on Debian, `nvidia-driver-570` or later on Ubuntu)"
            }
            Self::Rocm => {
                "ROCm (packages `rocm-hip-runtime` and `rocm-hip-runtime-dev` of AMD's repository; set ROCM_PATH if ROCm is not in the \
                 linker's path) and the driver amdgpu"
            }
            Self::Wgpu | Self::Vulkan => {
                "the Vulkan loader (package `libvulkan1`) and a driver (such as package `mesa-vulkan-drivers`)"
            }
            Self::Metal => "macOS 13 or later",
        }
    }

    /// Returns the advice to a user whose GPU an interface did not find. It names the drivers and libraries that the
    /// interface needs on this operating system, and how to check them.
    pub const fn needs(self) -> &'static str {
        match self {
            Self::Cuda => {
                "check `nvidia-smi`, install the NVIDIA driver (libcuda), version 570 or later (package `nvidia-driver` on Debian, \
                 `nvidia-driver-570` or later on Ubuntu)"
            }
            Self::Rocm => {
                "check `rocminfo`, install ROCm (libamdhip64.so, libhiprtc.so; packages `rocm-hip-runtime` and `rocm-hip-runtime-dev` of \
                 AMD's repository) and the driver amdgpu, and set ROCM_PATH if ROCm is not in the linker's path"
            }
            Self::Wgpu if cfg!(target_os = "macos") => "WebGPU uses Metal here, which is a part of macOS 13 or later",
            Self::Wgpu if cfg!(windows) => {
                "install the driver of the GPU's maker, which contains Vulkan and DirectX 12; `dxdiag` shows the GPU"
            }
            Self::Vulkan if cfg!(windows) => {
                "install the driver of the GPU's maker, which contains Vulkan, and check `vulkaninfo --summary`"
            }
            Self::Vulkan if cfg!(target_os = "macos") => {
                "install the Vulkan SDK, with MoltenVK, or use the same GPU as a device of `metal`"
            }
            Self::Wgpu | Self::Vulkan => {
                "check `vulkaninfo --summary` and the variables VK_DRIVER_FILES and VK_ICD_FILENAMES, install the Vulkan loader \
                 (`libvulkan1`) and a driver such as `mesa-vulkan-drivers`"
            }
            Self::Metal => "Metal is a part of macOS 13 or later, on Apple's processors",
        }
    }

    /// Returns the advice for a GPU that fails a test computation. It names the compiler or driver that may be missing,
    /// or another interface to the same GPU.
    pub(crate) const fn computes_with(self) -> &'static str {
        match self {
            Self::Cuda => {
                "kernels are compiled with libdevice, a file of the CUDA toolkit that is searched for in CUDA_PATH if it is set, \
                 otherwise in /usr/local/cuda, /opt/cuda, /usr/lib/cuda and /usr: install `nvidia-cuda-toolkit` (Debian, Ubuntu), \
                 `cuda-nvvm-12-9` (NVIDIA's repository), or pip's `nvidia-cuda-nvcc-cu12` with CUDA_PATH set to its folder \
                 nvidia/cuda_nvcc; `nvidia-smi` shows whether device memory is free"
            }
            Self::Rocm => {
                "kernels are compiled by ROCm's compiler libhiprtc: install `rocm-hip-runtime` and `rocm-hip-runtime-dev`; `rocm-smi` \
                 shows whether memory is free"
            }
            Self::Wgpu if cfg!(target_os = "linux") => {
                "update the driver (such as package `mesa-vulkan-drivers`), or build with `--features vulkan`, whose shaders are in \
                 SPIR-V instead of WGSL; in a program with that feature, `wgpu` uses SPIR-V, too"
            }
            Self::Wgpu => {
                "update the operating system and the GPU's driver, or build with another interface, such as `--features vulkan` or \
                 `--features metal`"
            }
            Self::Vulkan if cfg!(target_os = "linux") => {
                "update the driver (such as package `mesa-vulkan-drivers`), or build with `--features wgpu` and without `vulkan`: only \
                 then `wgpu` has shaders in WGSL instead of SPIR-V"
            }
            Self::Vulkan => {
                "update the GPU's driver, or build with `--features wgpu` and without `vulkan`: only then `wgpu` has shaders in WGSL \
                 instead of SPIR-V"
            }
            Self::Metal => {
                "update macOS, or build with `--features wgpu` and without `metal`: only then `wgpu` has shaders in WGSL instead of \
                 Metal's language"
            }
        }
    }
}

impl fmt::Display for GpuApi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
