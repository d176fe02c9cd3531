//! Names of devices on a command line ([`DeviceName`]), and the burn devices that they open.

use std::fmt;
use std::str::FromStr;

use burn::tensor::Device;

use crate::device::error::{DeviceError, DeviceErrors};
use crate::device::gpu::{indices_of_all, is_software};
use crate::device::gpu_api::GpuApi;
use crate::device::opened;
use crate::device::remote::{HostName, RemoteError, RemoteName, Token, digits, one_id_for_two_addresses};
use crate::device::supported;
use crate::device::test_kernels::try_kernels;

/// The name of a device as on a command line: `cpu`, `cuda:0`, `vulkan:1`, or a device of another host such as
/// `iroh:<id>/0` or `ws://gpu-2:4433/0`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum DeviceName {
    /// `cpu`: the CPU of this host.
    Cpu,
    /// A GPU of this host, such as `cuda:0`: the GPU API, and the GPU's index among the GPUs that this API finds.
    ///
    /// Opening the first GPU changes [`BurnConfig`](burn::BurnConfig), so that burn fuses operations in the order in
    /// which the program issues them. `BurnConfig` stays unchanged if the program has set or used it before, or if a
    /// `burn.toml` sets `fusion.beam_search.max_blocks` to a value other than burn's default of 5. Opening the first
    /// GPU also makes burn run each matrix product in the whole program as a separate kernel. Builds with the feature
    /// `wgpu` alone have no operator fusion, and change nothing.
    Gpu {
        /// The GPU API, such as CUDA, that is used to access the GPU.
        api: GpuApi,
        /// Zero-based index of the GPU among the GPUs that this GPU API finds on this host.
        index: usize,
    },
    /// A device of another host, where `stageline serve` or a [`Server`](crate::remote) must run.
    Remote(RemoteName),
}

impl DeviceName {
    /// Parses a comma-separated list of device names, such as `cuda:0,cuda:1`. The entry `cuda:all` stands for all GPUs
    /// of this host that CUDA finds, `vulkan:all` for all that Vulkan finds, and so on. Software GPUs, such as Mesa's
    /// llvmpipe, are left out if the GPU API also finds hardware.
    ///
    /// # Errors
    /// Returns [`DeviceError`] in these cases:
    ///
    /// - The list is empty.
    /// - An entry is not a valid device name.
    /// - The search for the GPUs of an entry with `all` fails or finds no GPU.
    pub fn parse_list(list: &str) -> Result<Vec<Self>, DeviceError> {
        let names = list.split(',').map(str::trim).filter(|name| !name.is_empty());
        let devices = names.map(Self::parse_entry).collect::<Result<Vec<_>, _>>()?.concat();
        if devices.is_empty() { Err(DeviceError::None) } else { Ok(devices) }
    }

    /// Parses one entry of a list of device names. An entry such as `cuda:0` gives one name. `cuda:all` gives one name
    /// for each hardware GPU, or for each software GPU (such as llvmpipe) if there is no hardware GPU. Returns an error
    /// if the string is not a device name, or if no GPU is found.
    fn parse_entry(text: &str) -> Result<Vec<Self>, DeviceError> {
        let Some(api) = text.strip_suffix(":all").and_then(GpuApi::named) else { return Ok(vec![text.parse()?]) };
        let software = |found: Vec<Device>| found.iter().map(is_software).collect::<Vec<_>>();
        // Errors name the entry as the user wrote it.
        let device = text.to_owned();
        match api.devices().map(software) {
            Err(cause) => Err(DeviceError::of_search(device, cause)),
            Ok(software) if software.is_empty() => Err(DeviceError::NotFound { device, api, found: 0 }),
            Ok(software) => Ok(indices_of_all(&software).into_iter().map(|index| Self::Gpu { api, index }).collect()),
        }
    }

