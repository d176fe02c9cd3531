//! Answers of hosts, which may never come.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// What a thread of its own will come to; it is left behind where that takes too long.
pub(super) struct Pending<T> {
    began: Instant,
    result: mpsc::Receiver<T>,
}

impl<T: Send + 'static> Pending<T> {
    pub(super) fn of(work: impl FnOnce() -> T + Send + 'static) -> Self {
        let (done, result) = mpsc::channel();
        // Nobody waits for it any more, if it takes too long.
        thread::spawn(move || done.send(work()));
        Self { began: Instant::now(), result }
    }

    /// Waits until so long after it began; it is disconnected if it panicked.
    pub(super) fn within(self, limit: Duration) -> Result<T, RecvTimeoutError> {
        self.result.recv_timeout(limit.saturating_sub(self.began.elapsed()))
    }
}
