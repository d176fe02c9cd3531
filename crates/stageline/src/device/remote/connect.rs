//! Connects to devices of other hosts. A session is a queue of requests to one device, which the server executes in
//! order. Each device has one session for its computations, and further sessions for transfers, opened on first use.
//!
//! Every connection is opened on its own thread, so that all hosts are contacted in parallel and none can block this
//! program.

use std::collections::HashSet;
use std::net::ToSocketAddrs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use burn::remote::{ConnectError, IrohHost, IrohRelays, RemoteHost};
use burn::tensor::{DType, Device};
use stageline_nn::kernels::remote::ServedKernels;
use stageline_nn::params::is_remote;

use super::connected::{self, Connected, Lane};
use super::error::RemoteError;
use super::greeting::{self, Version};
use super::name::{HostName, Reach, RemoteName};
use super::token::Token;
use super::with_time_limit::Pending;

/// The time limit (40 s) for connecting a device of another host. It is longer than the 20 to 30 s after which the
/// network may report that a host is unreachable.
const PATIENCE: Duration = Duration::from_secs(40);

/// The time limit (10 s) for exchanging ids between a new device's server and the servers of all earlier devices. It is
/// shorter than [`PATIENCE`], which also covers connecting the new device itself.
const OF_INTRODUCTIONS: Duration = Duration::from_secs(10);

/// Starts connecting a device of another host on a new thread. Call the returned value's `finish` to wait for the
/// device. `token` is the secret string that the other host may require.
pub(crate) fn begin(name: &RemoteName, token: Option<&Token>) -> Opening<Device> {
    let (connected, token) = (name.clone(), token.cloned());
    Opening::start(name, move || connect(&connected, token))
}

/// A pending operation on another host, such as opening a connection, that runs on its own thread. The result `T` is,
/// for example, a newly connected device, or a list of new sessions (connections) to a device.
pub(crate) struct Opening<T> {
    name: RemoteName,
    pending: Pending<Result<T, RemoteError>>,
}

impl<T: Send + 'static> Opening<T> {
    fn start(name: &RemoteName, open: impl FnOnce() -> Result<T, RemoteError> + Send + 'static) -> Self {
        Self { name: name.clone(), pending: Pending::start(open) }
    }

    /// Waits for the operation on the other host, such as opening a connection, and returns its result. Returns an
    /// error if the operation failed or took longer than [`PATIENCE`].
    pub(crate) fn finish(self) -> Result<T, RemoteError> {
        let silent = |why| {
            Err(match why {
                RecvTimeoutError::Timeout => {
                    unreachable(&self.name, format!("it did not answer within {} s", PATIENCE.as_secs()))
                }
                RecvTimeoutError::Disconnected => broken(&self.name, "the thread that opens it panicked".to_owned()),
            })
        };
        self.pending.within(PATIENCE).unwrap_or_else(silent)
    }
}

/// Connects a device of another host: opens a session (a queue of requests to one device) and registers the device.
/// Checks that the server has this program's version. Logs which operations the server computes with this project's own
/// kernels.
fn connect(name: &RemoteName, token: Option<Token>) -> Result<Device, RemoteError> {
    let device = open(name, token.as_ref(), "")?;
    let no_stageline = |cause| RemoteError::NoStageline { device: name.clone(), cause };
    let greeting = greeting::request(&device).map_err(no_stageline)?;
    if greeting.version != Version::OURS {
        let [theirs, ours] = [greeting.version, Version::OURS].map(|version| version.to_string());
        return Err(RemoteError::OtherVersion { device: name.clone(), theirs, ours });
    }
    let unknown = || broken(name, "its server has kernels that this program does not know".to_owned());
    let kernels = greeting.kernels.ok_or_else(unknown)?;
    let process = greeting::process(&device).map_err(no_stageline)?;
    greeting::join(&device).map_err(no_stageline)?;
    let remote = connected::remote(&device).expect("a connected device belongs to another host");
    let (liveness, transfers) = (Default::default(), Default::default());
    stageline_nn::kernels::remote::set_kernels(&remote, kernels);
    tracing::info!("`{name}` computes by {}", kernels.describe(|dtype| device.supports_dtype(dtype)));
    connected::remember(Connected { device: remote, name: name.clone(), token, kernels, process, liveness, transfers });
    introduce(name, &device)?;
    Ok(device)
}

/// Tells the server of a newly connected device the ids (public keys) of the servers of earlier devices, and tells
/// those servers the new server's id. Two servers can then exchange tensors, because each lifts its limits on unknown
/// clients for the other. Returns an error if the new server does not accept the ids. A failure of an earlier server is
/// only logged, because its host may belong to an earlier training run.
fn introduce(name: &RemoteName, device: &Device) -> Result<(), RemoteError> {
    let Some(id) = id_of(name) else { return Ok(()) };
    let mut others = connected::all();
    // Each host is introduced once, even if it has several devices.
    let mut seen = HashSet::from([name.host.clone()]);
    others.retain(|other| seen.insert(other.name.host.clone()));
    let ids: Vec<_> = others.iter().filter_map(|other| id_of(&other.name)).collect();
    greeting::introduce(device, &ids).map_err(|cause| broken(name, cause))?;
    let introduced: Vec<_> = others
        .into_iter()
        .filter(|other| id_of(&other.name).is_some())
        .map(|other| {
            Pending::start(move || {
                let session = open_new_session(&other, "introduction")?;
                greeting::introduce(&session, &[id]).map_err(|cause| broken(&other.name, cause))
            })
        })
        .collect();
    for pending in introduced {
        // A host of an earlier training run may be gone, so an error is only logged. If the host belongs to this run,
        // its own connection reports the error.
        let error = match pending.within(OF_INTRODUCTIONS) {
            Ok(Ok(())) => continue,
            Ok(Err(error)) => error.to_string(),
            Err(_) => "it did not answer in time".to_owned(),
        };
        tracing::debug!(error, "a host was not introduced to another one");
    }
    Ok(())
}

