//! The errors of opening devices by their names ([`DeviceError`], [`DeviceErrors`]), with the advice to the user.

use std::fmt;

use crate::device::gpu_api::GpuApi;
use crate::device::gpu_search::GpuSearchError;
use crate::device::remote::RemoteError;

/// The errors of all devices that could not be opened, one for each device.
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
        write!(f, "{}", each.join("\n"))
    }
}

impl std::error::Error for DeviceErrors {}

/// An error in the name of a device, or in opening the device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The list of device names that was to be opened is empty.
    #[error("no devices: name at least one, such as `cpu` or `cuda:0,cuda:1`")]
    None,
    /// A given text is not a valid device name, such as `cpu` or `cuda:0`.
    #[error(
        "`{text}` is no device; write `cpu`, or a GPU's interface (cuda, rocm, wgpu, vulkan or metal) and its index or `all`, as in \
         `cuda:0` or `vulkan:all`, or what `stageline serve` prints on another host, as in `iroh:<id>/0` or `ws://gpu-2:4433/0`"
    )]
    Unknown {
        /// The given text, which is not a valid device name.
        text: String,
    },
    /// This program was built without the backend (burn's code for a kind of device) that the named device needs.
    #[error("this program was built without `{device}`; build it with `--features {feature}`")]
    NotBuilt {
        /// The name of the device whose backend is missing in this program.
        device: String,
        /// The Cargo feature with which the program must be built to use the device.
        feature: &'static str,
    },
    /// The named device of another host cannot be reached or used.
    #[error(transparent)]
    Remote(#[from] RemoteError),
    /// A GPU exists, but the first test kernels that run on it fail or return a wrong result.
    #[error("`{device}` was found, but does not compute: {cause}; {advice}")]
    Unusable {
        /// The name of the GPU that does not compute.
        device: String,
        /// The reason why the GPU does not compute: the root cause of an error in running test kernels on it, or the
        /// wrong result that these kernels returned.
        cause: String,
        /// The advice to the user whose GPU does not compute: the compiler or driver that kernels need, or another
        /// interface to try.
        advice: &'static str,
    },
    /// The NVIDIA driver of a named GPU is too old: it lacks functions that burn calls.
    #[error(
        "the driver of `{device}` supports CUDA {found}, and this program needs {needed} or later; install {packages}",
        packages = GpuApi::Cuda.packages()
    )]
    OldDriver {
        /// The name of the GPU whose driver is too old.
        device: String,
        /// The newest version of CUDA that the NVIDIA driver, which is too old, supports.
        found: String,
        /// The oldest version of CUDA that the NVIDIA driver must support for this program.
        needed: String,
    },
    /// The search for a named GPU failed, for example because the library of its interface, such as CUDA, is missing.
    #[error("`{device}` was not found: {cause}")]
    Search {
        /// The name of the GPU that was to be opened, for which the search failed.
        device: String,
        /// The reason why the search for the GPUs of an interface failed, such as a missing library.
        cause: GpuSearchError,
    },
    /// This machine has no GPU with the index in the given device name, or no GPU at all.
    #[error("`{device}` was not found: {present}", present = present(*api, *found))]
    NotFound {
        /// The name of the GPU that does not exist.
        device: String,
        /// The interface, such as CUDA, through which the missing GPU was searched for.
        api: GpuApi,
        /// The number of GPUs that the interface (such as CUDA) finds on this machine. The index of a GPU, counted from
        /// 0, must be below this number.
        found: usize,
    },
}

impl DeviceError {
    /// Converts the error `cause` of a search for GPUs to the error of opening the device that was named `device`.
    pub(super) fn of_search(device: String, cause: GpuSearchError) -> Self {
        match cause {
            GpuSearchError::NotBuilt { api } => Self::NotBuilt { device, feature: api.name() },
            GpuSearchError::OldDriver { found, needed } => Self::OldDriver { device, found, needed },
            cause => Self::Search { device, cause },
        }
    }
}

/// Returns the part of an error message about a missing GPU that says which GPUs exist and what the user can do.
/// `found` is the number of GPUs that the interface `api` finds.
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
