//! The handlers of SIGINT and SIGTERM in a run that writes checkpoints ([`Signals`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use parking_lot::Mutex;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::{SigId, flag, low_level};

/// The exit status of a process that a second SIGINT or SIGTERM ends. Shells use the same status for SIGINT.
const INTERRUPTED: i32 = 130;

/// The handlers of SIGINT and SIGTERM. The first signal ends the training with a checkpoint, and the second ends the
/// process. If no signal came before this value is dropped, a later one ends the process as it does without handlers.
pub struct Signals {
    signalled: Arc<AtomicBool>,
    /// Whether a signal ends the process as it does without handlers. False until this value is dropped.
    by_default: Arc<AtomicBool>,
    over: Arc<AtomicBool>,
}

/// The handlers of runs in this process, each with the flag that says whether its run is over.
static HANDLERS: Mutex<Vec<(SigId, Arc<AtomicBool>)>> = Mutex::new(Vec::new());

impl Signals {
    /// Installs the handlers. Removes the handlers of runs that are over, which would end the process at the first
    /// signal.
    pub fn handle() -> Result<Self> {
        let signals = Self { signalled: Arc::default(), by_default: Arc::default(), over: Arc::default() };
        let mut handlers = HANDLERS.lock();
        handlers.retain(|(handler, over)| !over.load(Ordering::Acquire) || !low_level::unregister(*handler));
        for signal in [SIGINT, SIGTERM] {
            let (signalled, by_default) = (&signals.signalled, &signals.by_default);
            // In this order, the first signal finds the flag unset and does not end the process.
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

    /// Returns the flag that becomes true at the first SIGINT or SIGTERM.
    pub fn signalled(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.signalled)
    }

    /// Whether a signal has come, after which the training ends.
    pub fn is_signalled(&self) -> bool {
        self.signalled.load(Ordering::Acquire)
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        // After a first signal, a second one ends the process also while the pipeline is taken down.
        self.by_default.store(!self.is_signalled(), Ordering::Release);
        self.over.store(true, Ordering::Release);
    }
}
