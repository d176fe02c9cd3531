//! The server ([`Server`]) that lets programs on other hosts use this host's devices.
//!
//! Input: devices, an [`Admission`] (a token or none) and a [`Listen`] address. Output: burn's remote server on a bound
//! address, with the operations of `stageline-nn`, until a signal ends it. This folder owns the server's side of the
//! network: sockets, HTTP and WebSocket frames, iroh endpoints, and the check of tokens. It also limits clients that
//! have not opened a session (a queue of requests to one device). It must not know stages or training runs: a client
//! drives the devices.
//!
//! This file binds the address (`Bound`), makes the names of the devices for other hosts, and authorises clients.
//!
//! - `error`: the errors of a server (`ServeError`).
//! - `operations`: the operations that the server runs for clients, among them the answers to their first requests.
//! - `key`: the secret key of an iroh server (`LockedKey`).
//! - `handed_over`: tensors that a session of a program gives to another session of the same program (`HandedOver`).
//! - `gate`: accepts WebSocket clients, reads the head and the first message of each, and forwards to burn's server
//!   those that observe the limits. Counts the connections of each address that have no session yet (`Waiting`,
//!   `Place`).
//! - `peers`: the limits for iroh clients and other servers (`Guarded`), and the admitted ones, whose limits are lifted
//!   (`Peers`).
//! - `limits`: the values of these limits: time, bytes, streams and connections.
//! - `signals`: the signals that end a server, Ctrl-C and `SIGTERM` (`EndSignals`).

mod error;
mod gate;
mod handed_over;
mod key;
mod limits;
mod operations;
mod peers;
mod signals;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::PathBuf;
use std::sync::Arc;

use burn::remote::{IrohIdentity, IrohRelays};
use burn::server::{
    AuthorizationRequest, BURN_REMOTE_ALPN, ClientId, RemoteServer, TokenAuthorizer, WebSocketTransport,
};
use burn::tensor::Device;
use iroh::endpoint::{QuicTransportConfig, presets};
use iroh::{Endpoint, RelayMode, protocol::Router};

pub use self::error::ServeError;
use self::key::LockedKey;
use self::operations::all_operations;
use self::peers::{Guarded, Peers};
use self::signals::EndSignals;
use super::token::Token;

/// The clients that a device server accepts: only those with a token, or all clients on this host. It is an argument of
/// [`Server::bind`].
#[derive(Clone, Debug)]
pub enum Admission {
    /// Accept only clients that present this token, a secret string.
    Token(Token),
    /// Accept every client that can reach the server, without a token. [`Server::bind`] returns an error if these could
    /// be programs on other hosts.
    AnyoneHere,
}

/// The place where a device server listens for clients: its transport (iroh or WebSocket) and its address.
#[derive(Clone, Debug)]
pub enum Listen {
    /// Listen for iroh connections, which are authenticated and encrypted.
    Iroh {
        /// The path of the server's secret key file; the file is created if it does not exist.
        identity: PathBuf,
        /// The iroh relay servers (public, private or none) that help clients find and reach the server.
        relays: IrohRelays,
        /// The UDP address where the server listens for iroh connections; port 0 selects a free port.
        address: SocketAddr,
    },
    /// Listen for WebSocket connections, which are neither authenticated nor encrypted. Use this on trusted networks
    /// only.
    WebSocket {
        /// The TCP address where the server listens for WebSocket connections; port 0 selects a free port.
        address: SocketAddr,
    },
}

impl Listen {
    /// Whether only programs on this host can reach a server that listens at this address.
    fn is_here_only(&self) -> bool {
        match self {
            Self::Iroh { relays, address, .. } => *relays == IrohRelays::Disabled && address.ip().is_loopback(),
            Self::WebSocket { address } => address.ip().is_loopback(),
        }
    }
}

/// A server that lets programs on other hosts use this host's devices. The server has bound its address, and answers
/// clients once [`serve`](Self::serve) is called.
pub struct Server {
    runtime: tokio::runtime::Runtime,
    server: RemoteServer,
    bound: Bound,
    peers: Arc<Peers>,
    ends: EndSignals,
    /// The secret key of an iroh server; no other server may use it.
    key: Option<LockedKey>,
}

/// The server's bound socket: an iroh endpoint with its relays, or a listener for WebSocket connections.
enum Bound {
    Iroh(Endpoint, IrohRelays),
    WebSocket(TcpListener),
}

