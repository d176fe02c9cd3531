//! The errors of opening devices by their names ([`DeviceError`], [`DeviceErrors`]), with the advice to the user.

use std::fmt;

use crate::device::gpu_api::GpuApi;
use crate::device::gpu_search::GpuSearchError;
use crate::device::remote::RemoteError;

/// The errors of [`DeviceName::open_all`](crate::DeviceName::open_all), one for each device that could not be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceErrors(pub(super) Vec<DeviceError>);

impl DeviceErrors {
    /// Returns the errors of all devices that could not be opened, one for each device.
    pub fn each(&self) -> &[DeviceError] {
        &self.0
    }
}

impl fmt::Display for DeviceErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let each: Vec<_> = self.0.iter().map(DeviceError::to_string).collect();
        write!(f, "{}", each.join("; "))
    }
}

impl std::error::Error for DeviceErrors {}

/// The error for one device that cannot be opened: its name is not valid, or the device cannot be found, reached or
/// used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The list of device names, for example a command-line flag's value, is empty. Name at least one device, such as
    /// `cpu` or `cuda:0`.
    #[error("no devices: name at least one, such as `cpu` or `cuda:0,cuda:1`")]
    None,
    /// The given string is not a valid device name. Examples of valid names are `cpu`, `cuda:0` and
    /// `ws://gpu-2:4433/0`.
    #[error(
        "`{text}` is no device; write `cpu`, or a GPU's interface (cuda, rocm, wgpu, vulkan or metal) and its index or `all`, as in \
         `cuda:0` or `vulkan:all`, or what `stageline serve` prints on another host, as in `iroh:<id>/0` or `ws://gpu-2:4433/0`"
    )]
    Unknown {
        /// The string that is not a valid device name.
        text: String,
    },
    /// This program was built without the named device's backend, such as CUDA. Rebuild it with the Cargo feature
    /// `feature`.
    #[error("this program was built without `{device}`; build it with `--features {feature}`")]
    NotBuilt {
        /// The name of the device, such as `cuda:0`, whose backend is missing in this program.
        device: String,
        /// The Cargo feature that the program must be built with to use the device, such as `cuda`.
        feature: &'static str,
    },
    /// A device of another host cannot be reached or used. The value says why, and names a remedy.
    #[error(transparent)]
    Remote(#[from] RemoteError),
    /// The GPU exists but does not compute: the test kernels that run when it is opened fail or return a wrong result.
    /// `advice` says what to install or try.
    #[error("`{device}` was found, but does not compute: {cause}; {advice}")]
    Unusable {
        /// The name of the GPU whose test kernels fail or return a wrong result.
        device: String,
        /// The root cause of the error in a test kernel, or the wrong result that a test kernel returned.
        cause: String,
        /// Advice to the user: which compiler or driver to install for the GPU, or which other GPU API (such as Vulkan)
        /// to try.
        advice: &'static str,
    },
    /// The NVIDIA driver is too old for the named GPU: it lacks functions that burn calls. Install a newer driver.
    #[error(
        "the driver of `{device}` supports CUDA {found}, and this program needs {needed} or later; install {packages}",
        packages = GpuApi::Cuda.packages()
    )]
    OldDriver {
        /// The name of the GPU whose driver is too old.
        device: String,
        /// The newest CUDA version that the NVIDIA driver supports, such as `12.4`. This program needs a newer one.
        found: String,
        /// The oldest CUDA version that this program works with, such as `12.8`.
        needed: String,
    },
    /// The named GPU was not found, because the search for GPUs failed. For example, the library of its GPU API, such
    /// as CUDA, is not installed.
    #[error("`{device}` was not found: {cause}")]
    Search {
        /// The name of the GPU that was searched for, such as `cuda:0`.
        device: String,
        /// The reason why the search for GPUs failed, such as a missing library of the GPU API.
        cause: GpuSearchError,
    },
    /// The named GPU does not exist: this machine has no GPU with that index, or no GPU at all. Name one of the `found`
    /// GPUs.
    #[error("`{device}` was not found: {present}", present = present(*api, *found))]
    NotFound {
        /// The name of the GPU that does not exist.
        device: String,
        /// The GPU API in the given device name, such as CUDA for `cuda:3`.
        api: GpuApi,
        /// Number of GPUs that this GPU API (such as CUDA) finds on this machine. Valid indices in device names are 0
        /// to `found - 1`.
        found: usize,
    },
}

impl DeviceError {
    /// Converts a GPU search error to the error for opening `device`, a device name such as `cuda:0`.
    pub(super) fn of_search(device: String, cause: GpuSearchError) -> Self {
        match cause {
            GpuSearchError::NotBuilt { api } => Self::NotBuilt { device, feature: api.name() },
            GpuSearchError::OldDriver { found, needed } => Self::OldDriver { device, found, needed },
            cause => Self::Search { device, cause },
        }
    }
}

/// Returns the second half of the error message for a missing GPU: the names of the `found` GPUs that the GPU API `api`
/// finds, or what to install if it finds none.
fn present(api: GpuApi, found: usize) -> String {
    match found {
        0 => format!("{api} finds no devices; {}", api.needs()),
        1 => format!("{api} finds 1 device, `{api}:0`; name that one"),
        _ => format!("{api} finds {found} devices, `{api}:0` to `{api}:{}`; name one of these", found - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_gpu_is_reported_with_those_that_are_there() {
        let message = |device: &str, found| {
            DeviceError::NotFound { device: device.to_owned(), api: GpuApi::Wgpu, found }.to_string()
        };
        assert_eq!(message("wgpu:99", 1), "`wgpu:99` was not found: wgpu finds 1 device, `wgpu:0`; name that one");
        assert_eq!(
            message("wgpu:4", 4),
            "`wgpu:4` was not found: wgpu finds 4 devices, `wgpu:0` to `wgpu:3`; name one of these"
        );
        let none = message("wgpu:all", 0);
        let expected = format!("`wgpu:all` was not found: wgpu finds no devices; {}", GpuApi::Wgpu.needs());
        assert_eq!(none, expected);
    }
}
