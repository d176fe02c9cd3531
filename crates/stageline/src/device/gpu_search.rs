//! The search for this host's GPUs through one GPU API, such as CUDA, and its errors ([`GpuSearchError`]).

#[cfg(any(feature = "gpu", test))]
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::device::gpu_api::GpuApi;
#[cfg(any(feature = "gpu", test))]
use crate::device::library::Unloadable;
#[cfg(any(feature = "gpu", test))]
use crate::threads::failure::Failure;

/// An error in searching for this host's GPUs through one GPU API, such as CUDA.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GpuSearchError {
    /// This program was built without the requested GPU API. Rebuild it with the Cargo feature of the same name, such
    /// as `cuda`.
    #[error("this program was built without `{api}`; build it with `--features {api}`")]
    NotBuilt {
        /// The GPU API, such as CUDA, that this program was built without.
        api: GpuApi,
    },
    /// The GPU API's library, such as CUDA's `libcuda.so.1`, is not installed, or not where the dynamic linker looks
    /// for it. Install the packages that the error message names.
    #[error("the library {library} is not installed; install {packages}", packages = api.packages())]
    MissingLibrary {
        /// The GPU API, such as CUDA, whose library is missing.
        api: GpuApi,
        /// The missing library's file name, such as `libcuda.so.1`.
        library: &'static str,
    },
    /// The GPU API's library, such as CUDA's `libcuda.so.1`, is installed but cannot be loaded. Reinstall its package,
    /// and check that `LD_LIBRARY_PATH` names no damaged copy.
    #[error(
        "the library {library} is broken ({cause}); install {packages} again, and check that LD_LIBRARY_PATH names no damaged copy",
        packages = api.packages()
    )]
    BrokenLibrary {
        /// The GPU API, such as CUDA, whose library is broken.
        api: GpuApi,
        /// The broken library's file name, such as `libcuda.so.1`.
        library: &'static str,
        /// The reason why the library cannot be loaded: the dynamic linker's error message, which names the damaged
        /// file.
        cause: String,
    },
    /// This host's NVIDIA driver is too old: it lacks functions that burn calls. Install a newer driver.
    #[error(
        "the NVIDIA driver supports CUDA {found}, and this program needs {needed} or later; install {packages}",
        packages = GpuApi::Cuda.packages()
    )]
    OldDriver {
        /// The newest CUDA version that the NVIDIA driver supports, such as `12.4`. This program needs a newer one.
        found: String,
        /// The oldest CUDA version that this program works with, such as `12.8`.
        needed: String,
    },
    /// The search for GPUs panicked, for example in a driver. Check the driver and libraries that the error message
    /// names.
    #[error("the search for GPUs failed ({cause}); {needs}", needs = api.needs())]
    Failed {
        /// The GPU API, such as CUDA, whose search for GPUs panicked.
        api: GpuApi,
        /// The message of the panic that ended the search for GPUs.
        cause: String,
    },
}

/// A shared library that a GPU API, such as CUDA, needs to find GPUs.
#[cfg(any(feature = "gpu", test))]
struct Library {
    /// The library's file name in error messages, such as `libcuda.so.1`.
    name: &'static str,
    /// The file names or paths from which burn tries to load the library. At least one of them must be loadable.
    files: Vec<String>,
}

/// Returns the shared libraries that the GPU API `api` needs to find GPUs. Returns none for Metal, and none on systems
/// other than Linux, because no library is checked there.
#[cfg(any(feature = "gpu", test))]
fn libraries(api: GpuApi) -> Vec<Library> {
    let one = |name: &'static str| vec![Library { name, files: vec![name.to_owned()] }];
    match api {
        _ if cfg!(not(target_os = "linux")) => Vec::new(),
        GpuApi::Cuda => one("libcuda.so.1"),
        GpuApi::Wgpu | GpuApi::Vulkan => one("libvulkan.so.1"),
        GpuApi::Rocm => ["libamdhip64.so", "libhiprtc.so"].map(of_rocm).into(),
        GpuApi::Metal => Vec::new(),
    }
}