    /// Opens all named devices, and returns burn's devices in the order of the names.
    ///
    /// Devices of other hosts are connected in parallel, and this function waits for all of them. `token` is the secret
    /// string for hosts that require one.
    ///
    /// # Errors
    /// Returns [`DeviceErrors`] with one error for every device that cannot be used. If two names have the same iroh id
    /// and different addresses, returns the error for these two names and opens no device.
    pub fn open_all(names: &[Self], token: Option<&Token>) -> Result<Vec<Device>, DeviceErrors> {
        check_ids(names).map_err(|error| DeviceErrors(vec![error.into()]))?;
        let is_plain = |name: &&Self| matches!(name, Self::Remote(RemoteName { host: HostName::WebSocket { .. }, .. }));
        if let Some(name) = names.iter().find(is_plain) {
            tracing::warn!(
                "the connection to `{name}` is not encrypted: anyone who can read the network sees the token and all tensors"
            );
        }
        #[cfg(feature = "fused")]
        if names.iter().any(|name| matches!(name, Self::Gpu { .. })) {
            // burn's settings can be changed only before their first use, and connecting to another host uses them.
            crate::device::fusion::set_fusion();
        }
        let begun: Vec<_> = names.iter().map(|name| name.begin(token)).collect();
        let mut opened = Vec::with_capacity(names.len());
        let mut errors = Vec::new();
        for opening in begun {
            match opening() {
                Ok(device) => opened.push(device),
                // Several stages may be on one device, and its error is reported only once.
                Err(error) if errors.contains(&error) => {}
                Err(error) => errors.push(error),
            }
        }
        if errors.is_empty() { Ok(opened) } else { Err(DeviceErrors(errors)) }
    }

    /// Starts opening the named device, and returns a function that completes the opening. A device of another host is
    /// connected on its own thread, so that many can be connected in parallel; the returned function waits for it.
    /// `token` is the secret string that the other host may require.
    fn begin(&self, token: Option<&Token>) -> Box<dyn FnOnce() -> Result<Device, DeviceError>> {
        #[cfg(feature = "remote")]
        if let Self::Remote(name) = self {
            let (connecting, name) = (crate::device::remote::connect::begin(name, token), name.to_string());
            return Box::new(move || {
                let device = connecting.finish()?;
                opened::record(&device, name);
                Ok(device)
            });
        }
        let _ = token;
        let name = self.clone();
        Box::new(|| name.open())
    }

    /// Opens the named device, and returns it as a burn device. A device of another host can be opened in this way only
    /// if that host requires no token; otherwise use [`open_all`](Self::open_all).
    ///
    /// # Errors
    /// Returns [`DeviceError`] in these cases:
    ///
    /// - This build or this machine lacks the device, or the search for GPUs fails.
    /// - The device is a GPU that fails its test kernels.
    /// - The device belongs to another host that cannot be reached or requires a token.
    pub fn open(self) -> Result<Device, DeviceError> {
        let name = self.to_string();
        let device = self.open_unnamed()?;
        opened::record(&device, name);
        Ok(device)
    }

    /// Returns the name of an opened device, such as `cuda:0`. For a device that was opened without a name, returns
    /// `cpu` if it is the CPU of this host, and otherwise burn's debug output for the device.
    pub fn shown(device: &Device) -> String {
        opened::shown(device)
    }

    /// Whether a device is a GPU, either of this host or lent by another host's server. A GPU's kernels are compiled
    /// and tuned when they first run.
    pub fn is_gpu(device: &Device) -> bool {
        supported::is_gpu(device)
    }

    /// Whether this program was built with the optimisations for GPUs of this host: burn fuses operations, tunes
    /// kernels, and keeps compiled kernels for the next run. True with the feature `cuda`, `rocm`, `vulkan` or `metal`,
    /// and false with `wgpu` alone.
    pub const fn tunes_kernels() -> bool {
        cfg!(feature = "fused")
    }

