//! The CUDA version that the NVIDIA driver supports ([`CudaVersion`]), which is checked before burn calls functions
//! that older drivers lack.

use std::ffi::c_int;
use std::fmt;
use std::mem::ManuallyDrop;

/// A version of CUDA as NVIDIA encodes it: 1000 times the major version plus 10 times the minor version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CudaVersion(c_int);

/// The oldest CUDA version whose driver has every function that burn calls; the newest of these functions,
/// `cuEventElapsedTime_v2`, came with CUDA 12.8.
pub(crate) const OLDEST: CudaVersion = CudaVersion(12_080);

impl CudaVersion {
    /// Returns the newest CUDA version that this host's NVIDIA driver supports, or `None` without a driver.
    pub(crate) fn of_driver() -> Option<Self> {
        ["libcuda.so.1", "libcuda.so"].into_iter().find_map(Self::of_library)
    }

    fn of_library(name: &str) -> Option<Self> {
        let mut version = 0;
        // SAFETY: a library of that name is NVIDIA's driver, whose initialisers have no requirements and whose
        // `cuDriverGetVersion` has this type and may be called first (CUDA driver API, version management).
        let status = unsafe {
            // The library stays loaded, because burn loads it next.
            let library = ManuallyDrop::new(libloading::Library::new(name).ok()?);
            let get = library.get::<unsafe extern "C" fn(*mut c_int) -> c_int>(b"cuDriverGetVersion\0").ok()?;
            get(&raw mut version)
        };
        (status == 0).then_some(Self(version))
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
    fn a_library_without_the_function_has_no_version() {
        assert_eq!(CudaVersion::of_library("libm.so.6"), None);
        assert_eq!(CudaVersion::of_library("libstageline-missing.so"), None);
    }
}
