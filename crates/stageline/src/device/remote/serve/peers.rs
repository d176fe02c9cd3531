//! The peers of an iroh server ([`Peers`]): clients and other servers, with limits for those that are not admitted.
//!
//! A client is admitted when it opens a session (a queue of requests to one device) with the token. Servers exchange
//! tensors without a session, so an admitted client names the other servers of its run, and those are admitted as well.
//! Admitted peers have higher limits, which no training run reaches.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use iroh::EndpointId;
use iroh::endpoint::Connection;
use iroh::protocol::{AcceptError, DynProtocolHandler, ProtocolHandler};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use super::limits;

/// Largest number of QUIC streams that an admitted peer may have open at the same time. Every session (queue of
/// requests to one device) and every tensor in flight needs a stream.
const STREAMS: u32 = 4096;

/// The interval (100 ms) between two checks of a connection whose peer is not admitted: whether it has been open too
/// long, or the peer has sent too many bytes.
const INTERVAL: Duration = Duration::from_millis(100);

/// The QUIC error code for closing a connection that the server refuses.
const REFUSED: u32 = 1;

/// An iroh server's peers (clients and other servers): which of them are admitted, and the open connections of all.
/// Peers that are not admitted have low limits.
#[derive(Debug, Default)]
pub(super) struct Peers(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    admitted: HashSet<EndpointId>,
    /// The open connections of each peer, admitted or not.
    connections: HashMap<EndpointId, Vec<Connection>>,
}

impl Peers {
    /// Admits a peer (a client or another server): lifts its limits, so that it may open many streams, send any number
    /// of bytes, and stay connected. This also holds for connections of the peer that are already open.
    pub(super) fn admit(&self, peer: EndpointId) {
        let mut known = self.0.lock();
        if known.admitted.insert(peer) {
            for connection in known.connections.get(&peer).into_iter().flatten() {
                connection.set_max_concurrent_bi_streams(STREAMS.into());
            }
        }
    }

    fn is_admitted(&self, peer: EndpointId) -> bool {
        self.0.lock().admitted.contains(&peer)
    }

    /// Registers a new connection of a peer and returns true. Returns false, so that the caller refuses the connection,
    /// if a peer that is not admitted, or all such peers together, have too many open connections.
    fn enter(&self, connection: &Connection) -> bool {
        let mut known = self.0.lock();
        let peer = connection.remote_id();
        if known.admitted.contains(&peer) {
            connection.set_max_concurrent_bi_streams(STREAMS.into());
        } else {
            let own = known.connections.get(&peer).map_or(0, Vec::len);
            let strangers = known.connections.iter().filter(|(peer, _)| !known.admitted.contains(*peer));
            let all: usize = strangers.map(|(_, connections)| connections.len()).sum();
            if own >= limits::CONNECTIONS || all >= limits::ALL_CONNECTIONS {
                return false;
            }
        }
        known.connections.entry(peer).or_default().push(connection.clone());
        true
    }

    fn leave(&self, connection: &Connection) {
        let mut known = self.0.lock();
        let peer = connection.remote_id();
        if let Some(connections) = known.connections.get_mut(&peer) {
            connections.retain(|other| other.stable_id() != connection.stable_id());
            if connections.is_empty() {
                known.connections.remove(&peer);
            }
        }
    }

    /// Waits until a connection exceeds a limit for peers that are not admitted (time or bytes), and returns a message
    /// about this limit. Never returns for an admitted peer.
    async fn broken_limit(&self, connection: &Connection) -> String {
        let began = Instant::now();
        while !self.is_admitted(connection.remote_id()) {
            if began.elapsed() > limits::HANDSHAKE {
                return format!("it opened no session within {} s", limits::HANDSHAKE.as_secs());
            }
            let sent = connection.stats().udp_rx.bytes;
            if sent > limits::BYTES {
                return format!("it sent {sent} bytes before it opened a session");
            }
            sleep(INTERVAL).await;
        }
        std::future::pending().await
    }
}

/// A wrapper around burn's handler of iroh connections that enforces the limits on peers that are not admitted. It
/// closes a connection of such a peer if this peer, or all such peers together, have too many connections. It also
/// closes a connection that stays open too long or carries too many bytes.
pub(super) struct Guarded {
    inner: Box<dyn DynProtocolHandler>,
    peers: Arc<Peers>,
}

impl Guarded {
    pub(super) fn new(inner: impl Into<Box<dyn DynProtocolHandler>>, peers: Arc<Peers>) -> Self {
        Self { inner: inner.into(), peers }
    }
}

impl fmt::Debug for Guarded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guarded").finish_non_exhaustive()
    }
}

impl ProtocolHandler for Guarded {
    async fn accept(&self, connection: Connection) -> Result<(), AcceptError> {
        let peer = connection.remote_id();
        let refuse = |reason: &str| {
            tracing::warn!(%peer, reason, "a connection is refused");
            connection.close(REFUSED.into(), reason.as_bytes());
        };
        if !self.peers.enter(&connection) {
            refuse("too many connections have opened no session");
            return Ok(());
        }
        let served = tokio::select! {
            served = self.inner.accept(connection.clone()) => served,
            reason = self.peers.broken_limit(&connection) => {
                refuse(&reason);
                Ok(())
            }
        };
        self.peers.leave(&connection);
        served
    }

