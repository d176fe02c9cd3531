//! The signals that end a server: Ctrl-C, and `SIGTERM` on Unix.

use std::future::Future;
use std::io;

use super::error::ServeError;

/// Receivers for the signals Ctrl-C and `SIGTERM`, which end a server. Once the first value of this type exists, these
/// signals no longer kill the process; they are delivered to the receivers instead.
#[cfg(unix)]
pub(super) struct EndSignals([tokio::signal::unix::Signal; 2]);

#[cfg(unix)]
impl EndSignals {
    pub(super) fn catch() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self([signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?]))
    }

    /// Runs the server, which is the future `served`, until it ends, and returns its result. If Ctrl-C or `SIGTERM`
    /// arrives first, returns `Ok`.
    pub(super) async fn or(self, served: impl Future<Output = Result<(), ServeError>>) -> Result<(), ServeError> {
        let Self([mut interrupt, mut terminate]) = self;
        tokio::select! {
            served = served => served,
            _ = interrupt.recv() => Ok(()),
            _ = terminate.recv() => Ok(()),
        }
    }
}

#[cfg(not(unix))]
pub(super) struct EndSignals;

#[cfg(not(unix))]
impl EndSignals {
    pub(super) fn catch() -> io::Result<Self> {
        Ok(Self)
    }

    pub(super) async fn or(self, served: impl Future<Output = Result<(), ServeError>>) -> Result<(), ServeError> {
        tokio::select! {
            served = served => served,
            _ = tokio::signal::ctrl_c() => Ok(()),
        }
    }
}
