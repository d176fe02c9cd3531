//! Devices of other hosts are connected before anything is trained, all at once.

use std::net::ToSocketAddrs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use burn::remote::{ConnectError, IrohHost, IrohRelays, RemoteHost};
use burn::tensor::Device;

use super::connected::{self, Connected, Way};
use super::error::RemoteError;
use super::greeting::{self, Greeting};
use super::name::{HostName, Reach, RemoteName};
use super::token::Token;

/// How long a host may take to answer: what is unreachable says so after 20 to 30 s, if at all.
const PATIENCE: Duration = Duration::from_secs(40);

/// Begins to connect a device; its result comes when the device has answered.
pub(crate) fn begin(name: &RemoteName, token: Option<&Token>) -> Connecting {
    let (done, result) = mpsc::channel();
    let (name, token) = (name.clone(), token.cloned());
    let connecting = Connecting { name: name.clone(), began: Instant::now(), result };
    // On a thread of its own, which is left behind where a host never answers.
    thread::spawn(move || {
        // Nobody waits for it any more, if it takes too long.
        let _ = done.send(connect(&name, token));
    });
    connecting
}

/// A device that is being connected.
pub(crate) struct Connecting {
    name: RemoteName,
    began: Instant,
    result: mpsc::Receiver<Result<Device, RemoteError>>,
}

impl Connecting {
    pub(crate) fn finish(self) -> Result<Device, RemoteError> {
        let silent = |_| Err(unreachable(&self.name, format!("it did not answer for {} s", PATIENCE.as_secs())));
        self.result.recv_timeout(PATIENCE.saturating_sub(self.began.elapsed())).unwrap_or_else(silent)
    }
}

fn connect(name: &RemoteName, token: Option<Token>) -> Result<Device, RemoteError> {
    let device = open(name, token.as_ref(), "")?;
    let greeting = greeting::of(&device).map_err(|cause| RemoteError::NoStageline { device: name.clone(), cause })?;
    if greeting.version != Greeting::OURS.version {
        let [theirs, ours] = [greeting, Greeting::OURS].map(|greeting| greeting.to_string());
        return Err(RemoteError::OtherVersion { device: name.clone(), theirs, ours });
    }
    let remote = connected::remote(&device).expect("it was connected as one of another host");
    let (has_kernels, transfers) = (greeting.has_kernels, Default::default());
    connected::remember(Connected { device: remote, name: name.clone(), token, has_kernels, transfers });
    Ok(device)
}

/// The sessions for transfers of a device in one way, which are opened now if they are not.
pub(super) fn sessions(connected: &Connected, way: Way) -> Result<&[Device], RemoteError> {
    let Connected { name, token, transfers, .. } = connected;
    let open_now = || (0..way.lanes()).map(|lane| open(name, token.as_ref(), &format!("{way:?} {lane}"))).collect();
    let sessions = &transfers[way as usize];
    if sessions.get().is_none() {
        let opened: Result<_, RemoteError> = open_now();
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
        error => unreachable(name, error.to_string()),
    }
}

/// How long a host may take to answer that it is still there.
const STILL_THERE: Duration = Duration::from_secs(5);

/// A host that was asked whether it is still there.
pub(super) struct Asked {
    host: HostName,
    asked: Instant,
    answer: mpsc::Receiver<Result<(), String>>,
}

/// Asks the host of a device whether it is still there, by a session of its own: that of the device may be what is lost.
pub(super) fn ask(connected: Arc<Connected>) -> Asked {
    static ASKED: AtomicUsize = AtomicUsize::new(0);
    let purpose = format!("is it there {}", ASKED.fetch_add(1, Ordering::Relaxed));
    let (done, answer) = mpsc::channel();
    let host = connected.name.host.clone();
    thread::spawn(move || {
        done.send(match open(&connected.name, connected.token.as_ref(), &purpose) {
            Err(RemoteError::Unreachable { cause, .. }) => Err(cause),
            // Who refuses is there.
            _ => Ok(()),
        })
    });
    Asked { host, asked: Instant::now(), answer }
}

impl Asked {
    pub(super) fn answer(self) -> (HostName, Result<(), String>) {
        let silent = |_| Err(format!("it does not answer for {} s", STILL_THERE.as_secs()));
        let answer = self.answer.recv_timeout(STILL_THERE.saturating_sub(self.asked.elapsed()));
        (self.host, answer.unwrap_or_else(silent))
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
        let silent = said(ConnectError::Unreachable { reason: "nothing answered".to_owned() });
        assert!(
            silent.contains("cannot be reached: nothing answered; look whether `stageline serve` runs there"),
            "{silent}"
        );
    }
}