    async fn shutdown(&self) {
        self.inner.shutdown().await;
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};
    use std::time::Duration;

    use iroh::endpoint::{ConnectionError, QuicTransportConfig, presets};
    use iroh::protocol::Router;
    use iroh::{Endpoint, EndpointAddr, RelayMode, SecretKey};
    use tokio::time::timeout;

    use super::*;

    const ALPN: &[u8] = b"stageline/test";
    /// The longest time that tests of a server wait for its reaction.
    const SOON: Duration = Duration::from_secs(2);

    /// A protocol handler for tests of a server. It reads all streams of a connection until the connection is closed.
    #[derive(Debug)]
    struct ReadAll;

    impl ProtocolHandler for ReadAll {
        async fn accept(&self, connection: Connection) -> Result<(), AcceptError> {
            let mut streams = Vec::new();
            while let Ok((sender, mut receiver)) = connection.accept_bi().await {
                // The stream stays open, as that of a session does.
                streams.push(sender);
                tokio::spawn(async move { receiver.read_to_end(usize::MAX).await.ok() });
            }
            Ok(())
        }
    }

    async fn endpoint(key: u8) -> Endpoint {
        let here = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let transport = QuicTransportConfig::builder().max_concurrent_bidi_streams(limits::STREAMS.into()).build();
        let builder = Endpoint::builder(presets::Minimal).relay_mode(RelayMode::Disabled).transport_config(transport);
        let builder = builder.secret_key(SecretKey::from([key; 32])).alpns(vec![ALPN.to_vec()]);
        builder.clear_ip_transports().bind_addr(here).unwrap().bind().await.unwrap()
    }

    /// Starts a test server that refuses peers exceeding the limits for peers that are not admitted. The server's
    /// secret key is the byte `key` repeated 32 times. Also returns the server's peers and its address.
    async fn server(key: u8) -> (Router, Arc<Peers>, EndpointAddr) {
        let (endpoint, peers) = (endpoint(key).await, Arc::new(Peers::default()));
        let address = EndpointAddr::new(endpoint.id()).with_ip_addr(endpoint.bound_sockets()[0]);
        let handler: Box<dyn DynProtocolHandler> = Box::new(ReadAll);
        let protocol = Guarded::new(handler, Arc::clone(&peers));
        (Router::builder(endpoint).accept(ALPN, protocol).spawn(), peers, address)
    }

    /// Waits until the server closes a client's connection, and returns the server's reason.
    async fn reason(connection: &Connection) -> String {
        match connection.closed().await {
            ConnectionError::ApplicationClosed(close) => String::from_utf8_lossy(&close.reason).into_owned(),
            other => panic!("{other}"),
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_stranger_may_open_few_streams_and_send_little() {
        let (server, _, address) = server(1).await;
        let client = endpoint(2).await;
        let connection = client.connect(address.clone(), ALPN).await.unwrap();
        let mut streams = Vec::new();
        for _ in 0..limits::STREAMS {
            let (mut sender, receiver) = connection.open_bi().await.unwrap();
            sender.write_all(b"hello").await.unwrap();
            streams.push((sender, receiver));
        }
        assert!(timeout(SOON, connection.open_bi()).await.is_err(), "one stream too many was opened");
        let flood = vec![0; 2 * limits::BYTES as usize];
        let _ = streams[0].0.write_all(&flood).await;
        assert!(reason(&connection).await.contains("bytes before it opened a session"));
        server.shutdown().await.unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_stranger_is_hung_up_on_and_may_have_few_connections() {
        let (server, peers, address) = server(3).await;
        let client = endpoint(4).await;
        let mut connections = Vec::new();
        for _ in 0..limits::CONNECTIONS {
            connections.push(client.connect(address.clone(), ALPN).await.unwrap());
        }
        // The server registers each connection in a task of its own, in any order and after the client is connected.
        while peers.0.lock().connections.get(&client.id()).map_or(0, Vec::len) < limits::CONNECTIONS {
            sleep(Duration::from_millis(1)).await;
        }
        let one_more = client.connect(address.clone(), ALPN).await.unwrap();
        assert_eq!(reason(&one_more).await, "too many connections have opened no session");
        for connection in &connections {
            assert!(reason(connection).await.starts_with("it opened no session within"));
        }
        // Closed connections no longer count.
        let again = client.connect(address, ALPN).await.unwrap();
        assert!(timeout(SOON, again.closed()).await.is_err(), "a peer without connections was refused");
        server.shutdown().await.unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn the_limits_are_lifted_for_an_admitted_peer() {
        let (server, peers, address) = server(5).await;
        let client = endpoint(6).await;
        let connection = client.connect(address, ALPN).await.unwrap();
        peers.admit(client.id());
        let mut streams = Vec::new();
        for _ in 0..2 * limits::STREAMS {
            let (mut sender, receiver) = timeout(SOON, connection.open_bi()).await.expect("a stream is open").unwrap();
            sender.write_all(&vec![0; (limits::BYTES / u64::from(limits::STREAMS)) as usize]).await.unwrap();
            streams.push((sender, receiver));
        }
        let until_hang_up = limits::HANDSHAKE + SOON;
        assert!(timeout(until_hang_up, connection.closed()).await.is_err(), "an admitted peer was hung up on");
        server.shutdown().await.unwrap();
    }
}
