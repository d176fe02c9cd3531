//! The settings of the emulated GPUs, which are read from an environment variable.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// The settings of the emulated GPUs, given in the environment variable `STAGELINE_EMULATED_GPU`, such as
/// `devices=4,memory=150754820096,ledger=ledger.json`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The number of emulated devices (GPUs).
    pub devices: i32,
    /// The memory of each emulated device, in bytes.
    pub memory: u64,
    /// The CUDA version that the emulated driver supports, in NVIDIA's notation: 12080 is 12.8.
    pub version: i32,
    /// The result of `cuInit`: 0 for success, or a CUDA error number.
    pub init: i32,
    /// The kernel launch that fails: the launch's number, counted from 1, and its CUDA error number. `None` if no
    /// launch fails.
    pub fault: Option<(u64, i32)>,
    /// The setting `meeting`: whether NCCL calls wait for their peer. If so, a send blocks its host thread until the
    /// peer calls the matching receive, and vice versa.
    pub hosts_wait_for_peers: bool,
    /// The time without progress after which a waiting host thread counts as deadlocked. The setting is given in
    /// seconds.
    pub patience: Duration,
    /// Whether the emulation runs kernels on the CPU and stores the contents of device memory.
    pub computes: bool,
    /// The file to which the emulation writes the ledger (the counts of all CUDA and NCCL calls) at exit.
    pub ledger: Option<PathBuf>,
    /// The file to which the emulation writes the list of all kernel launches, in order, at exit.
    pub launches: Option<PathBuf>,
    /// The folder to which the emulation writes the PTX of every kernel that the program loads.
    pub kernels: Option<PathBuf>,
}

impl Settings {
    /// Parses settings of the form `name=value,name=value`.
    ///
    /// # Errors
    /// Returns a message that quotes the part that has no value, is not a number or is not a setting.
    pub fn read(text: &str) -> Result<Self, String> {
        let mut given = BTreeMap::new();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').ok_or(format!("`{part}` has no value"))?;
            given.insert(name, value);
        }
        let settings = Self {
            devices: number(&mut given, "devices", 1)?,
            memory: number(&mut given, "memory", 150_754_820_096)?,
            version: number(&mut given, "version", 12_080)?,
            init: number(&mut given, "init", 0)?,
            fault: match number(&mut given, "fault", 0)? {
                0 => None,
                launch => Some((launch, number(&mut given, "error", 700)?)),
            },
            hosts_wait_for_peers: number(&mut given, "meeting", 0)? != 0,
            patience: Duration::from_secs(number(&mut given, "patience", 60)?),
            computes: number(&mut given, "computes", 0)? != 0,
            ledger: given.remove("ledger").map(PathBuf::from),
            launches: given.remove("launches").map(PathBuf::from),
            kernels: given.remove("kernels").map(PathBuf::from),
        };
        match given.into_keys().next() {
            Some(name) => Err(format!("`{name}` is not a setting")),
            None => Ok(settings),
        }
    }
}

fn number<N: std::str::FromStr>(given: &mut BTreeMap<&str, &str>, name: &str, otherwise: N) -> Result<N, String> {
    match given.remove(name) {
        Some(value) => value.parse().map_err(|_| format!("`{name}={value}` is not a number")),
        None => Ok(otherwise),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_and_errors_name_the_setting() {
        let settings = Settings::read("devices=4,fault=9,error=2,ledger=a/b.json").unwrap();
        assert_eq!((settings.devices, settings.fault, settings.init), (4, Some((9, 2)), 0));
        assert_eq!(settings.ledger, Some(PathBuf::from("a/b.json")));
        assert!(Settings::read("device=4").unwrap_err().contains("`device`"));
        assert!(Settings::read("devices=x").unwrap_err().contains("`devices=x`"));
    }
}
