//! The errors of opening devices by their names ([`DeviceError`], [`DeviceErrors`]), with the advice to the user.

use std::fmt;

use crate::device::gpu_api::GpuApi;
use crate::device::gpu_search::GpuSearchError;
use crate::device::remote::RemoteError;

/// The errors of all devices that could not be opened, one for each device.
/// [`DeviceName::open_all`](crate::DeviceName::open_all) returns them.
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
    /// A list of device names, such as the value of a flag, contains no name.
    #[error("no devices: name at least one, such as `cpu` or `cuda:0,cuda:1`")]
    None,
    /// A text that was given as the name of a device is not valid. Examples of valid names are `cpu` and `cuda:0`.
    #[error(
        "`{text}` is no device; write `cpu`, or a GPU's interface (cuda, rocm, wgpu, vulkan or metal) and its index or `all`, as in \
         `cuda:0` or `vulkan:all`, or what `stageline serve` prints on another host, as in `iroh:<id>/0` or `ws://gpu-2:4433/0`"
    )]
    Unknown {
        /// The text that is not a valid name of a device.
        text: String,
    },
    /// This program was built without the backend (burn's code for a kind of device) that the named device needs.
    #[error("this program was built without `{device}`; build it with `--features {feature}`")]
    NotBuilt {
        /// The name of the device whose backend is missing in this program.
        device: String,
        /// The Cargo feature that the program must be built with to use the device, such as `cuda`.
        feature: &'static str,
    },
    /// A device of another host cannot be reached or used. The value says why.
    #[error(transparent)]
    Remote(#[from] RemoteError),
    /// A GPU exists, but the first test kernels that run on it fail or return a wrong result.
    #[error("`{device}` was found, but does not compute: {cause}; {advice}")]
    Unusable {
        /// The name of the GPU whose test kernels fail or return a wrong result.
        device: String,
        /// Why the GPU does not compute: the root cause of the error in a test kernel, or the kernel's wrong result.
        cause: String,
        /// The advice to the user whose GPU does not compute: a compiler or driver to install, or another interface to
        /// try.
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
        /// The newest CUDA version that the NVIDIA driver supports, such as `12.4`. This program needs a newer one.
        found: String,
        /// The oldest CUDA version that this program works with, such as `12.8`.
        needed: String,
    },
    /// The search for a named GPU failed, for example because the library of its interface, such as CUDA, is missing.
    #[error("`{device}` was not found: {cause}")]
    Search {
        /// The name of the GPU that the failed search should have found, such as `cuda:0`.
        device: String,
        /// Why the search for the GPUs of an interface failed, such as a missing library.
        cause: GpuSearchError,
    },
    /// This machine has no GPU with the index in the given device name, or no GPU at all.
    #[error("`{device}` was not found: {present}", present = present(*api, *found))]
    NotFound {
        /// The name of the GPU that does not exist.
        device: String,
        /// The interface, such as CUDA, in the name of the missing GPU.
        api: GpuApi,
        /// The number of GPUs that the interface, such as CUDA, finds on this machine. The index of a GPU must be below
        /// it.
        found: usize,
    },
}

impl DeviceError {
    /// Converts the error of a search for GPUs to the error of opening a device. `device` is the name of the device.
    pub(super) fn of_search(device: String, cause: GpuSearchError) -> Self {
        match cause {
            GpuSearchError::NotBuilt { api } => Self::NotBuilt { device, feature: api.name() },
            GpuSearchError::OldDriver { found, needed } => Self::OldDriver { device, found, needed },
            cause => Self::Search { device, cause },
        }
    }
}

/// Returns the words of an error message about a missing GPU: which GPUs exist, and what the user can do. `found` is
/// the number of GPUs that the interface `api` finds.
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
