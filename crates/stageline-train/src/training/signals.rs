//! SIGINT and SIGTERM handlers for a run that writes checkpoints ([`Signals`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use parking_lot::Mutex;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::{SigId, flag, low_level};

/// The exit status after a second SIGINT or SIGTERM, the same that shells use for SIGINT.
const INTERRUPTED: i32 = 130;

/// SIGINT and SIGTERM handlers: the first signal requests the end of the run, with a checkpoint, and a second one ends
/// the process. After this value is dropped without a signal, a signal ends the process, as if no handlers were
/// installed.
pub struct Signals {
    signalled: Arc<AtomicBool>,
    /// Whether a signal ends the process immediately, as if no handlers were installed. False until this value is
    /// dropped.
    by_default: Arc<AtomicBool>,
    over: Arc<AtomicBool>,
}

/// The installed signal handlers of all training runs in this process, each with a flag that becomes true when its run
/// is over, so that a later run can remove them.
static HANDLERS: Mutex<Vec<(SigId, Arc<AtomicBool>)>> = Mutex::new(Vec::new());

impl Signals {
    /// Installs the SIGINT and SIGTERM handlers. Removes those of earlier runs that are over, because they would end
    /// the process at the first signal.
    pub fn handle() -> Result<Self> {
        let signals = Self { signalled: Arc::default(), by_default: Arc::default(), over: Arc::default() };
        let mut handlers = HANDLERS.lock();
        handlers.retain(|(handler, over)| !over.load(Ordering::Acquire) || !low_level::unregister(*handler));
        for signal in [SIGINT, SIGTERM] {
            let (signalled, by_default) = (&signals.signalled, &signals.by_default);
            // The order matters: at the first signal, the conditional shutdown still sees an unset flag, so the process
            // continues; the last handler then sets the flag.
            for handler in [
                flag::register_conditional_default(signal, Arc::clone(by_default))?,
                flag::register_conditional_shutdown(signal, INTERRUPTED, Arc::clone(signalled))?,
                flag::register(signal, Arc::clone(signalled))?,
            ] {
                handlers.push((handler, Arc::clone(&signals.over)));
            }
        }
        Ok(signals)
    }

    /// Returns the flag that becomes true at the first SIGINT or SIGTERM, so that waits can end early.
    pub fn signalled(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.signalled)
    }

    /// Whether SIGINT or SIGTERM has arrived, so that the run must end.
    pub fn is_signalled(&self) -> bool {
        self.signalled.load(Ordering::Acquire)
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        // After a first signal, a second one still ends the process, even during the pipeline's shutdown.
        self.by_default.store(!self.is_signalled(), Ordering::Release);
        self.over.store(true, Ordering::Release);
    }
}
