//! Threads and channels for tests that explore interleavings with [shuttle](https://github.com/awslabs/shuttle).
//!
//! shuttle runs one thread at a time and chooses the next thread whenever a lock is used. The channels here are built
//! from shuttle's locks, so a test explores many orders of sends and receives, and finds deadlocks.

use std::any::Any;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
pub(crate) use shuttle::sync::atomic::AtomicBool;
use shuttle::sync::{Condvar, Mutex as Lock, MutexGuard};
pub(crate) use shuttle::thread::{yield_now, yield_now as pause};

use super::Over;

/// The time that a thread polls a channel for a message before it sleeps: zero, because no time passes in tests under
/// the thread scheduler shuttle.
pub(crate) const PATIENCE: Duration = Duration::ZERO;

shuttle::lazy_static! {
    /// The one lock and the one condition variable for all channels of a test. With them, a thread can wait for a
    /// message and for the pipeline's stop signal at the same time.
    static ref WORLD: World = World { lock: Lock::new(()), changed: Condvar::new() };
}

struct World {
    lock: Lock<()>,
    changed: Condvar,
}

impl World {
    fn enter(&self) -> MutexGuard<'_, ()> {
        self.lock.lock().expect("no thread panics while it holds the lock of all channels")
    }

    fn wait<'a>(&self, guard: MutexGuard<'a, ()>) -> MutexGuard<'a, ()> {
        self.changed.wait(guard).expect("no thread panics while it holds the lock of all channels")
    }
}

/// The state that the senders and receivers of a channel share.
struct Shared<T> {
    queue: VecDeque<T>,
    capacity: usize,
    senders: usize,
    receivers: usize,
    /// Number of receivers that currently wait for a message. A channel of capacity 0 accepts a message only while a
    /// receiver waits.
    waiting: usize,
}

impl<T> Shared<T> {
    fn has_room(&self) -> bool {
        self.queue.len() < if self.capacity == 0 { self.waiting } else { self.capacity }
    }
}

pub(crate) struct Sender<T>(Arc<Mutex<Shared<T>>>);
pub(crate) struct Receiver<T>(Arc<Mutex<Shared<T>>>);

#[derive(Debug)]
pub(crate) enum TrySendError<T> {
    Full(T),
    Disconnected(T),
}

#[derive(Debug)]
pub(crate) enum TryRecvError {
    Empty,
    Disconnected,
}

/// Creates a bounded channel with room for `capacity` messages; with capacity 0 a send waits for a receiver.
pub(crate) fn bounded<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    let shared = Shared { queue: VecDeque::new(), capacity, senders: 1, receivers: 1, waiting: 0 };
    let shared = Arc::new(Mutex::new(shared));
    (Sender(Arc::clone(&shared)), Receiver(shared))
}

impl<T> Sender<T> {
    pub(crate) fn try_send(&self, message: T) -> Result<(), TrySendError<T>> {
        let _world = WORLD.enter();
        self.put(message)
    }

    pub(crate) fn send(&self, message: T) -> Result<(), Over> {
        self.wait_with(message, || false)
    }

    /// Waits for room in the channel and sends the message. Fails if all receivers of the channel are dropped, or if
    /// the channel is full and `ended` returns true, which means that the pipeline stops.
    fn wait_with(&self, mut message: T, ended: impl Fn() -> bool) -> Result<(), Over> {
        let mut world = WORLD.enter();
        loop {
            match self.put(message) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Disconnected(_)) => return Err(Over::Ended),
                Err(TrySendError::Full(_)) if ended() => return Err(Over::Ended),
                Err(TrySendError::Full(back)) => message = back,
            }
            world = WORLD.wait(world);
        }
    }

    /// Adds a message to the channel without waiting; returns the message as an error if the channel is full or has no
    /// receivers. The caller must hold the one lock that all channels of a test share.
    fn put(&self, message: T) -> Result<(), TrySendError<T>> {
        let mut shared = self.0.lock();
        if shared.receivers == 0 {
            return Err(TrySendError::Disconnected(message));
        }
        if !shared.has_room() {
            return Err(TrySendError::Full(message));
        }
        shared.queue.push_back(message);
        WORLD.changed.notify_all();
        Ok(())
    }
}

impl<T> Receiver<T> {
    pub(crate) fn try_recv(&self) -> Result<T, TryRecvError> {
        let _world = WORLD.enter();
        self.take()
    }

