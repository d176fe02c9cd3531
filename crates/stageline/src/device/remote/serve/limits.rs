//! Limits for clients that have not shown the token yet.

use std::time::Duration;

/// The time within which a client must have opened a session.
pub(super) const HANDSHAKE: Duration = Duration::from_secs(10);

/// The bytes that a client may send before it has opened a session: a request for a session is some hundred bytes.
pub(super) const BYTES: u64 = 1 << 20;

/// The streams that a client may open at once before it has opened a session.
pub(super) const STREAMS: u32 = 16;

/// The connections of one client that may be without a session at once.
pub(super) const CONNECTIONS: usize = 32;

/// The connections of all clients that may be without a session at once.
pub(super) const ALL_CONNECTIONS: usize = 256;