impl Server {
    /// Creates a server for the devices `devices` and binds its address. Clients can connect immediately, but are only
    /// answered once [`serve`](Self::serve) is called. On Unix, this function also makes Ctrl-C and `SIGTERM` end the
    /// call of `serve` instead of the process.
    ///
    /// # Errors
    /// Returns [`ServeError`] in these cases:
    ///
    /// - The address cannot be bound.
    /// - The server's secret key cannot be read or written, or another server uses it.
    /// - A server without a token would be reachable from other hosts.
    /// - The operating system refuses a thread, a socket or a signal handler.
    pub fn bind(devices: Vec<Device>, admission: Admission, listen: Listen) -> Result<Self, ServeError> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(ServeError::Runtime)?;
        if matches!(admission, Admission::AnyoneHere) && !listen.is_here_only() {
            return Err(ServeError::AnyoneElsewhere);
        }
        let (bound, key) = match listen {
            Listen::WebSocket { address } => {
                let taken = |cause: std::io::Error| ServeError::Address { address, cause: cause.to_string() };
                (Bound::WebSocket(TcpListener::bind(address).map_err(taken)?), None)
            }
            Listen::Iroh { identity, relays, address } => {
                let key = LockedKey::load_or_create(identity)?;
                (Bound::Iroh(runtime.block_on(endpoint(&key.identity, &relays, address))?, relays), Some(key))
            }
        };
        let peers = Arc::new(Peers::default());
        let server = admitting(hosting(devices, &peers), admission, Arc::clone(&peers));
        let ends = runtime.block_on(async { EndSignals::catch() }).map_err(ServeError::Runtime)?;
        Ok(Self { runtime, server, bound, peers, ends, key })
    }

    /// Returns this server's addresses for other hosts, such as `ws://10.0.0.2:3000`. A device's name is such an
    /// address followed by `/` and the device's zero-based index, such as `ws://10.0.0.2:3000/0`.
    ///
    /// There is usually one address; an iroh server without relays has one for each of its sockets. If the server
    /// listens on all addresses of this host (such as 0.0.0.0), the result contains this host's address on the default
    /// route. If there is no route, it contains a placeholder instead.
    pub fn names(&self) -> Vec<String> {
        match &self.bound {
            Bound::WebSocket(listener) => {
                listener.local_addr().map(|address| format!("ws://{}", from_elsewhere(address))).into_iter().collect()
            }
            Bound::Iroh(endpoint, IrohRelays::Public) => vec![format!("iroh:{}", endpoint.id())],
            Bound::Iroh(endpoint, IrohRelays::Private { url }) => vec![format!("iroh:{}@{url}", endpoint.id())],
            Bound::Iroh(endpoint, IrohRelays::Disabled) => {
                let id = endpoint.id();
                let name = |address| format!("iroh:{id}@{}", from_elsewhere(address));
                endpoint.bound_sockets().into_iter().map(name).collect()
            }
        }
    }

    /// Serves the devices to clients until the process is asked to end (Ctrl-C, or `SIGTERM` on Unix).
    ///
    /// # Errors
    /// Returns [`ServeError`] if the network or burn's server fails.
    pub fn serve(self) -> Result<(), ServeError> {
        let Self { runtime, server, bound, peers, ends, key: _key } = self;
        let served = runtime.block_on(async move {
            match bound {
                Bound::WebSocket(listener) => {
                    let inner = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(ServeError::Runtime)?;
                    let address = inner.local_addr().map_err(ServeError::Runtime)?;
                    listener.set_nonblocking(true).map_err(ServeError::Runtime)?;
                    let listener = tokio::net::TcpListener::from_std(listener).map_err(ServeError::Runtime)?;
                    let served = server.serve_async(WebSocketTransport::from_listener(inner));
                    let served = async {
                        tokio::select! {
                            served = served => Ok(served?),
                            () = gate::accept(listener, address) => Ok(()),
                        }
                    };
                    ends.or(served).await
                }
                Bound::Iroh(endpoint, _) => {
                    let protocol = Guarded::new(server.into_protocol(&endpoint)?, peers);
                    let router = Router::builder(endpoint.clone()).accept(BURN_REMOTE_ALPN, protocol).spawn();
                    let closed = async {
                        endpoint.closed().await;
                        Err(ServeError::Burn("its connection to the network closed".to_owned()))
                    };
                    let served = ends.or(closed).await;
                    // The shutdown closes all connections, so that clients notice the end immediately.
                    if let Err(error) = router.shutdown().await {
                        tracing::warn!(%error, "the server did not shut down cleanly");
                    }
                    served
                }
            }
        });
        runtime.shutdown_background();
        served
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("names", &self.names()).finish_non_exhaustive()
    }
}