/// Lists the paths from which burn tries to load the ROCm library `name`, in burn's order: first the folders in
/// ROCM_PATH and HIP_PATH, then the dynamic linker's search path. In each place, the name is tried without and with a
/// version suffix.
#[cfg(any(feature = "gpu", test))]
fn of_rocm(name: &'static str) -> Library {
    let roots = ["ROCM_PATH", "HIP_PATH"].into_iter().filter_map(|variable| std::env::var(variable).ok());
    let folders = roots.flat_map(|root| [format!("{root}/lib/"), format!("{root}/")]).chain([String::new()]);
    let files = folders.flat_map(|folder| ["", ".1", ".0"].map(|version| format!("{folder}{name}{version}")));
    Library { name, files: files.collect() }
}

/// Loads a library from its possible paths `files`: calls `load` for each path until one succeeds.
///
/// # Errors
/// If no file can be loaded, returns the error of the first broken file, or `Missing` if no file is broken.
#[cfg(any(feature = "gpu", test))]
fn load_one(files: &[String], load: impl Fn(&str) -> Result<(), Unloadable>) -> Result<(), Unloadable> {
    let mut reason = Unloadable::Missing;
    for file in files {
        match load(file) {
            Ok(()) => return Ok(()),
            Err(other) if reason == Unloadable::Missing => reason = other,
            Err(_) => {}
        }
    }
    Err(reason)
}

/// Returns the devices that `enumerate` finds through the GPU API `api`. If it finds none or panics, test-loads the
/// API's libraries with `load`, so that a missing or broken library is reported as the cause.
///
/// # Errors
/// Returns [`GpuSearchError`] if a library cannot be loaded, or if `enumerate` panics although all libraries can be
/// loaded.
#[cfg(any(feature = "gpu", test))]
pub(super) fn search<T>(
    api: GpuApi,
    enumerate: impl FnOnce() -> Vec<T>,
    load: impl Fn(&str) -> Result<(), Unloadable>,
) -> Result<Vec<T>, GpuSearchError> {
    let found = catch_unwind(AssertUnwindSafe(enumerate));
    if let Ok(devices) = &found
        && !devices.is_empty()
    {
        return Ok(found.unwrap_or_default());
    }
    for Library { name: library, files } in libraries(api) {
        match load_one(&files, &load) {
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
        for (api, library, package) in [
            (GpuApi::Cuda, "libcuda.so.1", "nvidia-driver"),
            (GpuApi::Wgpu, "libvulkan.so.1", "libvulkan1"),
            (GpuApi::Rocm, "libamdhip64.so", "rocm-hip-runtime"),
        ] {
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

    /// Tests the search for a library of ROCm, for which burn tries several files. A broken file is an error only if
    /// none of the others loads.
    #[test]
    #[cfg(target_os = "linux")]
    fn a_library_with_several_names_is_broken_if_it_loads_under_none() {
        let found_without = |missing: &str| {
            search(GpuApi::Rocm, Vec::<()>::new, |file| {
                if file.ends_with("libamdhip64.so.1") {
                    Err(Unloadable::Broken(format!("{file}: file too short")))
                } else if file.contains(missing) {
                    Err(Unloadable::Missing)
                } else {
                    Ok(())
                }
            })
        };
        let message = found_without("libamdhip64").unwrap_err().to_string();
        assert!(
            message.starts_with("the library libamdhip64.so is broken (") && message.contains(".so.1:"),
            "{message}"
        );
        let missing = GpuSearchError::MissingLibrary { api: GpuApi::Rocm, library: "libhiprtc.so" };
        assert_eq!(found_without("libhiprtc"), Err(missing));
    }

    /// Tests that a panic in the search for GPUs is reported with its message. If the library of the GPU API is broken,
    /// the broken library is reported instead.
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
