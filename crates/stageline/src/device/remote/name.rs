//! Names of devices of other hosts ([`RemoteName`]), and the addresses of these hosts ([`HostName`]).

use std::fmt;
use std::str::FromStr;

/// The name of a device of another host: `iroh:<id>/0`, `iroh:<id>@10.0.0.2:4433/0`,
/// `iroh:<id>@https://relay.example/0`, or `ws://10.0.0.2:3000/0`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RemoteName {
    /// The address of the host that serves the device.
    pub host: HostName,
    /// Zero-based index of the device among the devices that its host serves.
    pub index: usize,
}

/// The address of a host that serves devices.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum HostName {
    /// A host that is identified by its public key; the connection is authenticated and encrypted
    /// ([Iroh](https://www.iroh.computer), QUIC).
    Iroh {
        /// The public key of a host that serves devices, as 64 hexadecimal digits.
        id: String,
        /// The way in which a client finds the host on the network: the public lookup service, a private relay server,
        /// or a given address.
        by: Reach,
    },
    /// A host that is identified by its address; the connection is neither authenticated nor encrypted.
    WebSocket {
        /// The network address of a host that serves devices, as `host:port`.
        address: String,
    },
}

/// The way in which a client finds a host on the network, given the host's public key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Reach {
    /// The client looks the host up by its key in the public lookup service of n0, Iroh's maker. If no direct
    /// connection is possible, it connects through n0's public relay servers.
    Public,
    /// The client reaches the host through the private relay server at this URL, which forwards the traffic if no
    /// direct connection is possible.
    Relay(String),
    /// The client connects directly to the host at this `host:port`, without Iroh's lookup service and without a relay
    /// server.
    Address(String),
}

/// Parses a number in a device's name, such as its index or a port: decimal digits without a sign.
pub fn digits<T: FromStr>(text: &str) -> Option<T> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

impl FromStr for RemoteName {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (host, index) = text.rsplit_once('/').ok_or(())?;
        Ok(Self { host: host.parse()?, index: digits(index).ok_or(())? })
    }
}

impl FromStr for HostName {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let is_address = |text: &str| {
            text.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && digits::<u16>(port).is_some())
        };
        let address = |text: &str| is_address(text).then(|| text.to_owned()).ok_or(());
        if let Some(text) = text.strip_prefix("ws://") {
            return Ok(Self::WebSocket { address: address(text)? });
        }
        let text = text.strip_prefix("iroh:").ok_or(())?;
        let (id, by) = match text.split_once('@') {
            None => (text, Reach::Public),
            Some((id, at)) if at.starts_with("https://") || at.starts_with("http://") => {
                (id, Reach::Relay(at.to_owned()))
            }
            Some((id, at)) => (id, Reach::Address(address(at)?)),
        };
        let is_key = id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_key.then(|| Self::Iroh { id: id.to_ascii_lowercase(), by }).ok_or(())
    }
}

/// Returns the first two of the device names `names` that have the same iroh id and different addresses; `None` if
/// there are no such two.
pub(crate) fn one_id_for_two_addresses<'a>(names: &[&'a RemoteName]) -> Option<[&'a RemoteName; 2]> {
    fn id(name: &RemoteName) -> Option<&str> {
        match &name.host {
            HostName::Iroh { id, .. } => Some(id),
            HostName::WebSocket { .. } => None,
        }
    }
    names.iter().enumerate().find_map(|(at, &one)| {
        let shared = id(one)?;
        let conflicts = |other: &&RemoteName| id(other) == Some(shared) && other.host != one.host;
        names[at + 1..].iter().copied().find(conflicts).map(|other| [one, other])
    })
}

impl fmt::Display for RemoteName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.host, self.index)
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WebSocket { address } => write!(f, "ws://{address}"),
            Self::Iroh { id, by: Reach::Public } => write!(f, "iroh:{id}"),
            Self::Iroh { id, by: Reach::Relay(at) | Reach::Address(at) } => write!(f, "iroh:{id}@{at}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

    #[test]
    fn names_survive_printing_and_parsing() {
        let id = ID.to_owned();
        let iroh = |by| HostName::Iroh { id: id.clone(), by };
        for (text, host, index) in [
            (format!("iroh:{ID}/0"), iroh(Reach::Public), 0),
            (format!("iroh:{ID}@10.0.0.2:4433/3"), iroh(Reach::Address("10.0.0.2:4433".into())), 3),
            (format!("iroh:{ID}@[::1]:4433/0"), iroh(Reach::Address("[::1]:4433".into())), 0),
            (format!("iroh:{ID}@https://relay.example/0"), iroh(Reach::Relay("https://relay.example".into())), 0),
            ("ws://gpu-2:3000/1".into(), HostName::WebSocket { address: "gpu-2:3000".into() }, 1),
        ] {
            let name = RemoteName { host, index };
            assert_eq!(text.parse(), Ok(name.clone()));
            assert_eq!(name.to_string(), text);
        }
    }

    #[test]
    fn an_id_with_two_addresses_is_found() {
        let other_id = ID.replace('0', "f");
        let names = [
            format!("iroh:{ID}@10.0.0.2:4433/0"),
            format!("iroh:{ID}@10.0.0.2:4433/1"),
            "ws://10.0.0.2:4433/0".to_owned(),
            "ws://10.0.0.3:4433/0".to_owned(),
            format!("iroh:{other_id}@10.0.0.2:4434/0"),
            format!("iroh:{}@10.0.0.3:4433/0", ID.to_ascii_uppercase()),
        ];
        let names = names.map(|name| name.parse::<RemoteName>().unwrap());
        let of = |count: usize| one_id_for_two_addresses(&names[..count].iter().collect::<Vec<_>>());
        assert_eq!(of(5), None);
        assert_eq!(of(6), Some([&names[0], &names[5]]));
    }

    #[test]
    fn incomplete_names_are_rejected() {
        let short = &ID[1..];
        for text in [
            "ws://gpu:3000".to_owned(),
            "ws://gpu/0".into(),
            "ws://:3000/0".into(),
            "ws://gpu:70000/0".into(),
            "wss://gpu:3000/0".into(),
            format!("iroh:{ID}"),
            format!("iroh:{short}/0"),
            format!("iroh:{short}g/0"),
            format!("iroh:{ID}@gpu/0"),
            format!("iroh:{ID}/-1"),
            format!("{ID}/0"),
        ] {
            assert_eq!(text.parse::<RemoteName>(), Err(()), "{text}");
        }
    }
}
