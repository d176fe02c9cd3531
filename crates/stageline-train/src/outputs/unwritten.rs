//! Errors from writing a run's outputs after its last training step ([`Unwritten`]).

use std::sync::Arc;

use anyhow::{Error, Result, anyhow};
use parking_lot::Mutex;

/// Collects errors from writing a checkpoint, log, page or export after the last training step, so that the run can
/// still write its other outputs. [`Program::main`](crate::Program::main) returns status 1 if there are any. Clones
/// share the errors.
#[derive(Clone, Debug, Default)]
pub struct Unwritten(Arc<Mutex<Vec<Error>>>);

impl Unwritten {
    /// Returns the value of `written`, the result of writing an output. An error is instead collected for
    /// [`first`](Self::first), and logged unless it repeats the previous message; `None` is then returned.
    pub fn unless<T>(&self, written: Result<T>) -> Option<T> {
        let keep = |error: Error| {
            let (mut errors, text) = (self.0.lock(), format!("{error:#}"));
            if errors.last().is_none_or(|last| format!("{last:#}") != text) {
                tracing::error!("not everything is written: {text}");
            }
            errors.push(error);
        };
        written.map_err(keep).ok()
    }

    /// Checks that all outputs were written.
    ///
    /// # Errors
    /// Returns the first of the collected errors.
    pub fn first(&self) -> Result<()> {
        self.0.lock().first().map_or(Ok(()), |error| Err(anyhow!("{error:#}")))
    }
}
