//! The memory that devices have for a training job.

use burn::tensor::Device;
use stageline::{DeviceMemory, DeviceName};
use sysinfo::System;

use crate::settings::job::Job;
use crate::settings::running::distinct;

/// Returns the memory of `device` available to the job, in bytes; `None` if unknown.
/// - With `--memory`: the flag's value.
/// - This host's CPU: the free memory plus `in_use`, the bytes that the job has already allocated on the host.
/// - A GPU: its total memory.
pub fn memory_of(device: &Device, job: &Job, in_use: u64) -> Option<u64> {
    match job.running.memory {
        Some(memory) => Some(memory),
        None if is_host(device) => Some(free_memory().saturating_add(in_use)),
        None => DeviceMemory::of(device)?.total,
    }
}

/// Returns this host's free memory in bytes, limited by its cgroup.
fn free_memory() -> u64 {
    let mut system = System::new();
    system.refresh_memory();
    let free_in_cgroup = system.cgroup_limits().map_or(u64::MAX, |group| group.total_memory.saturating_sub(group.rss));
    system.available_memory().min(free_in_cgroup)
}

/// Whether a device is the CPU of this host.
pub fn is_host(device: &Device) -> bool {
    DeviceName::Cpu.open().is_ok_and(|host| host == *device)
}

/// Returns the total memory of `devices`, in bytes; `None` if that of any device is unknown. `of` returns one device's
/// memory. A device that is listed several times counts once.
pub fn memory_of_all(devices: &[Device], of: impl Fn(&Device) -> Option<u64>) -> Option<u64> {
    distinct(devices).map(of).try_fold(0_u64, |sum, memory| Some(sum.saturating_add(memory?)))
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_is_listed_twice_counts_once() {
        let cpu = DeviceName::Cpu.open().unwrap();
        let devices = [cpu.clone(), cpu];
        assert_eq!(memory_of_all(&devices, |_| Some(7)), Some(7));
        assert_eq!(memory_of_all(&devices, |_| None), None);
    }
}
