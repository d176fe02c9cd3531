//! The limits of time, bytes, streams and connections for clients that have not yet opened a session (a queue of
//! requests to one device).

use std::time::Duration;

/// The time after connecting within which a client must open a session (an exchange of requests with one of the
/// server's devices).
pub(super) const HANDSHAKE: Duration = Duration::from_secs(10);

/// The largest number of bytes that a client may send to a server before it has opened a session (a queue of requests
/// to one device). The request that opens a session has a few hundred bytes.
pub(super) const BYTES: u64 = 1 << 20;

/// The largest number of QUIC streams that a client may open at once on a connection before it has opened a session.
pub(super) const STREAMS: u32 = 16;

/// The largest number of connections that one client may have at once before it has opened a session.
pub(super) const CONNECTIONS: usize = 32;

/// The largest number of connections that all clients without a session may have together.
pub(super) const ALL_CONNECTIONS: usize = 256;
