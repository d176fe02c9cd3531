//! Watches the other hosts while modules are copied to their devices, so that a lost host ends the build with an error.

use std::panic::resume_unwind;

use burn::tensor::Device;

use crate::device::remote::{LostHost, hosts_of, lost_hosts};
use crate::failure::build_error::BuildError;
use crate::failure::watchdog::Watchdog;
use crate::model::replica::ReplicaStage;
use crate::threads::{ends_within, spawn};

/// Runs `assemble`, which copies modules from and to the devices in `stages`, and returns its result. Ends with an
/// error instead of blocking if a host is lost.
///
/// If a device is on another host and there is a watchdog, `assemble` runs on a thread of its own. That thread then
/// waits until all copies have arrived on their devices. Meanwhile, the caller's thread asks all hosts whether they are
/// alive, at intervals of the watchdog's `floor` (the shortest time before a stall warning). A host counts as lost if
/// it does not answer two consecutive times, because one answer may be late while much is copied.
///
/// # Errors
/// Returns [`BuildError::HostsLost`] if a host is lost, and abandons the thread with the modules. Returns
/// [`BuildError::Assembly`] if the thread cannot be started.
///
/// # Panics
/// Panics if `assemble` panics and no host is lost.
pub(super) fn watched<T: Send + 'static>(
    stages: &[(ReplicaStage, Device)],
    watchdog: Option<Watchdog>,
    assemble: impl FnOnce() -> T + Send + 'static,
) -> Result<T, BuildError> {
    let Some(watchdog) = watchdog.filter(|_| !hosts_of(stages.iter().map(|(_, device)| device)).is_empty()) else {
        return Ok(assemble());
    };
    let log = tracing::dispatcher::get_default(Clone::clone);
    let devices: Vec<_> = stages.iter().map(|(_, device)| device.clone()).collect();
    let copy = move || {
        let assembled = tracing::dispatcher::with_default(&log, assemble);
        // A copy is only enqueued on a device. If the device's host is lost, the copy is lost without an error.
        let is_whole = devices.iter().all(|device| device.sync().is_ok());
        (assembled, is_whole)
    };
    let thread = spawn("assembly", copy).map_err(|cause| BuildError::Assembly { cause })?;
    let mut before = Vec::new();
    while !ends_within(&thread, watchdog.floor) {
        let now = lost(stages);
        let hosts: Vec<_> = now.iter().filter(|lost| before.contains(&lost.host)).cloned().collect();
        if !hosts.is_empty() {
            return Err(BuildError::HostsLost { hosts });
        }
        before = now.into_iter().map(|lost| lost.host).collect();
    }
    let copied = thread.join();
    if let Ok((assembled, true)) = copied {
        return Ok(assembled);
    }
    match (lost(stages), copied) {
        (hosts, _) if !hosts.is_empty() => Err(BuildError::HostsLost { hosts }),
        // No host is lost. If a device has failed, its first use returns the error.
        (_, Ok((assembled, _))) => Ok(assembled),
        (_, Err(panic)) => resume_unwind(panic),
    }
}

/// Returns the remote hosts of `stages` that do not answer a liveness check or whose server was restarted.
fn lost(stages: &[(ReplicaStage, Device)]) -> Vec<LostHost> {
    lost_hosts(stages.iter().map(|(stage, device)| (*stage, device)))
}