/// Returns the server's address `address` in a form that other hosts can use. An unspecified address, such as 0.0.0.0,
/// is replaced by this host's address on the route to other networks.
fn from_elsewhere(address: SocketAddr) -> String {
    if !address.ip().is_unspecified() {
        return address.to_string();
    }
    // Connecting a UDP socket selects a route and sends nothing. These addresses are reserved for documentation (RFC
    // 5737, RFC 3849).
    let anywhere: IpAddr = match address {
        SocketAddr::V4(_) => Ipv4Addr::new(192, 0, 2, 1).into(),
        SocketAddr::V6(_) => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
    };
    let route = UdpSocket::bind((address.ip(), 0)).and_then(|socket| {
        socket.connect((anywhere, 9))?;
        socket.local_addr()
    });
    let unknown = |_| format!("<an address of this host>:{}", address.port());
    route.map_or_else(unknown, |route| SocketAddr::new(route.ip(), address.port()).to_string())
}

/// Creates the server's iroh endpoint (its socket for QUIC connections) at `address`, with the secret key `key`. Every
/// new connection has a limit on its number of streams.
async fn endpoint(key: &IrohIdentity, relays: &IrohRelays, address: SocketAddr) -> Result<Endpoint, ServeError> {
    let builder = match relays {
        IrohRelays::Public => Endpoint::builder(presets::N0),
        IrohRelays::Private { url } => Endpoint::builder(presets::Minimal).relay_mode(RelayMode::custom([url.clone()])),
        IrohRelays::Disabled => Endpoint::builder(presets::Minimal).relay_mode(RelayMode::Disabled),
    };
    let taken = |cause: String| ServeError::Address { address, cause };
    let builder = builder
        .secret_key(key.to_bytes().into())
        .alpns(vec![BURN_REMOTE_ALPN.to_vec()])
        // Segmentation offload is off, as in burn's own endpoint: https://github.com/n0-computer/iroh/issues/4555
        .transport_config(
            QuicTransportConfig::builder()
                .enable_segmentation_offload(false)
                // A client starts with a low limit on its streams. The limit is raised once the client is admitted.
                .max_concurrent_bidi_streams(limits::STREAMS.into())
                .build(),
        )
        .clear_ip_transports()
        .bind_addr(address)
        .map_err(|cause| taken(cause.to_string()))?;
    builder.bind().await.map_err(|cause| taken(format!("{cause:#}")))
}

/// Creates burn's server for the devices `devices`, with Stageline's own kernels and the answers to clients' requests
/// about the server. `peers` receives the iroh servers that clients introduce.
fn hosting(devices: Vec<Device>, peers: &Arc<Peers>) -> RemoteServer {
    #[cfg(feature = "flex")]
    if devices.iter().all(crate::device::location::is_host) {
        return RemoteServer::new(devices).with_custom_ops(all_operations::<burn::backend::Flex>(peers));
    }
    #[cfg(feature = "gpu")]
    if !devices.iter().any(crate::device::location::is_host) {
        return RemoteServer::new(devices).with_custom_ops(all_operations::<burn::backend::Cube>(peers));
    }
    // burn's server reports why it cannot serve these devices.
    RemoteServer::new(devices)
}

/// Adds client authorisation to `server`. If `admission` requires a token, a client must present it to open a session
/// (a queue of requests to one device). An authorised iroh client is added to `peers`, which lifts its limits.
///
/// The token is the first line of the client's credential. The second line says what the session is for, and is not
/// checked.
fn admitting(server: RemoteServer, admission: Admission, peers: Arc<Peers>) -> RemoteServer {
    use burn::server::PeerAuthorizer;

    let admit = move |client| {
        if let ClientId::Iroh(peer) = client {
            peers.admit(peer);
        }
    };
    let Admission::Token(token) = admission else {
        return server.with_authorizer(move |request: AuthorizationRequest<'_>| {
            admit(request.client);
            Ok(())
        });
    };
    let tokens = TokenAuthorizer::new(token.secret()).expect("a token is not empty");
    server.with_authorizer(move |request: AuthorizationRequest<'_>| {
        let presented = request.credential.as_bytes();
        let token = presented.split(|&byte| byte == b'\n').next().unwrap_or_default();
        let client = request.client;
        tokens.authorize(AuthorizationRequest { credential: &token.into(), ..request })?;
        admit(client);
        Ok(())
    })
}
