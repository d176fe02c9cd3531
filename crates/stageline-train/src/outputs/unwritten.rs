//! The errors in writing the outputs of a run after its training ([`Unwritten`]).

use std::sync::Arc;

use anyhow::{Error, Result, anyhow};
use parking_lot::Mutex;

/// Collects errors in writing a checkpoint, a log, a page or an export after the last step of a training run. They do
/// not end the run, so that all other outputs are written, too. At its end
/// [`Program::main`](crate::Program::main) ends with status 1 if there was an error. Clones share the errors.
#[derive(Clone, Debug, Default)]
pub struct Unwritten(Arc<Mutex<Vec<Error>>>);

impl Unwritten {
    /// Returns the value of `written` if there is one. Otherwise keeps the error, so that [`first`](Self::first) can
    /// return it, and returns `None`. The error is also logged, unless the error before it has the same text.
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

    /// Checks that all outputs are written.
    ///
    /// # Errors
    /// Returns the first of the collected errors.
    pub fn first(&self) -> Result<()> {
        self.0.lock().first().map_or(Ok(()), |error| Err(anyhow!("{error:#}")))
    }
}
