//! Detection of lost hosts ([`LostHost`]): liveness checks of the hosts that run stages.

use std::fmt;
use std::time::Duration;

use burn::tensor::Device;

use super::name::HostName;
use crate::model::replica::ReplicaStage;

/// A lost host: a host that runs stages, and that no longer answers or whose server was restarted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LostHost {
    /// The address of the lost host.
    pub host: HostName,
    /// The stages that run on devices of the lost host, each with its data-parallel replica.
    pub stages: Vec<ReplicaStage>,
    /// The error message of the liveness check, which says why the host counts as lost. A liveness check is a request
    /// that a working server answers within 5 s.
    pub cause: String,
}

impl fmt::Display for LostHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, stages, cause } = self;
        let each: Vec<_> = stages.iter().map(|lost| lost.replica.stage(lost.stage)).collect();
        write!(f, "the host of {} (`{host}`) is lost: {cause}", each.join(", "))
    }
}

/// Checks in parallel whether the other hosts that run stages are alive. Returns the hosts that do not answer or whose
/// server was restarted. `stages` has every stage with its device.
#[cfg(feature = "remote")]
pub(crate) fn lost_hosts<'a>(stages: impl Iterator<Item = (ReplicaStage, &'a Device)>) -> Vec<LostHost> {
    use std::sync::Arc;

    use super::connected;
    use super::liveness::{LivenessCheck, check_liveness};

    let mut hosts: Vec<(Arc<connected::Connected>, Vec<ReplicaStage>)> = Vec::new();
    for (stage, device) in stages {
        let Some(connected) = connected::find(device) else { continue };
        match hosts.iter_mut().find(|(known, _)| known.name.host == connected.name.host) {
            Some((_, stages)) => stages.push(stage),
            None => hosts.push((connected, vec![stage])),
        }
    }
    let checks: Vec<_> = hosts.into_iter().map(|(connected, stages)| (check_liveness(connected), stages)).collect();
    let lost = |(check, stages): (LivenessCheck, _)| {
        let (host, answer) = check.finish();
        Some(LostHost { host, stages, cause: answer.err()? })
    };
    checks.into_iter().filter_map(lost).collect()
}

/// Returns the addresses of the other hosts that own the given devices, each host once. Devices of this host are left
/// out.
#[cfg(feature = "remote")]
pub(crate) fn hosts_of<'a>(devices: impl Iterator<Item = &'a Device>) -> Vec<HostName> {
    let mut hosts = Vec::new();
    for host in devices.filter_map(super::connected::find).map(|connected| connected.name.host.clone()) {
        if !hosts.contains(&host) {
            hosts.push(host);
        }
    }
    hosts
}

#[cfg(not(feature = "remote"))]
pub(crate) fn hosts_of<'a>(_: impl Iterator<Item = &'a Device>) -> Vec<HostName> {
    Vec::new()
}

/// Returns the numbers of those devices of other hosts that do not answer within `patience`, for example because they
/// wait for a tensor that never arrives. The tensors of these devices can no longer be read. `devices` lists each
/// device with a number that the caller chooses.
#[cfg(feature = "remote")]
pub(crate) fn stuck<'a>(devices: impl Iterator<Item = (usize, &'a Device)>, patience: Duration) -> Vec<usize> {
    use std::sync::mpsc::RecvTimeoutError;

    use super::with_time_limit::Pending;

    let asked = |(number, device): (usize, &Device)| {
        let device = super::connected::remote(device).map(|_| device.clone())?;
        // Only a missing answer counts here; an error of the device is reported when its parameters are read.
        Some((number, Pending::start(move || device.sync().is_ok())))
    };
    let asked: Vec<_> = devices.filter_map(asked).collect();
    let is_stuck = |answer: Pending<bool>| answer.within(patience) == Err(RecvTimeoutError::Timeout);
    asked.into_iter().filter_map(|(number, answer)| is_stuck(answer).then_some(number)).collect()
}

#[cfg(not(feature = "remote"))]
pub(crate) fn stuck<'a>(_: impl Iterator<Item = (usize, &'a Device)>, _: Duration) -> Vec<usize> {
    Vec::new()
}

#[cfg(not(feature = "remote"))]
pub(crate) fn lost_hosts<'a>(_: impl Iterator<Item = (ReplicaStage, &'a Device)>) -> Vec<LostHost> {
    Vec::new()
}
