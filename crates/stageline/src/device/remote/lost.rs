//! Hosts that no longer answer.

use std::fmt;
use std::time::Duration;

use burn::tensor::Device;

use super::name::HostName;
use crate::model::replica::Replica;

/// A host that no longer answers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LostHost {
    /// The host.
    pub host: HostName,
    /// The stages that are on its devices, each with its replica.
    pub stages: Vec<(Replica, usize)>,
    /// What came instead of an answer.
    pub cause: String,
}

impl fmt::Display for LostHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, stages, cause } = self;
        let each: Vec<_> = stages.iter().map(|(replica, stage)| replica.stage(*stage)).collect();
        write!(f, "the host of {} (`{host}`) is lost: {cause}", each.join(", "))
    }
}

/// The hosts of stages on these devices that do not answer any more, asked anew and all at once.
#[cfg(feature = "remote")]
pub(crate) fn lost_hosts<'a>(stages: impl Iterator<Item = (Replica, usize, &'a Device)>) -> Vec<LostHost> {
    use std::sync::Arc;

    use super::connected;

    type Stages = Vec<(Replica, usize)>;
    let mut hosts: Vec<(Arc<connected::Connected>, Stages)> = Vec::new();
    for (replica, stage, device) in stages {
        let Some(connected) = connected::find(device) else { continue };
        match hosts.iter_mut().find(|(known, _)| known.name.host == connected.name.host) {
            Some((_, stages)) => stages.push((replica, stage)),
            None => hosts.push((connected, vec![(replica, stage)])),
        }
    }
    let asked: Vec<_> = hosts.into_iter().map(|(connected, stages)| (super::ask::ask(connected), stages)).collect();
    let silent = |(asked, stages): (super::ask::Asked, _)| {
        let (host, answer) = asked.answer();
        Some(LostHost { host, stages, cause: answer.err()? })
    };
    asked.into_iter().filter_map(silent).collect()
}

/// The other hosts of these devices, each once.
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

/// The stages on devices of other hosts of whose sessions nothing can be had any more: they wait for a tensor that does not come.
#[cfg(feature = "remote")]
pub(crate) fn stuck<'a>(stages: impl Iterator<Item = (usize, &'a Device)>, patience: Duration) -> Vec<usize> {
    use std::sync::mpsc::RecvTimeoutError;

    use super::pending::Pending;

    let asked = |(stage, device): (usize, &Device)| {
        let device = super::connected::remote(device).map(|_| device.clone())?;
        // What is otherwise wrong with it shows when something is read.
        Some((stage, Pending::of(move || device.sync().is_ok())))
    };
    let asked: Vec<_> = stages.filter_map(asked).collect();
    let is_stuck = |answer: Pending<bool>| answer.within(patience) == Err(RecvTimeoutError::Timeout);
    asked.into_iter().filter_map(|(stage, answer)| is_stuck(answer).then_some(stage)).collect()
}

#[cfg(not(feature = "remote"))]
pub(crate) fn stuck<'a>(_: impl Iterator<Item = (usize, &'a Device)>, _: Duration) -> Vec<usize> {
    Vec::new()
}

#[cfg(not(feature = "remote"))]
pub(crate) fn lost_hosts<'a>(_: impl Iterator<Item = (Replica, usize, &'a Device)>) -> Vec<LostHost> {
    Vec::new()
}
