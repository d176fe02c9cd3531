//! Writes in the background, one at a time.

use std::any::Any;
use std::path::PathBuf;
use std::thread::{Builder, JoinHandle};

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::checkpoint::Checkpoint;
use crate::error::CheckpointError;
use crate::store::Store;

type Written = Result<PathBuf, CheckpointError>;

/// Writes in the background, one at a time. Dropping it waits for what is being written, and drops its error: call
/// [`finish`](Self::finish) to see it.
#[derive(Debug)]
pub struct Writer {
    /// `None` once it is closed.
    checkpoints: Option<Sender<Checkpoint>>,
    written: Receiver<Written>,
    /// `None` once it is joined.
    thread: Option<JoinHandle<()>>,
    pending: bool,
    /// What the thread said when it panicked.
    panicked: Option<String>,
}

impl Writer {
    /// Starts the thread that writes into `store`.
    ///
    /// # Errors
    /// [`CheckpointError::Thread`].
    pub fn new(mut store: Store) -> Result<Self, CheckpointError> {
        Self::start(move |checkpoint| store.save(checkpoint))
    }

    fn start(mut save: impl FnMut(&Checkpoint) -> Written + Send + 'static) -> Result<Self, CheckpointError> {
        let (checkpoints, waiting) = bounded::<Checkpoint>(1);
        let (done, written) = bounded(1);
        let run = move || {
            for checkpoint in waiting {
                let path = save(&checkpoint);
                drop(checkpoint); // its memory is free before the next one comes
                if done.send(path).is_err() {
                    break;
                }
            }
        };
        let thread = Builder::new().name("checkpoint".into()).spawn(run);
        let thread = thread.map_err(|source| CheckpointError::Thread { source })?;
        Ok(Self { checkpoints: Some(checkpoints), written, thread: Some(thread), pending: false, panicked: None })
    }

    /// Hands a checkpoint over. Waits while the one before is still being written, and gives its path, if there was
    /// one.
    ///
    /// # Errors
    /// That of the checkpoint before: then this one is not written, and the next one may be. After
    /// [`CheckpointError::NotDurable`] and [`CheckpointError::Prune`], the checkpoint before is in its place.
    pub fn write(&mut self, checkpoint: Checkpoint) -> Result<Option<PathBuf>, CheckpointError> {
        let before = self.wait()?;
        match self.checkpoints.as_ref().map(|checkpoints| checkpoints.send(checkpoint)) {
            Some(Ok(())) => self.pending = true,
            _ => return Err(self.panic()),
        }
        Ok(before)
    }

    /// Waits for what is being written, and gives its path; `None` if nothing was.
    ///
    /// # Errors
    /// That of the last checkpoint. After [`CheckpointError::NotDurable`] and [`CheckpointError::Prune`], it is in its
    /// place.
    pub fn finish(mut self) -> Result<Option<PathBuf>, CheckpointError> {
        self.wait()
    }

    fn wait(&mut self) -> Result<Option<PathBuf>, CheckpointError> {
        if !std::mem::take(&mut self.pending) {
            return Ok(None);
        }
        match self.written.recv() {
            Ok(written) => written.map(Some),
            Err(_) => Err(self.panic()),
        }
    }

    /// What the thread panicked with; it ends in no other way while there is a writer.
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
        self.checkpoints = None; // ends the thread's loop
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // a panic of an unwaited write goes with its error
        }
    }
}

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
    use crate::checkpoint::Progress;

    fn checkpoint(steps: u64) -> Checkpoint {
        let progress = Progress { steps, optimizer_steps: 0, loss_scale: None };
        Checkpoint { progress, run: BTreeMap::new(), parameters: BTreeMap::new(), optimizer: BTreeMap::new() }
    }

    fn path_of(checkpoint: &Checkpoint) -> PathBuf {
        checkpoint.progress.steps.to_string().into()
    }

    #[test]
    fn a_panic_comes_out_as_an_error_again_and_again() {
        let mut writer = Writer::start(|checkpoint| panic!("no step {}", checkpoint.progress.steps)).unwrap();
        writer.write(checkpoint(7)).unwrap();
        for steps in 8..11 {
            let error = writer.write(checkpoint(steps)).unwrap_err();
            assert!(matches!(&error, CheckpointError::Panicked { message } if message == "no step 7"), "{error}");
        }
        assert_eq!(writer.finish().unwrap(), None);
    }

    #[test]
    fn a_panic_comes_out_at_the_end_and_not_out_of_a_drop() {
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
    fn a_write_waits_for_the_one_before() {
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
        assert_eq!(written.load(Ordering::SeqCst), 0, "the gate is shut, and the write came back");
        let opener = thread::spawn(move || (0..2).for_each(|_| open.send(()).unwrap()));
        assert_eq!(writer.write(checkpoint(2)).unwrap(), Some("1".into()));
        assert!(written.load(Ordering::SeqCst) >= 1);
        drop(writer);
        assert_eq!(written.load(Ordering::SeqCst), 2, "a drop waits too");
        opener.join().unwrap();
    }
}
