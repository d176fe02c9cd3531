//! Runs work that may never end, such as a request that a host does not answer, on a thread of its own with a time
//! limit ([`Pending`]).

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// The pending result of work that runs on its own thread and may never end, such as a request to a host. If the caller
/// stops waiting, the thread continues, and its result is dropped.
pub(super) struct Pending<T> {
    began: Instant,
    result: mpsc::Receiver<T>,
}

impl<T: Send + 'static> Pending<T> {
    /// Starts the function `work` on a new thread, and returns its pending result.
    pub(super) fn start(work: impl FnOnce() -> T + Send + 'static) -> Self {
        let (done, result) = mpsc::channel();
        // Sending fails if nobody waits for the result any more, which is not an error.
        thread::spawn(move || done.send(work()));
        Self { began: Instant::now(), result }
    }

    /// Waits for the work's result, at most until `limit` after the work started. The error is `Timeout` if the work
    /// took longer, and `Disconnected` if it panicked.
    pub(super) fn within(self, limit: Duration) -> Result<T, RecvTimeoutError> {
        self.result.recv_timeout(limit.saturating_sub(self.began.elapsed()))
    }
}
