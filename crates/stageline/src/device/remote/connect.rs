//! Devices of other hosts are connected before anything is trained, all at once.

use std::net::ToSocketAddrs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use burn::remote::{ConnectError, IrohHost, IrohRelays, RemoteHost};
use burn::tensor::Device;

use super::connected::{self, Connected, Lane};
use super::error::RemoteError;
use super::greeting::{self, Greeting};
use super::name::{HostName, Reach, RemoteName};
use super::pending::Pending;
use super::token::Token;

/// How long a host may take to answer: what is unreachable says so after 20 to 30 s, if at all.
const PATIENCE: Duration = Duration::from_secs(40);

/// Begins to connect a device; its result comes when the device has answered.
pub(crate) fn begin(name: &RemoteName, token: Option<&Token>) -> Opening<Device> {
    let (connected, token) = (name.clone(), token.cloned());
    Opening::of(name, move || connect(&connected, token))
}

/// Sessions that are being opened with a device.
pub(crate) struct Opening<T> {
    name: RemoteName,
    pending: Pending<Result<T, RemoteError>>,
}

impl<T: Send + 'static> Opening<T> {
    fn of(name: &RemoteName, open: impl FnOnce() -> Result<T, RemoteError> + Send + 'static) -> Self {
        Self { name: name.clone(), pending: Pending::of(open) }
    }

    pub(crate) fn finish(self) -> Result<T, RemoteError> {
        let silent = |why| {
            Err(match why {
                RecvTimeoutError::Timeout => {
                    unreachable(&self.name, format!("it did not answer for {} s", PATIENCE.as_secs()))
                }
                RecvTimeoutError::Disconnected => broken(&self.name, "the thread that opens it panicked".to_owned()),
            })
        };
        self.pending.within(PATIENCE).unwrap_or_else(silent)
    }
}

fn connect(name: &RemoteName, token: Option<Token>) -> Result<Device, RemoteError> {
    let device = open(name, token.as_ref(), "")?;
    let no_stageline = |cause| RemoteError::NoStageline { device: name.clone(), cause };
    let greeting = greeting::of(&device).map_err(no_stageline)?;
    if greeting.version != Greeting::OURS.version {
        let [theirs, ours] = [greeting, Greeting::OURS].map(|greeting| greeting.to_string());
        return Err(RemoteError::OtherVersion { device: name.clone(), theirs, ours });
    }
    let process = greeting::process(&device).map_err(no_stageline)?;
    let remote = connected::remote(&device).expect("it was connected as one of another host");
    let (has_kernels, asking, transfers) = (greeting.has_kernels, Default::default(), Default::default());
    connected::remember(Connected {
        device: remote,
        name: name.clone(),
        token,
        has_kernels,
        process,
        asking,
        transfers,
    });
    Ok(device)
}

/// The sessions for transfers of a device in one way, which are opened now if they are not.
pub(super) fn sessions(connected: &Connected, way: Lane) -> Result<&[Device], RemoteError> {
    let Connected { name, token, transfers, .. } = connected;
    let sessions = &transfers[way as usize];
    if sessions.get().is_none() {
        let (opened, token) = (name.clone(), token.clone());
        let open_one = move |lane| open(&opened, token.as_ref(), &format!("{way:?} {lane}"));
        let opened = Opening::of(name, move || (0..way.lanes()).map(open_one).collect()).finish();
        // Somebody else has opened the same meanwhile, perhaps.
        let _ = sessions.set(opened?);
    }
    Ok(sessions.get().expect("they were opened"))
}

/// Opens a session for a purpose: one session each.
fn open(name: &RemoteName, token: Option<&Token>, purpose: &str) -> Result<Device, RemoteError> {
    let host = host(name)?.with_credential(Token::for_purpose(token, purpose));
    let options = Device::remote_options(&host).device_index(name.index);
    options.init().map_err(|error| refusal(name, &error))
}

/// Opens a session that nobody else has, for a question: one that was asked before may never be answered.
pub(super) fn open_anew(connected: &Connected, question: &str) -> Result<Device, RemoteError> {
    static OPENED: AtomicUsize = AtomicUsize::new(0);
    let number = OPENED.fetch_add(1, Ordering::Relaxed);
    open(&connected.name, connected.token.as_ref(), &format!("{question} {number}"))
}

fn host(name: &RemoteName) -> Result<RemoteHost, RemoteError> {
    let (id, by) = match &name.host {
        HostName::WebSocket { address } => return Ok(RemoteHost::websocket(&format!("ws://{address}"))),
        HostName::Iroh { id, by } => (id, by),
    };
    let no_key =
        |_| unreachable(name, "the id is no public key; copy it from what `stageline serve` prints".to_owned());
    let host = IrohHost::new(id.parse::<burn::remote::EndpointId>().map_err(no_key)?);
    let host = match by {
        Reach::Public => host,
        Reach::Relay(url) => {
            let url = url.parse().map_err(|error| unreachable(name, format!("`{url}` is no relay: {error}")))?;
            host.with_relays(IrohRelays::Private { url })
        }
        Reach::Address(address) => {
            let unknown = |error| unreachable(name, format!("`{address}` cannot be looked up: {error}"));
            let addresses = address.to_socket_addrs().map_err(unknown)?;
            addresses.fold(host.with_relays(IrohRelays::Disabled), IrohHost::with_address)
        }
    };
    Ok(RemoteHost::iroh(host))
}

fn unreachable(name: &RemoteName, cause: String) -> RemoteError {
    RemoteError::Unreachable { device: name.clone(), cause }
}

fn broken(name: &RemoteName, cause: String) -> RemoteError {
    RemoteError::Broken { device: name.clone(), cause }
}

fn refusal(name: &RemoteName, error: &ConnectError) -> RemoteError {
    let device = name.clone();
    match error {
        ConnectError::Unauthorized => RemoteError::WrongToken { device },
        ConnectError::NoSuchDevice { device_count } => RemoteError::NotServed { device, served: *device_count },
        ConnectError::IncompatibleProtocol { client_version, server_version } => RemoteError::OtherVersion {
            device,
            theirs: format!("version {server_version} of burn's remote protocol"),
            ours: format!("version {client_version}"),
        },
        ConnectError::Unreachable { reason } => unreachable(name, reason.clone()),
        ConnectError::NoAddress => unreachable(name, error.to_string()),
        error => broken(name, error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn why_burn_refuses_is_said_with_the_way_out() {
        let name: RemoteName = "ws://gpu-2:4433/1".parse().unwrap();
        let said = |error| refusal(&name, &error).to_string();
        let other = said(ConnectError::IncompatibleProtocol { client_version: 2, server_version: 7 });
        let expected = "`ws://gpu-2:4433/1` is served by version 7 of burn's remote protocol, and this program is version 2; install \
                        the same version on both hosts";
        assert_eq!(other, expected);
        assert!(said(ConnectError::NoSuchDevice { device_count: 1 }).contains("there are 1 devices, from 0 to 0"));
        assert!(said(ConnectError::Unauthorized).contains("--token-file"));
        let handshake = said(ConnectError::Handshake { reason: "it hung up".to_owned() });
        assert!(handshake.contains("it hung up") && handshake.contains("the same version"), "{handshake}");
        let silent = said(ConnectError::Unreachable { reason: "nothing answered".to_owned() });
        assert!(
            silent.contains("cannot be reached: nothing answered; look whether `stageline serve` runs there"),
            "{silent}"
        );
    }
}
