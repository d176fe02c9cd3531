//! The errors in writing the outputs of a training that has made its last step ([`Unwritten`]).

use std::sync::Arc;

use anyhow::Error;
use parking_lot::Mutex;

/// The errors in writing a checkpoint, a log or a page after the last step of a training. They must not take the trained
/// pipeline from the program, which may still export it, so the program ends with them. Clones share the errors.
#[derive(Clone, Default)]
pub struct Unwritten(Arc<Mutex<Vec<Error>>>);

impl Unwritten {
    /// Logs an error, and keeps it for the end of the program.
    pub fn add(&self, error: Error) {
        tracing::error!("the training is complete, but: {error:#}");
        self.0.lock().push(error);
    }

    /// Returns the first error, if there is one.
    pub fn first(&self) -> Result<(), Error> {
        let mut errors = self.0.lock();
        if errors.is_empty() { Ok(()) } else { Err(errors.swap_remove(0)) }
    }
}
