//! Devices of other hosts are connected before anything is trained, all at once.

use std::net::ToSocketAddrs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use burn::remote::{ConnectError, IrohHost, IrohRelays, RemoteHost};
use burn::tensor::{Device, Tensor};

use super::connected::{self, Connected};
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
    let connecting = Connecting { name: name.clone(), result };
    // On a thread of its own, which is left behind where a host never answers.
    thread::spawn(move || done.send(connect(&name, token)));
    connecting
}

/// A device that is being connected.
pub(crate) struct Connecting {
    name: RemoteName,
    result: mpsc::Receiver<Result<Device, RemoteError>>,
}

impl Connecting {
    pub(crate) fn finish(self) -> Result<Device, RemoteError> {
        let silent = |_| Err(unreachable(&self.name, format!("it did not answer for {} s", PATIENCE.as_secs())));
        self.result.recv_timeout(PATIENCE).unwrap_or_else(silent)
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
    let connected = Connected { device: remote, name: name.clone(), token, has_kernels: greeting.has_kernels };
    connected::remember(connected);
    Ok(device)
}

/// Opens a session for a purpose: one session each, so that one may be asked about another.
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
        error => unreachable(name, error.to_string()),
    }
}

/// Whether the host of a device answers anew within a time; `None` where it does, or where nobody knows how to ask it.
pub(crate) fn silence(device: &Device, patience: Duration) -> Option<Silence> {
    static ASKED: AtomicUsize = AtomicUsize::new(0);
    let Connected { name, token, .. } = connected::find(device)?;
    let purpose = format!("is it there {}", ASKED.fetch_add(1, Ordering::Relaxed));
    let (done, result) = mpsc::channel();
    let asked = name.clone();
    thread::spawn(move || {
        let answer = open(&asked, token.as_ref(), &purpose)
            .map(|device| Tensor::<1>::ones([1], &device).try_into_data().map(drop));
        done.send(match answer {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(RemoteError::Unreachable { cause, .. }) => Err(cause),
            // It is there, if only to refuse.
            Err(_) => Ok(()),
        })
    });
    let silent = |_| Err(format!("it did not answer for {:.1} s", patience.as_secs_f64()));
    let cause = result.recv_timeout(patience).unwrap_or_else(silent).err()?;
    Some(Silence { host: name.host, cause })
}

/// A host that does not answer.
pub(crate) struct Silence {
    pub(crate) host: HostName,
    pub(crate) cause: String,
}
