//! The limits of time, bytes, streams and connections for clients that have not yet opened a session (a queue of
//! requests to one device).

use std::time::Duration;

/// The time limit (10 s) after connecting for a client to open a session (a queue of requests to one of the server's
/// devices).
pub(super) const HANDSHAKE: Duration = Duration::from_secs(10);

/// The largest number of bytes (1 MiB) that a client may send to a server before it has opened a session (a queue of
/// requests to one device). The request that opens a session has a few hundred bytes.
pub(super) const BYTES: u64 = 1 << 20;

/// The largest number of QUIC streams that a client may have open at the same time on one connection, before it has
/// opened a session (a queue of requests to one device).
pub(super) const STREAMS: u32 = 16;

/// The largest number of connections that one client may have open at the same time, before it has opened a session (a
/// queue of requests to one device). Further connections are refused.
pub(super) const CONNECTIONS: usize = 32;

/// The largest total number of open connections of all clients without a session (a queue of requests to one device).
/// Further connections are refused.
pub(super) const ALL_CONNECTIONS: usize = 256;
