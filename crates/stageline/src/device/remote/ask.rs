//! Whether a host is still there.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use burn::tensor::Device;

use super::connect::open_anew;
use super::connected::{Connected, Process};
use super::error::RemoteError;
use super::greeting;
use super::name::HostName;
use super::pending::Pending;

/// How long a host may take to answer that it is still there.
pub(super) const STILL_THERE: Duration = Duration::from_secs(5);

/// A host that was asked whether it is still there.
pub(super) struct Asked {
    host: HostName,
    answer: Pending<Result<(), String>>,
}

/// Asks the host of a device whether it is still there, in a session of its own: that of the device may be what is lost.
pub(super) fn ask(connected: Arc<Connected>) -> Asked {
    Asked { host: connected.name.host.clone(), answer: Pending::of(move || is_there(&connected)) }
}

impl Asked {
    pub(super) fn answer(self) -> (HostName, Result<(), String>) {
        let silent = |_| Err(format!("it does not answer for {} s", STILL_THERE.as_secs()));
        (self.host, self.answer.within(STILL_THERE).unwrap_or_else(silent))
    }
}

/// What says that it is not.
fn is_there(connected: &Connected) -> Result<(), String> {
    let known = connected.asking.lock().clone();
    if let Some(process) = known.and_then(|session| served_by(&session)) {
        return is_the_same(connected, process);
    }
    // There was none, or it is lost, which does not mean that the host is.
    let session = match open_anew(connected, "is it there") {
        Ok(session) => session,
        Err(RemoteError::Unreachable { cause, .. } | RemoteError::Broken { cause, .. }) => return Err(cause),
        // Who refuses is there.
        Err(_) => return Ok(()),
    };
    match served_by(&session) {
        Some(process) => {
            *connected.asking.lock() = Some(session);
            is_the_same(connected, process)
        }
        None => Err("it opens a session, and does not answer in it".to_owned()),
    }
}

fn served_by(session: &Device) -> Option<Process> {
    catch_unwind(AssertUnwindSafe(|| greeting::process(session).ok())).ok()?
}

fn is_the_same(connected: &Connected, process: Process) -> Result<(), String> {
    let again = || "its server was started again, and has lost what it held".to_owned();
    if process == connected.process { Ok(()) } else { Err(again()) }
}
