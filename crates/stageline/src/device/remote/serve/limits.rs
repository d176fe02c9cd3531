//! The limits of time, bytes, streams and connections for clients that have not yet opened a session with the server's
//! token.

use std::time::Duration;

/// The time after connecting to a server within which a client must have opened a session.
pub(super) const HANDSHAKE: Duration = Duration::from_secs(10);

/// The number of bytes that a client may send before it has opened a session. A request for a session has a few hundred
/// bytes.
pub(super) const BYTES: u64 = 1 << 20;

/// The number of QUIC streams that a client may open at once before it has opened a session.
pub(super) const STREAMS: u32 = 16;

/// The number of connections without a session that one client may have at once.
pub(super) const CONNECTIONS: usize = 32;

/// The number of connections without a session that all clients together may have at once.
pub(super) const ALL_CONNECTIONS: usize = 256;
