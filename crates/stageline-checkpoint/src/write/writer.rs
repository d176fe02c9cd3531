//! Saves checkpoints in the background, one at a time: [`Writer`].

use std::any::Any;
use std::path::PathBuf;
use std::thread::{Builder, JoinHandle};

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::error::CheckpointError;
use crate::format::checkpoint::Checkpoint;
use crate::write::store::Store;

/// The result of a background save: the path of the new checkpoint, or the error of the save.
type Written = Result<PathBuf, CheckpointError>;

/// Saves checkpoints on a background thread, one at a time, while training continues.
///
/// Dropping a writer waits for the pending save and discards its error. Call [`finish`](Self::finish) to get the error.
#[derive(Debug)]
pub struct Writer {
    /// Sends checkpoints to the background thread that saves them. `None` once the channel is closed, which ends the
    /// thread.
    checkpoints: Option<Sender<Checkpoint>>,
    /// Receives the result of each save from the background thread.
    written: Receiver<Written>,
    /// The background thread that saves checkpoints; `None` after the writer has joined it.
    thread: Option<JoinHandle<()>>,
    /// Whether a background save was started whose result has not been received yet.
    pending: bool,
    /// The panic message of the background thread that saves checkpoints; `None` if the thread did not panic.
    panicked: Option<String>,
}

impl Writer {
    /// Starts a background thread that saves checkpoints into `store`.
    ///
    /// # Errors
    /// Returns [`CheckpointError::Thread`] if the thread cannot be started.
    pub fn new(mut store: Store) -> Result<Self, CheckpointError> {
        Self::start(move |checkpoint| store.save(checkpoint))
    }

    fn start(mut save: impl FnMut(&Checkpoint) -> Written + Send + 'static) -> Result<Self, CheckpointError> {
        let (checkpoints, waiting) = bounded::<Checkpoint>(1);
        let (done, written) = bounded(1);
        let run = move || {
            for checkpoint in waiting {
                let path = save(&checkpoint);
                drop(checkpoint); // frees host memory before the next checkpoint arrives
                if done.send(path).is_err() {
                    break;
                }
            }
        };
        let thread = Builder::new().name("checkpoint".into()).spawn(run);
        let thread = thread.map_err(|source| CheckpointError::Thread { source })?;
        Ok(Self { checkpoints: Some(checkpoints), written, thread: Some(thread), pending: false, panicked: None })
    }

    /// Starts to save `checkpoint` in the background, after waiting for the previous save to end. Returns the path of
    /// the previous save's checkpoint; `None` if no save was pending.
    ///
    /// # Errors
    /// Returns the error of the previous save. In this case, `checkpoint` is not written, and the next call may
    /// succeed. After [`CheckpointError::NotDurable`] and [`CheckpointError::Prune`], the previous checkpoint exists.
    /// After a panic of the background thread, every later call returns [`CheckpointError::Panicked`].
    pub fn write(&mut self, checkpoint: Checkpoint) -> Result<Option<PathBuf>, CheckpointError> {
        let before = self.wait()?;
        if self.checkpoints.as_ref().is_none_or(|checkpoints| checkpoints.send(checkpoint).is_err()) {
            return Err(self.panic());
        }
        self.pending = true;
        Ok(before)
    }

    /// Whether [`wait`](Self::wait) would return a save's result without blocking, because the save has ended and its
    /// result has not been taken.
    pub fn has_ended(&self) -> bool {
        self.pending && (!self.written.is_empty() || self.thread.as_ref().is_none_or(JoinHandle::is_finished))
    }

    /// Waits for the pending save and returns the path of its checkpoint; `None` if no save is pending.
    ///
    /// # Errors
    /// Returns the error of the pending save. After [`CheckpointError::NotDurable`] and [`CheckpointError::Prune`], the
    /// checkpoint of that save exists.
    pub fn finish(mut self) -> Result<Option<PathBuf>, CheckpointError> {
        self.wait()
    }

    /// Waits for the pending save to end, so that its checkpoint's host memory is freed before the next checkpoint is
    /// created. Returns the path of the saved checkpoint; `None` if no save is pending.
    ///
    /// # Errors
    /// Returns the pending save's error, like [`finish`](Self::finish).
    pub fn wait(&mut self) -> Result<Option<PathBuf>, CheckpointError> {
        if !std::mem::take(&mut self.pending) {
            return Ok(None);
        }
        match self.written.recv() {
            Ok(written) => written.map(Some),
            Err(_) => Err(self.panic()),
        }
    }

    /// Joins the background thread after a save has panicked, and returns a [`CheckpointError::Panicked`] with the
    /// panic message.
    fn panic(&mut self) -> CheckpointError {
        self.checkpoints = None;
        if let Some(Err(payload)) = self.thread.take().map(JoinHandle::join) {
            self.panicked = Some(message(payload.as_ref()));
        }
        CheckpointError::Panicked { message: self.panicked.clone().unwrap_or_else(|| "for an unknown reason".into()) }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.checkpoints = None; // closes the channel, which ends the thread's loop
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // a drop discards the panic, like the error of a save
        }
    }
}

/// Extracts the panic message of a thread from `payload`, the error value that joining the thread returned.
fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "for an unknown reason".into())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use super::*;
    use crate::format::checkpoint::Progress;

    fn checkpoint(steps: u64) -> Checkpoint {
        let progress = Progress { steps, optimizer_steps: 0, loss_scale: None };
        let (parameters, optimizer, frozen) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Checkpoint { progress, run: BTreeMap::new(), parameters, optimizer, frozen }
    }

    fn path_of(checkpoint: &Checkpoint) -> PathBuf {
        checkpoint.progress.steps.to_string().into()
    }

    #[test]
    fn a_panic_is_the_error_of_every_later_write() {
        let mut writer = Writer::start(|checkpoint| panic!("no step {}", checkpoint.progress.steps)).unwrap();
        writer.write(checkpoint(7)).unwrap();
        for steps in 8..11 {
            let error = writer.write(checkpoint(steps)).unwrap_err();
            assert!(matches!(&error, CheckpointError::Panicked { message } if message == "no step 7"), "{error}");
        }
        assert_eq!(writer.finish().unwrap(), None);
    }

    #[test]
    fn a_panic_is_an_error_of_finish_and_is_discarded_by_a_drop() {
        let mut writer = Writer::start(|_| std::panic::panic_any(7)).unwrap();
        writer.write(checkpoint(1)).unwrap();
        let error = writer.finish().unwrap_err();
        assert!(
            matches!(&error, CheckpointError::Panicked { message } if message == "for an unknown reason"),
            "{error}"
        );
        let mut writer = Writer::start(|_| panic!("unseen")).unwrap();
        writer.write(checkpoint(1)).unwrap();
        drop(writer);
    }

    #[test]
    fn a_write_waits_for_the_previous_one() {
        let (open, gate) = bounded(0);
        let written = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&written);
        let mut writer = Writer::start(move |checkpoint| {
            gate.recv().unwrap();
            count.fetch_add(1, Ordering::SeqCst);
            Ok(path_of(checkpoint))
        })
        .unwrap();
        writer.write(checkpoint(1)).unwrap();
        assert_eq!(written.load(Ordering::SeqCst), 0, "the write returned although the gate is shut");
        let opener = thread::spawn(move || (0..2).for_each(|_| open.send(()).unwrap()));
        assert_eq!(writer.write(checkpoint(2)).unwrap(), Some("1".into()));
        assert!(written.load(Ordering::SeqCst) >= 1);
        drop(writer);
        assert_eq!(written.load(Ordering::SeqCst), 2, "a drop waits too");
        opener.join().unwrap();
    }
}
