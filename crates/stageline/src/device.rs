//! Devices by name.

use std::fmt;
use std::str::FromStr;

use burn::tensor::Device;

/// A device as written on a command line: `cpu`, or `cuda:0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceName {
    /// The processor.
    Cpu,
    /// An NVIDIA GPU, by its index.
    Cuda(usize),
}

impl DeviceName {
    /// Reads a list such as `cuda:0,cuda:1`.
    ///
    /// # Errors
    /// [`DeviceError`] where the list is empty or an entry is no device.
    pub fn parse_list(list: &str) -> Result<Vec<Self>, DeviceError> {
        let names = list.split(',').map(str::trim).filter(|name| !name.is_empty());
        let devices = names.map(str::parse).collect::<Result<Vec<_>, _>>()?;
        if devices.is_empty() { Err(DeviceError::None) } else { Ok(devices) }
    }

    /// The device, if this build and this machine have it.
    ///
    /// # Errors
    /// [`DeviceError`] where they do not.
    pub fn open(self) -> Result<Device, DeviceError> {
        match self {
            #[cfg(feature = "flex")]
            Self::Cpu => Ok(Device::flex()),
            #[cfg(not(feature = "flex"))]
            Self::Cpu => Err(DeviceError::NotBuilt { device: self, feature: "flex" }),
            #[cfg(feature = "cuda")]
            Self::Cuda(index) => {
                // Asked first: the first operation on a device without a driver panics on another thread.
                let found = Device::enumerate(burn::tensor::DeviceType::Cuda).into_vec().len();
                if index < found {
                    computes(self, Device::cuda(index))
                } else {
                    Err(DeviceError::NotFound { device: self, found })
                }
            }
            #[cfg(not(feature = "cuda"))]
            Self::Cuda(_) => Err(DeviceError::NotBuilt { device: self, feature: "cuda" }),
        }
    }
}

/// The device, if a first kernel runs on it: what is missing shows here, and not on a thread of a library.
#[cfg(any(feature = "cuda", test))]
fn computes(device: DeviceName, opened: Device) -> Result<Device, DeviceError> {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    let two = || (burn::tensor::Tensor::<1>::ones([1], &opened) + 1.0).into_scalar::<f32>();
    let cause = match catch_unwind(AssertUnwindSafe(two)) {
        Ok(2.0) => return Ok(opened),
        Ok(wrong) => format!("1 + 1 is {wrong} on it"),
        Err(panic) => crate::failure::Failure::of_panic(panic).to_string(),
    };
    Err(DeviceError::Unusable { device, cause })
}

/// Whether a device computes on the host's cores.
#[cfg(feature = "flex")]
pub(crate) fn is_host(device: &Device) -> bool {
    device.clone().inner() == Device::flex()
}

#[cfg(not(feature = "flex"))]
pub(crate) fn is_host(_: &Device) -> bool {
    false
}

/// Whether what one of them has is what the other has: the memory of the host is that of all CPUs.
pub(crate) fn share_memory(one: &Device, other: &Device) -> bool {
    one == other || (is_host(one) && is_host(other))
}

/// Whether a move from one device to the other is one between GPUs, which burn leaves to NCCL.
pub(crate) fn between_gpus(from: &Device, to: &Device) -> bool {
    !is_host(from) && !is_host(to) && from.clone().inner() != to.clone().inner()
}

/// The communication stream of each stage's device: one for every GPU, if there are several.
pub(crate) fn communication_streams(devices: &[Device]) -> Vec<Option<usize>> {
    let mut gpus: Vec<Device> = Vec::new();
    let mut stream = |device: &Device| {
        let gpu = device.clone().inner();
        gpus.iter().position(|known| *known == gpu).or_else(|| {
            gpus.push(gpu);
            Some(gpus.len() - 1)
        })
    };
    devices.iter().map(|device| if is_host(device) { None } else { stream(device) }).collect()
}

impl FromStr for DeviceName {
    type Err = DeviceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let cuda = |index: &str| index.parse().ok().map(Self::Cuda);
        match text {
            "cpu" => Ok(Self::Cpu),
            _ => {
                text.strip_prefix("cuda:").and_then(cuda).ok_or_else(|| DeviceError::Unknown { text: text.to_owned() })
            }
        }
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => write!(f, "cpu"),
            Self::Cuda(index) => write!(f, "cuda:{index}"),
        }
    }
}

/// Why there is no such device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The list is empty.
    #[error("no devices: name at least one, such as `cpu` or `cuda:0,cuda:1`")]
    None,
    /// Not a name of a device.
    #[error("`{text}` is no device; write `cpu`, or `cuda:` and an index, as in `cuda:0`")]
    Unknown {
        /// What was written.
        text: String,
    },
    /// This program was built without the device's backend.
    #[error("this program was built without `{device}`; build it with `--features {feature}`")]
    NotBuilt {
        /// The device.
        device: DeviceName,
        /// The feature that brings it.
        feature: &'static str,
    },
    /// It is there, but a first kernel does not run on it.
    #[error(
        "`{device}` was found, but does not compute: {cause}; look whether CUDA's libraries (libcuda, libnvrtc) can be loaded \
         and are not newer than the driver, and whether `nvidia-smi` shows free memory"
    )]
    Unusable {
        /// The device.
        device: DeviceName,
        /// What went wrong.
        cause: String,
    },
    /// The machine does not have it.
    #[error(
        "`{device}` was not found: the driver shows {found} such devices; \
         look at `nvidia-smi`, install the driver, or name a device below that number"
    )]
    NotFound {
        /// The device.
        device: DeviceName,
        /// How many there are.
        found: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read() {
        assert_eq!(DeviceName::parse_list("cpu"), Ok(vec![DeviceName::Cpu]));
        assert_eq!(DeviceName::parse_list("cuda:0, cuda:11"), Ok(vec![DeviceName::Cuda(0), DeviceName::Cuda(11)]));
    }

    #[test]
    fn what_is_no_device_is_named() {
        assert_eq!(DeviceName::parse_list(" ,"), Err(DeviceError::None));
        for text in ["gpu", "cuda", "cuda:", "cuda:-1", "cuda:x"] {
            assert_eq!(DeviceName::parse_list(text), Err(DeviceError::Unknown { text: text.to_owned() }));
        }
    }

    #[test]
    #[cfg(feature = "flex")]
    fn a_device_that_computes_is_opened() {
        assert_eq!(computes(DeviceName::Cpu, Device::flex()), Ok(Device::flex()));
        let autodiff = Device::flex().autodiff();
        assert!(!between_gpus(&autodiff, &Device::flex()));
        assert_eq!(communication_streams(&[Device::flex(), autodiff]), [None, None]);
    }

    #[test]
    #[cfg(not(feature = "cuda"))]
    fn a_missing_backend_names_its_feature() {
        let message = DeviceName::Cuda(1).open().unwrap_err().to_string();
        assert!(message.contains("`cuda:1`") && message.contains("--features cuda"), "{message}");
    }
}
