//! The interfaces by which programs use GPUs ([`GpuApi`]), and the GPUs of this host that each of them finds.

use std::fmt;
#[cfg(any(feature = "gpu", test))]
use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::tensor::Device;

#[cfg(any(feature = "gpu", test))]
use crate::device::library::Unloadable;
use crate::device::memory::DeviceMemory;
#[cfg(any(feature = "gpu", test))]
use crate::threads::failure::Failure;

/// An interface by which programs use the GPUs of this host. One GPU can often be used through several of these
/// interfaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GpuApi {
    /// CUDA, the interface by which programs use NVIDIA's GPUs.
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

    /// Returns the name that an interface to GPUs, such as CUDA, has in device names: `cuda` in `cuda:0`. The Cargo
    /// feature with which a program must be built to use the interface has the same name.
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

    /// Searches for the GPUs of this host that can be used through this interface, such as CUDA, and returns them as
    /// burn devices. The position of a GPU in the list is the index in its name: 0 for `cuda:0`. The list is empty if
    /// the interface's library is installed, but reports no GPU.
    pub(crate) fn devices(self) -> Result<Vec<Device>, GpuSearchError> {
        match self {
            #[cfg(feature = "cuda")]
            Self::Cuda => self.found(burn::tensor::DeviceType::Cuda),
            #[cfg(feature = "rocm")]
            Self::Rocm => self.found(burn::tensor::DeviceType::Rocm),
            #[cfg(feature = "wgpu")]
            Self::Wgpu => self.found(burn::tensor::DeviceType::Wgpu),
            #[cfg(feature = "vulkan")]
            Self::Vulkan => self.found(burn::tensor::DeviceType::Vulkan),
            #[cfg(feature = "metal")]
            Self::Metal => self.found(burn::tensor::DeviceType::Metal),
            #[allow(unreachable_patterns)] // a build may have all of them
            _ => Err(GpuSearchError::NotBuilt { api: self }),
        }
    }

    /// Searches for the GPUs of this host that can be used through this interface, such as CUDA, opens them, and
    /// returns their models and memory. The position of a GPU in the list is the index in its name: 0 for `cuda:0`.
    ///
    /// The list is empty if the interface's library is installed, but reports no GPU, for example because no driver is
    /// installed.
    ///
    /// # Errors
    /// Returns [`GpuSearchError`] if this program was built without the interface, if the interface's library is
    /// missing or broken, or if the search fails.
    pub fn gpus(self) -> Result<Vec<Gpu>, GpuSearchError> {
        Ok(self.devices()?.iter().map(Gpu::open).collect())
    }

    #[cfg(feature = "gpu")]
    fn found(self, kind: burn::tensor::DeviceType) -> Result<Vec<Device>, GpuSearchError> {
        crate::device::kernel_cache::keep_kernels();
        search(self, || Device::enumerate(kind).into_vec(), crate::device::library::load)
    }

    /// Returns the file name of the library that must be installed for an interface to GPUs, such as CUDA, to find any
    /// GPU; `None` if the interface is a part of the operating system, or if its library has several names.
    #[cfg(any(feature = "gpu", test))]
    const fn library(self) -> Option<&'static str> {
        match self {
            Self::Cuda if cfg!(target_os = "linux") => Some("libcuda.so.1"),
            Self::Wgpu | Self::Vulkan if cfg!(target_os = "linux") => Some("libvulkan.so.1"),
            _ => None,
        }
    }

    /// Returns the packages that contain the library and the driver of an interface to GPUs, such as CUDA, as words of
    /// an error message.
    const fn packages(self) -> &'static str {
        match self {
            Self::Cuda => {
                "the NVIDIA driver, version 570 or later (package `nvidia-driver` on Debian, `nvidia-driver-570` or later on Ubuntu)"
            }
            Self::Rocm => {
                "ROCm (packages `rocm-hip-runtime` and `rocm-hip-runtime-dev` of AMD's repository) and the driver amdgpu"
            }
            Self::Wgpu | Self::Vulkan => {
                "the Vulkan loader (package `libvulkan1`) and a driver (such as package `mesa-vulkan-drivers`)"
            }
            Self::Metal => "macOS 13 or later",
        }
    }

    /// Returns the advice in the error message for a GPU that an interface, such as CUDA, did not find: the drivers and
    /// libraries that the interface needs, and how to check them.
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
            Self::Wgpu | Self::Vulkan => {
                "check `vulkaninfo --summary` and the variables VK_DRIVER_FILES and VK_ICD_FILENAMES, install the Vulkan loader \
                 (`libvulkan1`) and a driver such as `mesa-vulkan-drivers`"
            }
            Self::Metal => "Metal is a part of macOS 13 or later, on Apple's processors",
        }
    }

    /// Returns the advice in the error message for a GPU that was found, but cannot run a test computation: the
    /// compiler or driver that may be missing, with its package, or another interface to the same GPU.
    pub(crate) const fn computes_with(self) -> &'static str {
        match self {
            Self::Cuda => {
                "kernels are compiled with libdevice, a file of the CUDA toolkit that is searched for in CUDA_PATH, \
                 /usr/local/cuda, /opt/cuda, /usr/lib/cuda and /usr: install `nvidia-cuda-toolkit` (Debian, Ubuntu), \
                 `cuda-nvvm-12-9` (NVIDIA's repository), or pip's `nvidia-cuda-nvcc-cu12` with CUDA_PATH set to its folder \
                 nvidia/cuda_nvcc; `nvidia-smi` shows whether device memory is free"
            }
            Self::Rocm => {
                "kernels are compiled by ROCm's compiler libhiprtc: install `rocm-hip-runtime` and `rocm-hip-runtime-dev`; `rocm-smi` \
                 shows whether memory is free"
            }
            Self::Wgpu => {
                "update the driver (such as `mesa-vulkan-drivers`); another interface to the same GPU may work, such as `vulkan` or \
                 `metal`"
            }
            Self::Vulkan | Self::Metal => "update the driver, or use the same GPU as a device of `wgpu`",
        }
    }
}