    pub(crate) fn recv(&self) -> Result<T, Over> {
        self.wait_for(|| false)
    }

    /// Takes the oldest message out of the channel without waiting; fails if the channel is empty. The caller must hold
    /// the one lock that all channels of a test share.
    fn take(&self) -> Result<T, TryRecvError> {
        let mut shared = self.0.lock();
        match shared.queue.pop_front() {
            Some(message) => {
                WORLD.changed.notify_all();
                Ok(message)
            }
            None if shared.senders == 0 => Err(TryRecvError::Disconnected),
            None => Err(TryRecvError::Empty),
        }
    }

    /// Whether all senders of the channel were dropped, so that no further message can arrive on it.
    fn is_cut(&self) -> bool {
        self.0.lock().senders == 0
    }

    /// Waits for a message on the channel and returns it. Fails if all senders of the channel are dropped, or if the
    /// channel is empty and `ended` returns true, which means that the pipeline stops.
    fn wait_for(&self, ended: impl Fn() -> bool) -> Result<T, Over> {
        let mut world = WORLD.enter();
        self.0.lock().waiting += 1;
        WORLD.changed.notify_all();
        let result = loop {
            match self.take() {
                Ok(message) => break Ok(message),
                Err(TryRecvError::Disconnected) => break Err(Over::Ended),
                Err(TryRecvError::Empty) if ended() => break Err(Over::Ended),
                Err(TryRecvError::Empty) => world = WORLD.wait(world),
            }
        };
        self.0.lock().waiting -= 1;
        drop(world);
        result
    }
}

/// Waits for a message on `channel` and returns it. Fails if all senders of the channel are dropped, or if the pipeline
/// stops, which drops the sender of `signal`. The time limit is ignored, because no time passes in tests under the
/// thread scheduler shuttle.
pub(crate) fn receive_or<T>(
    channel: &Receiver<T>,
    signal: &Receiver<Infallible>,
    _within: Option<Duration>,
) -> Result<T, Over> {
    channel.wait_for(|| signal.is_cut())
}

/// Waits for room in `channel` and sends the message. Fails if all receivers of the channel are dropped, or if the
/// pipeline stops, which drops the sender of `signal`.
pub(crate) fn send_or<T>(channel: &Sender<T>, message: T, signal: &Receiver<Infallible>) -> Result<(), Over> {
    channel.wait_with(message, || signal.is_cut())
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.0.lock().senders += 1;
        Self(Arc::clone(&self.0))
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        leave(|| self.0.lock().senders -= 1);
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        leave(|| self.0.lock().receivers -= 1);
    }
}

/// Runs `change`, which lowers the count of a channel's senders or receivers when one is dropped, under the lock that
/// all channels of a test share, and wakes every waiting thread. While a failed test unwinds, only runs `change`,
/// because the thread scheduler shuttle then runs no threads.
fn leave(change: impl FnOnce()) {
    if std::thread::panicking() {
        return change();
    }
    let _world = WORLD.enter();
    change();
    WORLD.changed.notify_all();
}

/// The handle of a test thread that the thread scheduler shuttle runs. Joining it waits for the end of the thread and
/// returns the thread's result.
pub(crate) struct JoinHandle<T>(shuttle::thread::JoinHandle<T>);

impl<T> JoinHandle<T> {
    pub(crate) fn join(self) -> Result<T, Box<dyn Any + Send>> {
        self.0.join()
    }
}

/// Starts a thread with the given name in a test; the thread scheduler shuttle decides when the thread runs.
pub(crate) fn spawn<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    shuttle::thread::Builder::new().name(name.to_owned()).spawn(run).map(JoinHandle)
}

/// Stand-in for the function that creates a worker's thread pool for CPU computations. It does nothing, because threads
/// in tests under the thread scheduler shuttle compute without a pool.
pub(crate) fn kernels(_: &str, _: usize, _: impl Fn() + Send + Sync + 'static) -> Result<(), String> {
    Ok(())
}

/// Stand-in for the function that waits a limited time for a thread to end. Returns true immediately, so that the
/// caller joins the thread, because no time passes in tests under the thread scheduler shuttle.
pub(crate) fn ends_within<T>(_: &JoinHandle<T>, _: Duration) -> bool {
    true
}