/// Returns the id of an iroh server, which is its public key of 32 bytes, so that other servers can exchange tensors
/// with it. Returns `None` for a WebSocket server, which exchanges tensors only with this host.
fn id_of(name: &RemoteName) -> Option<[u8; 32]> {
    let HostName::Iroh { id, .. } = &name.host else { return None };
    id.parse::<burn::remote::EndpointId>().ok().map(|id| *id.as_bytes())
}

/// Returns the sessions (connections) to a device of another host that carry tensors of the kind `kind`, such as
/// activations. The first call for a kind opens the sessions, and returns an error if that fails.
pub(super) fn sessions(connected: &Connected, kind: Lane) -> Result<&[Device], RemoteError> {
    let Connected { name, token, transfers, .. } = connected;
    let sessions = &transfers[kind as usize];
    if sessions.get().is_none() {
        let (opened, token) = (name.clone(), token.clone());
        let open_one = move |lane| {
            let session = open(&opened, token.as_ref(), &format!("{kind:?} {lane}"))?;
            greeting::join(&session).map_err(|cause| broken(&opened, cause))?;
            Ok(session)
        };
        let opened = Opening::start(name, move || (0..kind.sessions()).map(open_one).collect()).finish();
        // If another thread has opened the same sessions in the meantime, its sessions are kept and the new ones are
        // dropped.
        let _ = sessions.set(opened?);
    }
    Ok(sessions.get().expect("the sessions were opened above"))
}

/// Opens a session (a queue of requests to one device) with a device of another host. burn opens one session for each
/// distinct credential. The credential contains the session's `purpose`, so every purpose has its own session.
fn open(name: &RemoteName, token: Option<&Token>, purpose: &str) -> Result<Device, RemoteError> {
    let host = host(name)?.with_credential(Token::for_purpose(token, purpose));
    let options = Device::remote_options(&host).device_index(name.index);
    options.init().map_err(|error| refusal(name, &error))
}

/// Opens a new session (connection) with a device for a single request, because the open sessions may be blocked by
/// earlier requests. `question` names the request's purpose in the session's credential.
pub(super) fn open_new_session(connected: &Connected, question: &str) -> Result<Device, RemoteError> {
    static OPENED: AtomicUsize = AtomicUsize::new(0);
    let number = OPENED.fetch_add(1, Ordering::Relaxed);
    open(&connected.name, connected.token.as_ref(), &format!("{question} {number}"))
}

/// Asks the server of another host whether its device `device` supports the dtype `dtype`. Returns `None`, without
/// asking, if `device` belongs to this host or was not opened by its name.
pub(crate) fn computes_in(device: &Device, dtype: DType) -> Option<Result<bool, RemoteError>> {
    let connected = connected::find(device)?;
    let device = device.clone();
    // burn waits for the answer without a time limit, and panics if the connection breaks.
    Some(Opening::start(&connected.name, move || Ok(device.supports_dtype(dtype))).finish())
}

/// Whether a device belongs to another host and was opened directly through burn, not by its Stageline name, so that
/// its server was never asked for its kernels.
pub(crate) fn is_unknown(device: &Device) -> bool {
    is_remote(device) && connected::find(device).is_none()
}

/// Whether a device is a GPU of another host, lent by that host's server.
pub(crate) fn is_lent_gpu(device: &Device) -> bool {
    connected::find(device).is_some_and(|connected| matches!(connected.kernels, ServedKernels::Gpu { .. }))
}

/// Converts the host in the device name `name` to burn's address type. The error says which part of the name is wrong.
fn host(name: &RemoteName) -> Result<RemoteHost, RemoteError> {
    let (id, by) = match &name.host {
        HostName::WebSocket { address } => return Ok(RemoteHost::websocket(&format!("ws://{address}"))),
        HostName::Iroh { id, by } => (id, by),
    };
    let no_key =
        |_| unreachable(name, "the id is not a public key; copy it from the output of `stageline serve`".to_owned());
    let host = IrohHost::new(id.parse::<burn::remote::EndpointId>().map_err(no_key)?);
    let host = match by {
        Reach::Public => host,
        Reach::Relay(url) => {
            let url = url.parse().map_err(|error| unreachable(name, format!("`{url}` is not a relay: {error}")))?;
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

/// Converts burn's error from opening a session (a connection to a device) to a [`RemoteError`], whose message names a
/// remedy.
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
    fn errors_of_burn_become_messages_with_advice() {
        let name: RemoteName = "ws://gpu-2:4433/1".parse().unwrap();
        let message = |error| refusal(&name, &error).to_string();
        let other = message(ConnectError::IncompatibleProtocol { client_version: 2, server_version: 7 });
        let expected = "`ws://gpu-2:4433/1` is served by version 7 of burn's remote protocol, and this program is version 2; install \
                        the same version on both hosts";
        assert_eq!(other, expected);
        assert!(message(ConnectError::NoSuchDevice { device_count: 1 }).contains("there are 1 devices, from 0 to 0"));
        assert!(message(ConnectError::Unauthorized).contains("--token-file"));
        let handshake = message(ConnectError::Handshake { reason: "it hung up".to_owned() });
        assert!(handshake.contains("it hung up") && handshake.contains("the same version"), "{handshake}");
        let silent = message(ConnectError::Unreachable { reason: "nothing answered".to_owned() });
        assert!(
            silent.contains("cannot be reached: nothing answered; check that `stageline serve` runs there"),
            "{silent}"
        );
    }
}