impl fmt::Display for GpuApi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A GPU of this host: its model and its memory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Gpu {
    /// The name of a GPU's model; `None` if the GPU was found, but cannot be opened.
    pub model: Option<String>,
    /// The size of a GPU's memory and the bytes that this program has reserved and uses there; `None` if the GPU cannot
    /// be opened.
    pub memory: Option<DeviceMemory>,
}

impl Gpu {
    /// Opens a GPU and reads its model and its memory. Both are `None` if opening the GPU panics.
    #[cfg(feature = "gpu")]
    fn open(device: &Device) -> Self {
        let read = || (device.identity().map(|identity| identity.name), DeviceMemory::of(device));
        let (model, memory) = catch_unwind(AssertUnwindSafe(read)).unwrap_or_default();
        Self { model, memory }
    }

    #[cfg(not(feature = "gpu"))]
    fn open(_: &Device) -> Self {
        Self { model: None, memory: None }
    }
}

/// The error of a search for the GPUs of this host that can be used through an interface, such as CUDA.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GpuSearchError {
    /// This program was built without the interface to GPUs, such as CUDA, that was asked for.
    #[error("this program was built without `{api}`; build it with `--features {api}`")]
    NotBuilt {
        /// The interface to GPUs, such as CUDA, without which this program was built.
        api: GpuApi,
    },
    /// The library of an interface to GPUs, such as CUDA, is not installed, or not where the dynamic linker looks for
    /// it.
    #[error("the library {library} is not installed; install {packages}", packages = api.packages())]
    MissingLibrary {
        /// The interface to GPUs, such as CUDA, whose library is missing.
        api: GpuApi,
        /// The file name of the missing library of an interface to GPUs, such as CUDA.
        library: &'static str,
    },
    /// The library of an interface to GPUs, such as CUDA, is installed, but cannot be loaded.
    #[error(
        "the library {library} is broken ({cause}); install {packages} again, and check that LD_LIBRARY_PATH names no damaged copy",
        packages = api.packages()
    )]
    BrokenLibrary {
        /// The interface to GPUs, such as CUDA, whose library is installed but cannot be loaded.
        api: GpuApi,
        /// The file name of the library of an interface to GPUs, such as CUDA, that is installed but cannot be loaded.
        library: &'static str,
        /// The dynamic linker's message about a GPU library that cannot be loaded, which names the damaged file.
        cause: String,
    },
    /// The search for GPUs panicked, for example in a driver.
    #[error("the search for GPUs failed ({cause}); {needs}", needs = api.needs())]
    Failed {
        /// The interface to GPUs, such as CUDA, whose search for GPUs panicked.
        api: GpuApi,
        /// The message of the panic in a search for GPUs.
        cause: String,
    },
}

