//! Checks the CUDA version that the NVIDIA driver supports ([`check`]) before burn calls functions that older drivers
//! lack.

use std::ffi::c_int;
use std::fmt;
use std::mem::ManuallyDrop;

use crate::device::gpu_search::GpuSearchError;

/// A version of CUDA as NVIDIA encodes it: 1000 times the major version plus 10 times the minor version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct CudaVersion(c_int);

/// The minimum CUDA version, 12.8, that the NVIDIA driver must support, because burn calls `cuEventElapsedTime_v2`,
/// which drivers for earlier CUDA versions lack.
const OLDEST: CudaVersion = CudaVersion(12_080);

/// Checks that this host's NVIDIA driver, if there is one, has every function that burn calls.
///
/// # Errors
/// Returns [`GpuSearchError::OldDriver`] if the driver lacks some of these functions.
pub(super) fn check() -> Result<(), GpuSearchError> {
    CudaVersion::of_driver().map_or(Ok(()), CudaVersion::check)
}

impl CudaVersion {
    /// Returns the newest CUDA version that this host's NVIDIA driver supports, or `None` without a driver.
    fn of_driver() -> Option<Self> {
        ["libcuda.so.1", "libcuda.so"].into_iter().find_map(Self::of_library)
    }

    fn of_library(name: &str) -> Option<Self> {
        let mut version = 0;
        // SAFETY: a library of that name is NVIDIA's driver, whose initialisers have no requirements. Its
        // `cuDriverGetVersion` has this type and may be called first (CUDA driver API, version management).
        let status = unsafe {
            // The library stays loaded, because burn loads it next.
            let library = ManuallyDrop::new(libloading::Library::new(name).ok()?);
            let get = library.get::<unsafe extern "C" fn(*mut c_int) -> c_int>(b"cuDriverGetVersion\0").ok()?;
            get(&raw mut version)
        };
        (status == 0).then_some(Self(version))
    }

    fn check(self) -> Result<(), GpuSearchError> {
        if self >= OLDEST {
            return Ok(());
        }
        let [found, needed] = [self, OLDEST].map(|version| version.to_string());
        Err(GpuSearchError::OldDriver { found, needed })
    }
}

impl fmt::Display for CudaVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 1000, self.0 % 1000 / 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_decoded_and_ordered() {
        assert_eq!((CudaVersion(12_040).to_string(), OLDEST.to_string()), ("12.4".to_owned(), "12.8".to_owned()));
        assert!(CudaVersion(12_040) < OLDEST && CudaVersion(13_000) > OLDEST);
    }

    #[test]
    fn a_driver_that_is_too_old_is_refused_with_its_package() {
        assert_eq!([CudaVersion(12_080).check(), CudaVersion(13_000).check()], [Ok(()), Ok(())]);
        let message = CudaVersion(12_040).check().unwrap_err().to_string();
        for words in ["supports CUDA 12.4", "needs 12.8", "`nvidia-driver`", "570"] {
            assert!(message.contains(words), "{message}");
        }
    }

    #[test]
    fn a_library_without_the_function_has_no_version() {
        assert_eq!(CudaVersion::of_library("libm.so.6"), None);
        assert_eq!(CudaVersion::of_library("libstageline-missing.so"), None);
    }
}
