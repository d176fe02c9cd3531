//! Liveness checks: asking another host whether its server still runs and is the same process as before.
//!
//! A liveness check uses its own session (connection to a device of the host). The sessions of the training run may be
//! blocked or lost while the host is alive.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use burn::tensor::Device;

use super::connect::open_new_session;
use super::connected::{Connected, Process};
use super::error::RemoteError;
use super::greeting;
use super::name::HostName;
use super::with_time_limit::Pending;

/// The time limit (5 s) for another host to answer a liveness check. A host that exceeds it counts as lost.
pub(super) const LIVENESS_TIMEOUT: Duration = Duration::from_secs(5);

/// A liveness check in progress: a separate thread asks the server on another host whether that server is alive.
pub(super) struct LivenessCheck {
    host: HostName,
    answer: Pending<Result<(), String>>,
}

/// Starts a liveness check: a new thread asks the server of a connected device whether that server is alive.
pub(super) fn check_liveness(connected: Arc<Connected>) -> LivenessCheck {
    LivenessCheck { host: connected.name.host.clone(), answer: Pending::start(move || check_host(&connected)) }
}

impl LivenessCheck {
    /// Waits for the result of the liveness check, at most until [`LIVENESS_TIMEOUT`] after its start. Returns the
    /// address of the host, and `Ok` if the host is alive. The error says why the host counts as lost.
    pub(super) fn finish(self) -> (HostName, Result<(), String>) {
        let silent = |_| Err(format!("it did not answer within {} s", LIVENESS_TIMEOUT.as_secs()));
        (self.host, self.answer.within(LIVENESS_TIMEOUT).unwrap_or_else(silent))
    }
}

/// Checks that a connected device's server is alive and was not restarted. The error says why the host counts as lost.
/// Reuses the previous check's session (connection), and opens a new one if that session is lost.
fn check_host(connected: &Connected) -> Result<(), String> {
    let last_session = connected.liveness.lock().clone();
    if let Some(process) = last_session.and_then(|session| server_process(&session)) {
        return check_process(connected, process);
    }
    // There was no earlier session, or it is lost. A lost session does not mean that the host is lost, so a new session
    // is opened.
    let session = match open_new_session(connected, "is it there") {
        Ok(session) => session,
        Err(RemoteError::Unreachable { cause, .. } | RemoteError::Broken { cause, .. }) => return Err(cause),
        // The server answers but rejects a session like the one that it accepted earlier, so it is another process.
        Err(_) => return Err(restarted()),
    };
    match server_process(&session) {
        Some(process) => {
            *connected.liveness.lock() = Some(session);
            check_process(connected, process)
        }
        None => Err("it opened a session, but did not answer in it".to_owned()),
    }
}

/// Asks a server for the numbers that identify its process, over `session`, a connection to one of its devices. Returns
/// `None` if the connection is lost; panics of burn are caught.
fn server_process(session: &Device) -> Option<Process> {
    catch_unwind(AssertUnwindSafe(|| greeting::process(session).ok())).ok()?
}

/// Returns an error if a server was restarted, because it has then lost its tensors. `process` has the numbers that
/// identify the server's process at present; they are compared with those at the time of the connection.
fn check_process(connected: &Connected, process: Process) -> Result<(), String> {
    if process == connected.process { Ok(()) } else { Err(restarted()) }
}

fn restarted() -> String {
    "its server was restarted and has lost its tensors".to_owned()
}
