//! Devices by name.

use std::fmt;
use std::str::FromStr;

use burn::tensor::Device;

#[cfg(feature = "cuda")]
use crate::device::cuda_driver::{CudaVersion, OLDEST};
use crate::device::remote::{HostName, RemoteError, RemoteName, Token};

/// A device as written on a command line: `cpu`, `cuda:0`, or that of another host, `iroh:<id>/0` or `ws://gpu-2:3000/0`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum DeviceName {
    /// The processor.
    Cpu,
    /// An NVIDIA GPU, by its index. The first that is opened sets [`BurnConfig`](burn::BurnConfig), if nothing has set or used it
    /// before, so that burn fuses operations in the order in which they come; a `burn.toml` with a `fusion.beam_search.max_blocks` that
    /// is not burn's own 5 is followed.
    Cuda(usize),
    /// A device that another host serves.
    Remote(RemoteName),
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

    /// The devices, one for each name: those of other hosts are connected all at once, and waited for. Hosts that ask for a token
    /// are shown this one.
    ///
    /// # Errors
    /// [`DeviceErrors`] says of every device that cannot be used why not.
    pub fn open_all(names: &[Self], token: Option<&Token>) -> Result<Vec<Device>, DeviceErrors> {
        let is_plain = |name: &&Self| matches!(name, Self::Remote(RemoteName { host: HostName::WebSocket { .. }, .. }));
        if let Some(name) = names.iter().find(is_plain) {
            tracing::warn!(
                "`{name}` is reached without encryption: who can read the network sees the token and all tensors"
            );
        }
        #[cfg(feature = "cuda")]
        if names.iter().any(|name| matches!(name, Self::Cuda(_))) {
            // Before a connection uses burn's settings.
            crate::device::cuda_fusion::as_it_comes();
        }
        let begun: Vec<_> = names.iter().map(|name| name.begin(token)).collect();
        let mut opened = Vec::with_capacity(names.len());
        let mut errors = Vec::new();
        for opening in begun {
            match opening() {
                Ok(device) => opened.push(device),
                // A device that several stages are on is named once.
                Err(error) if errors.contains(&error) => {}
                Err(error) => errors.push(error),
            }
        }
        if errors.is_empty() { Ok(opened) } else { Err(DeviceErrors(errors)) }
    }

    /// Begins to open it; the function waits for that.
    fn begin(&self, token: Option<&Token>) -> Box<dyn FnOnce() -> Result<Device, DeviceError>> {
        #[cfg(feature = "remote")]
        if let Self::Remote(name) = self {
            let connecting = crate::device::remote::connect::begin(name, token);
            return Box::new(|| Ok(connecting.finish()?));
        }
        let _ = token;
        let name = self.clone();
        Box::new(|| name.open())
    }

    /// The device, if this build and this machine have it, or another host that asks for no token.
    ///
    /// # Errors
    /// [`DeviceError`] where they do not.
    pub fn open(self) -> Result<Device, DeviceError> {
        match self {
            #[cfg(feature = "remote")]
            Self::Remote(name) => Ok(crate::device::remote::connect::begin(&name, None).finish()?),
            #[cfg(not(feature = "remote"))]
            Self::Remote(_) => Err(DeviceError::NotBuilt { device: self, feature: "remote" }),
            #[cfg(feature = "flex")]
            Self::Cpu => Ok(Device::flex()),
            #[cfg(not(feature = "flex"))]
            Self::Cpu => Err(DeviceError::NotBuilt { device: self, feature: "flex" }),
            #[cfg(feature = "cuda")]
            Self::Cuda(index) => {
                if let Some(found) = CudaVersion::of_driver().filter(|found| *found < OLDEST) {
                    let [found, needed] = [found, OLDEST].map(|version| version.to_string());
                    return Err(DeviceError::OldDriver { device: self, found, needed });
                }
                crate::device::nccl::load();
                // Asked first: the first operation on a device without a driver panics on another thread.
                let found = Device::enumerate(burn::tensor::DeviceType::Cuda).into_vec().len();
                if index < found {
                    crate::device::cuda_fusion::as_it_comes();
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

/// The device, if first kernels run on it, one of them with a function that is not the device's own: what is missing shows here, and
/// not on a thread of a library.
#[cfg(any(feature = "cuda", test))]
fn computes(device: DeviceName, opened: Device) -> Result<Device, DeviceError> {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    let two = || (burn::tensor::Tensor::<1>::zeros([1], &opened).erf() + 2.0).into_scalar::<f32>();
    let cause = match catch_unwind(AssertUnwindSafe(two)) {
        Ok(2.0) => return Ok(opened),
        Ok(wrong) => format!("erf(0) + 2 is {wrong} on it"),
        Err(panic) => root_of(&crate::threads::failure::Failure::of_panic(panic).to_string()),
    };
    Err(DeviceError::Unusable { device, cause })
}

/// The last cause of an error of burn's, which has all of them below each other, and then where it was seen.
#[cfg(any(feature = "cuda", test))]
fn root_of(error: &str) -> String {
    let last = error.rsplit("Caused by:").next().unwrap_or(error);
    let ends = ["Backtrace:", "No backtrace", "Asked at:"].map(|end| last.find(end).unwrap_or(last.len()));
    let cause = &last[..ends.into_iter().min().unwrap_or(last.len())];
    cause.split_whitespace().collect::<Vec<_>>().join(" ")
}

impl FromStr for DeviceName {
    type Err = DeviceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let cuda = |index: &str| index.parse().ok().map(Self::Cuda);
        let unknown = || DeviceError::Unknown { text: text.to_owned() };
        match text {
            "cpu" => Ok(Self::Cpu),
            _ if text.contains('/') => text.parse().map(Self::Remote).map_err(|()| unknown()),
            _ => text.strip_prefix("cuda:").and_then(cuda).ok_or_else(unknown),
        }
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => write!(f, "cpu"),
            Self::Cuda(index) => write!(f, "cuda:{index}"),
            Self::Remote(name) => write!(f, "{name}"),
        }
    }
}

/// Why devices cannot be used, of each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceErrors(Vec<DeviceError>);

impl DeviceErrors {
    /// One for every device that cannot be used.
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

/// Why there is no such device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The list is empty.
    #[error("no devices: name at least one, such as `cpu` or `cuda:0,cuda:1`")]
    None,
    /// Not a name of a device.
    #[error(
        "`{text}` is no device; write `cpu`, or `cuda:` and an index, as in `cuda:0`, or what `stageline serve` prints on another \
         host, as in `iroh:<id>/0` or `ws://gpu-2:3000/0`"
    )]
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
    /// It is on another host, and cannot be reached or used.
    #[error(transparent)]
    Remote(#[from] RemoteError),
    /// It is there, but a first kernel does not run on it.
    #[error(
        "`{device}` was found, but does not compute: {cause}; kernels are compiled with libdevice, a file of the CUDA toolkit, which is \
         looked for in CUDA_PATH, /usr/local/cuda, /opt/cuda, /usr/lib/cuda and /usr, and `nvidia-smi` shows whether there is \
         free memory"
    )]
    Unusable {
        /// The device.
        device: DeviceName,
        /// What went wrong.
        cause: String,
    },
    /// The driver lacks functions that burn calls.
    #[error(
        "the driver of `{device}` supports CUDA {found}, and this program needs {needed} or later: install a driver of version 570 or \
         later"
    )]
    OldDriver {
        /// The device.
        device: DeviceName,
        /// The version of CUDA that the driver supports.
        found: String,
        /// The oldest version that will do.
        needed: String,
    },
    /// The machine does not have it.
    #[error(
        "`{device}` was not found: libcuda, where it can be loaded, shows {found} such devices; \
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
        for text in ["gpu", "cuda", "cuda:", "cuda:-1", "cuda:x", "ws://gpu/0", "iroh:00/0"] {
            assert_eq!(DeviceName::parse_list(text), Err(DeviceError::Unknown { text: text.to_owned() }));
        }
    }

    #[test]
    #[cfg(feature = "flex")]
    fn a_device_that_computes_is_opened() {
        assert_eq!(computes(DeviceName::Cpu, Device::flex()), Ok(Device::flex()));
    }

    #[test]
    fn the_root_of_an_error_is_its_last_cause() {
        let burns = "A launch error happened\nCaused by:\n  compiling 'erf' for sm_90: libdevice.10.bc was\n  not found\nBacktrace:\nNone";
        assert_eq!(root_of(burns), "compiling 'erf' for sm_90: libdevice.10.bc was not found");
        assert_eq!(root_of("no causes"), "no causes");
    }

    #[test]
    #[cfg(not(feature = "cuda"))]
    fn a_missing_backend_names_its_feature() {
        let message = DeviceName::Cuda(1).open().unwrap_err().to_string();
        assert!(message.contains("`cuda:1`") && message.contains("--features cuda"), "{message}");
    }
}
