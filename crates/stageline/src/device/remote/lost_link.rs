//! Detection of broken network links ([`LostLink`]) between hosts that still answer this program.

use std::fmt;

use burn::tensor::Device;

use super::name::HostName;

/// A broken network link between two hosts: no tensor arrives from one host at the other, although both hosts answer
/// this program.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LostLink {
    /// The sending host of the broken network link. Its tensors do not arrive at the host `to`.
    pub from: HostName,
    /// The receiving host of the broken network link. No tensor from the host `from` arrives there.
    pub to: HostName,
    /// The error message of a test transfer over the broken network link.
    pub cause: String,
}

impl fmt::Display for LostLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, to, cause } = self;
        write!(f, "no tensor gets from `{from}` to `{to}`: {cause}")
    }
}

/// Tests the network links between the hosts of neighbouring stages, in both directions and in parallel, and returns
/// the broken ones. `chains` lists, for each replica, the devices of its stages in stage order.
#[cfg(feature = "remote")]
pub(crate) fn lost_links<'a>(chains: impl Iterator<Item = Vec<&'a Device>>) -> Vec<LostLink> {
    use std::sync::Arc;

    use super::connected::{self, Connected};
    use super::liveness::LIVENESS_TIMEOUT;
    use super::route::goes_through_this_host;
    use super::with_time_limit::Pending;

    let mut links: Vec<[Arc<Connected>; 2]> = Vec::new();
    for devices in chains {
        for pair in devices.windows(2).filter(|pair| !goes_through_this_host(pair[0], pair[1])) {
            let (Some(up), Some(down)) = (connected::find(pair[0]), connected::find(pair[1])) else { continue };
            for link in [[&up, &down], [&down, &up]].map(|link| link.map(Arc::clone)) {
                let hosts = |link: &[Arc<Connected>; 2]| [link[0].name.host.clone(), link[1].name.host.clone()];
                if up.name.host != down.name.host && links.iter().all(|known| hosts(known) != hosts(&link)) {
                    links.push(link);
                }
            }
        }
    }
    let tried = links.into_iter().map(|[from, to]| {
        let hosts = [&from, &to].map(|end| end.name.host.clone());
        (hosts, Pending::start(move || try_transfer(&from, &to)))
    });
    let tried: Vec<_> = tried.collect();
    let is_lost = |([from, to], arrived): ([HostName; 2], Pending<Result<(), String>>)| {
        let silent = |_| Err(format!("nothing arrived within {} s", LIVENESS_TIMEOUT.as_secs()));
        let arrived = arrived.within(LIVENESS_TIMEOUT).unwrap_or_else(silent);
        Some(LostLink { from, to, cause: arrived.err()? })
    };
    tried.into_iter().filter_map(is_lost).collect()
}

/// Tests the network link between two devices of other hosts: moves a tensor of one element from `from` to `to`, and
/// reads it there. Uses new sessions (connections), because the training run's sessions may be blocked.
#[cfg(feature = "remote")]
fn try_transfer(from: &super::connected::Connected, to: &super::connected::Connected) -> Result<(), String> {
    use burn::tensor::Tensor;

    use super::connect::open_new_session;

    let session = |end| open_new_session(end, "does it arrive").map_err(|error| error.to_string());
    let there = Tensor::<1>::ones([1], &session(from)?).to_device(&session(to)?);
    there.try_into_data().map(drop).map_err(|error| error.to_string())
}

#[cfg(not(feature = "remote"))]
pub(crate) fn lost_links<'a>(_: impl Iterator<Item = Vec<&'a Device>>) -> Vec<LostLink> {
    Vec::new()
}
