//! What the environment says of the devices.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// From `STAGELINE_EMULATED_GPU`, such as `devices=4,memory=150754820096,ledger=asked.json`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How many there are.
    pub devices: i32,
    /// Of each, in bytes.
    pub memory: u64,
    /// The version of CUDA that the driver supports, as NVIDIA writes it: 12080 is 12.8.
    pub version: i32,
    /// What `cuInit` answers: 0, or an error's number.
    pub init: i32,
    /// Which launch fails, if one does, counted from 1, and with what.
    pub fault: Option<(u64, i32)>,
    /// Whether the host waits in a send or a receive until its peer has posted the other one.
    pub meeting_hosts: bool,
    /// How long nothing may move while a host waits, before that is a deadlock.
    pub patience: Duration,
    /// Whether kernels are run, and memory is there.
    pub computes: bool,
    /// Where what was asked is written at the end.
    pub ledger: Option<PathBuf>,
    /// Where every launch is written at the end, in their order.
    pub launches: Option<PathBuf>,
    /// A folder for the kernels, as PTX.
    pub kernels: Option<PathBuf>,
}

impl Settings {
    /// # Errors
    /// Names what cannot be read.
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
            meeting_hosts: number(&mut given, "meeting", 0)? != 0,
            patience: Duration::from_secs(number(&mut given, "patience", 60)?),
            computes: number(&mut given, "computes", 0)? != 0,
            ledger: given.remove("ledger").map(PathBuf::from),
            launches: given.remove("launches").map(PathBuf::from),
            kernels: given.remove("kernels").map(PathBuf::from),
        };
        match given.into_keys().next() {
            Some(name) => Err(format!("`{name}` is not known")),
            None => Ok(settings),
        }
    }
}

fn number<N: std::str::FromStr>(given: &mut BTreeMap<&str, &str>, name: &str, otherwise: N) -> Result<N, String> {
    match given.remove(name) {
        Some(value) => value.parse().map_err(|_| format!("`{name}={value}` is no number")),
        None => Ok(otherwise),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_and_what_is_unknown_is_named() {
        let settings = Settings::read("devices=4,fault=9,error=2,ledger=a/b.json").unwrap();
        assert_eq!((settings.devices, settings.fault, settings.init), (4, Some((9, 2)), 0));
        assert_eq!(settings.ledger, Some(PathBuf::from("a/b.json")));
        assert!(Settings::read("device=4").unwrap_err().contains("`device`"));
        assert!(Settings::read("devices=x").unwrap_err().contains("`devices=x`"));
    }
}
