//! Tells, from a log, how the workers of the run were placed on devices: whether workers shared one, and whether the
//! devices differ.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::run_log::RunLog;

impl RunLog {
    /// Returns the names of the devices that the run's setting `--device` listed, such as `cuda:0`. The list is empty
    /// if the log does not have the setting.
    pub fn devices(&self) -> Vec<&str> {
        let list = self.run.configuration.get("device").and_then(Value::as_str);
        let names = list.into_iter().flat_map(|list| list.split(',')).map(str::trim);
        names.filter(|name| !name.is_empty()).collect()
    }

    /// Whether workers of the run shared a device other than the host's CPU. The log then does not show how fast this
    /// device would be with another number of workers. `cuda:all` gives each worker a device of its own.
    pub fn shares_a_device(&self) -> bool {
        let (devices, workers) = (self.devices(), self.plan.workers() as u128 * self.run.replicas.max(1) as u128);
        if devices.iter().any(|device| device.ends_with(":all")) {
            return false;
        }
        // Consecutive workers share a device, as evenly as possible: worker w has the entry w * entries / workers.
        let entries = devices.len() as u128;
        let first_worker = |entry: usize| (entry as u128 * workers).div_ceil(entries);
        let mut workers_of: HashMap<&str, u128> = HashMap::new();
        for (entry, device) in devices.iter().enumerate().filter(|(_, device)| **device != "cpu") {
            *workers_of.entry(device).or_default() += first_worker(entry + 1) - first_worker(entry);
        }
        workers_of.values().any(|workers| *workers > 1)
    }

    /// Whether the logged times do not apply to a run with `workers` workers in each replica. This is so if the logged
    /// run had another number of workers, and its workers shared a device ([`shares_a_device`](Self::shares_a_device)).
    pub fn shares_another(&self, workers: usize) -> bool {
        workers != self.plan.workers() && self.shares_a_device()
    }

    /// Whether the run's devices are of different kinds, such as `cpu` and `cuda:0`, or have different speeds: the
    /// setting `--speeds` lists different values, or is `measured`. The log then has the time of each layer only on the
    /// device that ran it.
    pub fn has_unequal_devices(&self) -> bool {
        let kinds: HashSet<_> = self.devices().iter().filter_map(|device| device.split(':').next()).collect();
        let speeds = self.run.configuration.get("speeds");
        let is_equal =
            |list: &str| list.split(',').map(str::trim).collect::<HashSet<_>>().len() == 1 && list != "measured";
        let has_speeds = speeds.is_some_and(|speeds| match speeds {
            Value::String(list) => !is_equal(list),
            Value::Array(list) => list.iter().any(|speed| *speed != list[0]),
            _ => false,
        });
        kinds.len() > 1 || has_speeds
    }
}