    /// Opens the named device without recording the name for messages; the caller records it.
    fn open_unnamed(self) -> Result<Device, DeviceError> {
        let name = self.to_string();
        match self {
            #[cfg(feature = "remote")]
            Self::Remote(remote) => Ok(crate::device::remote::connect::begin(&remote, None).finish()?),
            #[cfg(not(feature = "remote"))]
            Self::Remote(_) => Err(DeviceError::NotBuilt { device: name, feature: "remote" }),
            #[cfg(feature = "flex")]
            Self::Cpu => Ok(Device::flex()),
            #[cfg(not(feature = "flex"))]
            Self::Cpu => Err(DeviceError::NotBuilt { device: name, feature: "flex" }),
            Self::Gpu { api, index } => {
                #[cfg(feature = "cuda")]
                if api == GpuApi::Cuda {
                    crate::device::nccl::load();
                }
                // The existing GPUs are listed first, because using a missing GPU would panic on another thread.
                let devices = match api.devices() {
                    Ok(devices) => devices,
                    Err(cause) => return Err(DeviceError::of_search(name, cause)),
                };
                let found = devices.len();
                let device = devices.into_iter().nth(index);
                let Some(device) = device else { return Err(DeviceError::NotFound { device: name, api, found }) };
                #[cfg(feature = "fused")]
                crate::device::fusion::set_fusion();
                match try_kernels(&device) {
                    Ok(()) => Ok(device),
                    Err(cause) => Err(DeviceError::Unusable { device: name, cause, advice: api.computes_with() }),
                }
            }
        }
    }
}

/// Checks that no two of the device names `names` have the same iroh id and different addresses.
fn check_ids(names: &[DeviceName]) -> Result<(), RemoteError> {
    let remote = names.iter().filter_map(|name| if let DeviceName::Remote(name) = name { Some(name) } else { None });
    let names: Vec<_> = remote.collect();
    let conflict = one_id_for_two_addresses(&names);
    let error =
        |names: [&RemoteName; 2]| RemoteError::OneIdForTwoAddresses { devices: Box::new(names.map(Clone::clone)) };
    conflict.map_or(Ok(()), |names| Err(error(names)))
}

impl FromStr for DeviceName {
    type Err = DeviceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let gpu = |(api, index): (&str, &str)| Some(Self::Gpu { api: GpuApi::named(api)?, index: digits(index)? });
        let unknown = || DeviceError::Unknown { text: text.to_owned() };
        match text {
            "cpu" => Ok(Self::Cpu),
            _ if text.contains('/') => text.parse().map(Self::Remote).map_err(|()| unknown()),
            _ => text.split_once(':').and_then(gpu).ok_or_else(unknown),
        }
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => write!(f, "cpu"),
            Self::Gpu { api, index } => write!(f, "{api}:{index}"),
            Self::Remote(name) => write!(f, "{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_names_are_parsed() {
        assert_eq!(DeviceName::parse_list("cpu"), Ok(vec![DeviceName::Cpu]));
        let gpu = |api, index| DeviceName::Gpu { api, index };
        let (cuda, vulkan) = (gpu(GpuApi::Cuda, 0), gpu(GpuApi::Vulkan, 11));
        assert_eq!(DeviceName::parse_list("cuda:0, vulkan:11,cpu"), Ok(vec![cuda, vulkan, DeviceName::Cpu]));
        for api in GpuApi::ALL {
            assert_eq!(format!("{api}:3").parse::<DeviceName>().unwrap().to_string(), format!("{api}:3"));
        }
    }

    #[test]
    fn a_text_that_is_not_a_device_is_reported() {
        assert_eq!(DeviceName::parse_list(" ,"), Err(DeviceError::None));
        for text in
            ["gpu", "cuda", "cuda:", "cuda:-1", "cuda:+1", "cuda:x", "ws://gpu/0", "iroh:00/0", "opencl:0", "cpu:all"]
        {
            assert_eq!(DeviceName::parse_list(text), Err(DeviceError::Unknown { text: text.to_owned() }));
        }
    }

    #[test]
    #[cfg(feature = "flex")]
    fn a_device_is_shown_by_its_name() {
        let cpu = DeviceName::Cpu.open().unwrap();
        assert_eq!(DeviceName::shown(&cpu.autodiff()), "cpu");
    }

    #[test]
    #[cfg(not(feature = "cuda"))]
    fn a_missing_backend_names_its_feature() {
        let message = DeviceName::Gpu { api: GpuApi::Cuda, index: 1 }.open().unwrap_err().to_string();
        assert!(message.contains("`cuda:1`") && message.contains("--features cuda"), "{message}");
        let message = DeviceName::parse_list("cuda:all").unwrap_err().to_string();
        assert!(message.contains("`cuda:all`") && message.contains("--features cuda"), "{message}");
    }
}
