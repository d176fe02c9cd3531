//! Watches the other hosts while modules are copied to their devices, so that a lost host ends the build with an error.

use std::panic::resume_unwind;

use burn::tensor::Device;

use crate::device::remote::{LostHost, hosts_of, lost_hosts};
use crate::failure::build_error::BuildError;
use crate::failure::watchdog::Watchdog;
use crate::model::replica::{Replica, ReplicaStage};
use crate::threads::{ends_within, spawn};

/// Runs `assemble`, which copies modules to `devices` (one list for each replica), and returns its result.
///
/// If a device is on another host and there is a watchdog, `assemble` runs on a thread of its own. Each time the
/// watchdog's floor has passed, all hosts are asked whether they are alive.
///
/// # Errors
/// Returns [`BuildError::HostsLost`] if a host is lost, and leaves the thread with the modules behind. Returns
/// [`BuildError::Assembly`] if the thread cannot be started.
///
/// # Panics
/// Panics if `assemble` panics and no host is lost.
pub(super) fn watched<T: Send + 'static>(
    devices: &[Vec<Device>],
    watchdog: Option<Watchdog>,
    assemble: impl FnOnce() -> T + Send + 'static,
) -> Result<T, BuildError> {
    let Some(watchdog) = watchdog.filter(|_| !hosts_of(devices.iter().flatten()).is_empty()) else {
        return Ok(assemble());
    };
    let log = tracing::dispatcher::get_default(Clone::clone);
    let thread = spawn("assembly", move || tracing::dispatcher::with_default(&log, assemble));
    let thread = thread.map_err(|cause| BuildError::Assembly { cause })?;
    while !ends_within(&thread, watchdog.floor) {
        let hosts = lost(devices);
        if !hosts.is_empty() {
            return Err(BuildError::HostsLost { hosts });
        }
    }
    thread.join().or_else(|panic| match lost(devices) {
        none if none.is_empty() => resume_unwind(panic),
        hosts => Err(BuildError::HostsLost { hosts }),
    })
}

/// Asks all other hosts of `devices` whether they are alive, and returns those that are lost.
fn lost(devices: &[Vec<Device>]) -> Vec<LostHost> {
    let of_replica = |(replica, devices): (Replica, &'_ Vec<Device>)| -> Vec<(ReplicaStage, Device)> {
        let stages = devices.iter().cloned().enumerate();
        stages.map(|(stage, device)| (ReplicaStage { replica, stage }, device)).collect()
    };
    let stages: Vec<_> = Replica::all(devices.len()).zip(devices).flat_map(of_replica).collect();
    lost_hosts(stages.iter().map(|(stage, device)| (*stage, device)))
}
