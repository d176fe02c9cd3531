//! Hosts that no longer answer.

use std::fmt;

use burn::tensor::Device;

use super::name::HostName;

/// A host that no longer answers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LostHost {
    /// The host.
    pub host: HostName,
    /// The stages that are on its devices.
    pub stages: Vec<usize>,
    /// What came instead of an answer.
    pub cause: String,
}

impl fmt::Display for LostHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, stages, cause } = self;
        let each: Vec<_> = stages.iter().map(usize::to_string).collect();
        write!(
            f,
            "the host of stage{} {} (`{host}`) is lost: {cause}",
            if each.len() == 1 { "" } else { "s" },
            each.join(", ")
        )
    }
}

/// The hosts of stages on these devices that do not answer any more, asked anew and all at once.
#[cfg(feature = "remote")]
pub(crate) fn lost_hosts<'a>(devices: impl Iterator<Item = &'a Device>) -> Vec<LostHost> {
    use super::connected;

    let mut hosts: Vec<(connected::Connected, Vec<usize>)> = Vec::new();
    for (stage, device) in devices.enumerate() {
        let Some(connected) = connected::find(device) else { continue };
        match hosts.iter_mut().find(|(known, _)| known.name.host == connected.name.host) {
            Some((_, stages)) => stages.push(stage),
            None => hosts.push((connected, vec![stage])),
        }
    }
    let asked: Vec<_> = hosts.into_iter().map(|(connected, stages)| (super::connect::ask(connected), stages)).collect();
    let silent = |(asked, stages): (super::connect::Asked, _)| {
        let (host, answer) = asked.answer();
        Some(LostHost { host, stages, cause: answer.err()? })
    };
    asked.into_iter().filter_map(silent).collect()
}

#[cfg(not(feature = "remote"))]
pub(crate) fn lost_hosts<'a>(_: impl Iterator<Item = &'a Device>) -> Vec<LostHost> {
    Vec::new()
}