/// Returns the devices that the function `enumerate` finds for `api`, an interface to GPUs such as CUDA. If `enumerate`
/// finds none or panics, the function `load` loads the interface's library, which shows whether the library is missing
/// or broken.
///
/// # Errors
/// Returns [`GpuSearchError`] if the library cannot be loaded, or if `enumerate` panics although the library can be
/// loaded.
#[cfg(any(feature = "gpu", test))]
fn search<T>(
    api: GpuApi,
    enumerate: impl FnOnce() -> Vec<T>,
    load: impl FnOnce(&str) -> Result<(), Unloadable>,
) -> Result<Vec<T>, GpuSearchError> {
    let found = catch_unwind(AssertUnwindSafe(enumerate));
    if let Ok(devices) = &found
        && !devices.is_empty()
    {
        return Ok(found.unwrap_or_default());
    }
    if let Some(library) = api.library() {
        match load(library) {
            Ok(()) => {}
            Err(Unloadable::Missing) => return Err(GpuSearchError::MissingLibrary { api, library }),
            Err(Unloadable::Broken(cause)) => return Err(GpuSearchError::BrokenLibrary { api, library, cause }),
        }
    }
    found.map_err(|panic| GpuSearchError::Failed { api, cause: Failure::of_panic(panic).to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loads(_: &str) -> Result<(), Unloadable> {
        Ok(())
    }

    #[test]
    fn devices_that_are_found_need_no_library() {
        fn unused(library: &str) -> Result<(), Unloadable> {
            panic!("{library} is not needed")
        }
        assert_eq!(search(GpuApi::Wgpu, || vec![7], unused), Ok(vec![7]));
    }

    #[test]
    fn no_device_is_not_an_error_if_the_library_can_be_loaded() {
        for api in GpuApi::ALL {
            assert_eq!(search(api, Vec::<()>::new, loads), Ok(Vec::new()), "{api}");
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_missing_library_is_told_from_a_broken_one() {
        for (api, library, package) in
            [(GpuApi::Cuda, "libcuda.so.1", "nvidia-driver"), (GpuApi::Wgpu, "libvulkan.so.1", "libvulkan1")]
        {
            let missing = search(api, Vec::<()>::new, |_| Err(Unloadable::Missing)).unwrap_err();
            assert_eq!(missing, GpuSearchError::MissingLibrary { api, library });
            let broken = search(api, Vec::<()>::new, |_| Err(Unloadable::Broken("file too short".to_owned())));
            let broken = broken.unwrap_err().to_string();
            assert!(broken.contains("file too short") && broken.contains("is broken"), "{broken}");
            for message in [missing.to_string(), broken] {
                assert!(message.contains(library) && message.contains(package), "{message}");
            }
        }
    }

    /// Tests that a panic in a search for GPUs is reported with its message, and that a broken library is reported as
    /// the cause.
    #[test]
    fn a_panic_in_the_search_is_an_error() {
        let panics = || -> Vec<()> { std::panic::resume_unwind(Box::new("the driver is out of order")) };
        let failed = search(GpuApi::Vulkan, panics, loads).unwrap_err();
        assert!(matches!(failed, GpuSearchError::Failed { api: GpuApi::Vulkan, .. }), "{failed}");
        let message = failed.to_string();
        assert!(message.contains("out of order") && message.contains("mesa-vulkan-drivers"), "{message}");
        #[cfg(target_os = "linux")]
        {
            let broken = search(GpuApi::Vulkan, panics, |_| Err(Unloadable::Broken("damaged".to_owned()))).unwrap_err();
            assert!(matches!(broken, GpuSearchError::BrokenLibrary { .. }), "{broken}");
        }
    }
}
