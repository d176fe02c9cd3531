//! Ways between hosts on which no tensor arrives.

use std::fmt;

use burn::tensor::Device;

use super::name::HostName;

/// A way from one host to another on which no tensor arrives, though both answer this program.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LostWay {
    /// From where,
    pub from: HostName,
    /// and where to.
    pub to: HostName,
    /// What came instead.
    pub cause: String,
}

impl fmt::Display for LostWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, to, cause } = self;
        write!(f, "no tensor gets from `{from}` to `{to}`: {cause}")
    }
}

/// Those between neighbours, each of a chain of devices, tried anew and all at once.
#[cfg(feature = "remote")]
pub(crate) fn lost_ways<'a>(chains: impl Iterator<Item = Vec<&'a Device>>) -> Vec<LostWay> {
    use std::sync::Arc;

    use super::ask::STILL_THERE;
    use super::connected::{self, Connected};
    use super::pending::Pending;
    use super::route::by_this_host;

    let mut ways: Vec<[Arc<Connected>; 2]> = Vec::new();
    for devices in chains {
        for pair in devices.windows(2).filter(|pair| !by_this_host(pair[0], pair[1])) {
            let (Some(up), Some(down)) = (connected::find(pair[0]), connected::find(pair[1])) else { continue };
            for way in [[&up, &down], [&down, &up]].map(|way| way.map(Arc::clone)) {
                let hosts = |way: &[Arc<Connected>; 2]| [way[0].name.host.clone(), way[1].name.host.clone()];
                if up.name.host != down.name.host && ways.iter().all(|known| hosts(known) != hosts(&way)) {
                    ways.push(way);
                }
            }
        }
    }
    let tried = ways.into_iter().map(|[from, to]| {
        let hosts = [&from, &to].map(|end| end.name.host.clone());
        (hosts, Pending::of(move || arrives(&from, &to)))
    });
    let tried: Vec<_> = tried.collect();
    let is_lost = |([from, to], arrived): ([HostName; 2], Pending<Result<(), String>>)| {
        let silent = |_| Err(format!("nothing came for {} s", STILL_THERE.as_secs()));
        let arrived = arrived.within(STILL_THERE).unwrap_or_else(silent);
        Some(LostWay { from, to, cause: arrived.err()? })
    };
    tried.into_iter().filter_map(is_lost).collect()
}

/// In sessions of its own: those of the devices may wait for what does not come.
#[cfg(feature = "remote")]
fn arrives(from: &super::connected::Connected, to: &super::connected::Connected) -> Result<(), String> {
    use burn::tensor::Tensor;

    use super::connect::open_anew;

    let session = |end| open_anew(end, "does it arrive").map_err(|error| error.to_string());
    let there = Tensor::<1>::ones([1], &session(from)?).to_device(&session(to)?);
    there.try_into_data().map(drop).map_err(|error| error.to_string())
}

#[cfg(not(feature = "remote"))]
pub(crate) fn lost_ways<'a>(_: impl Iterator<Item = Vec<&'a Device>>) -> Vec<LostWay> {
    Vec::new()
}
