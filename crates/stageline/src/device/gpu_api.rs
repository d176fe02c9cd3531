//! GPU APIs ([`GpuApi`]), such as CUDA and Vulkan, and the drivers and packages that they need.

use std::fmt;

/// A GPU API, such as CUDA or Vulkan, through which programs use this host's GPUs. One GPU often supports several APIs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GpuApi {
    /// CUDA, NVIDIA's API for its GPUs.
    Cuda,
    /// ROCm (HIP), AMD's API for its GPUs.
    Rocm,
    /// WebGPU, an API for GPUs of all vendors, with shaders in WGSL. It runs on the system's graphics API: Vulkan on
    /// Linux, Metal on macOS, and Vulkan or DirectX 12 on Windows. On Windows, it falls back to OpenGL if neither finds
    /// a GPU.
    ///
    /// If the program is also built with [`Vulkan`](GpuApi::Vulkan) or [`Metal`](GpuApi::Metal), WebGPU uses that API's
    /// shader language instead of WGSL, on the GPUs that it reaches through that API.
    Wgpu,
    /// Vulkan, an API for GPUs of all vendors, with shaders in SPIR-V.
    Vulkan,
    /// Metal, Apple's API for its GPUs, with shaders in Metal's own language.
    Metal,
}

impl GpuApi {
    /// All GPU APIs, in the order in which messages list them.
    pub const ALL: [Self; 5] = [Self::Cuda, Self::Rocm, Self::Wgpu, Self::Vulkan, Self::Metal];

    /// Returns this API's name in device names, such as `cuda` in `cuda:0`. The Cargo feature that enables the API has
    /// the same name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cuda => "cuda",
            Self::Rocm => "rocm",
            Self::Wgpu => "wgpu",
            Self::Vulkan => "vulkan",
            Self::Metal => "metal",
        }
    }

    /// Returns the GPU API with the given name, such as `cuda` or `vulkan`; `None` if there is no such API.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|api| api.name() == name)
    }

    /// Returns the packages that contain this API's library and driver, as a phrase for error messages.
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

    /// Returns the advice for a user whose GPU this API does not find: which drivers and libraries the API needs on
    /// this operating system, and how to check them.
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

    /// Returns the advice for a user whose GPU fails its test kernels: the compiler or driver that may be missing, or
    /// another API for the same GPU.
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
