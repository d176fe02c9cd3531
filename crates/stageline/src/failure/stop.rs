//! The pipeline's stop signal. The first error that a worker or the caller raises ends all of their waits, and is the
//! error that the caller gets.

use std::cell::Cell;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::failure::step_error::StepError;
use crate::threads::{
    AtomicBool, Over, PATIENCE, Receiver, Sender, TryRecvError, TrySendError, bounded, pause, receive_or, send_or,
    yield_now,
};

/// The error of a send, a receive or another call that fails because the pipeline stops, or because the other end of
/// the channel is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stopped;

/// The state of the pipeline's stop signal, under one lock: the number of committed training steps, and the first
/// error.
struct Outcome {
    /// The number of committed training steps: all stages have made them, and they can no longer be rolled back. It
    /// does not change after the first error.
    committed: usize,
    /// Whether a worker or the caller has raised an error, which stops the pipeline.
    raised: bool,
    /// The first error that was raised, which stopped the pipeline. `None` before an error, and after the caller has
    /// taken it.
    first: Option<StepError>,
}

/// The stop signal that all workers and the caller share. An error that one of them raises ends every wait on every
/// channel of the pipeline.
pub(crate) struct Stop {
    outcome: Mutex<Outcome>,
    /// Whether the pipeline is stopping or has stopped. Threads that do not wait on a channel check this flag.
    flag: AtomicBool,
    /// The sending end of a channel that never carries a message. Every wait of a worker or the caller also watches
    /// this channel. To stop the pipeline, the sending end is dropped, which ends all these waits.
    armed: Mutex<Option<Sender<Infallible>>>,
    raised: Receiver<Infallible>,
}

impl Stop {
    pub(crate) fn new() -> Self {
        let (armed, raised) = bounded(0);
        Self {
            outcome: Mutex::new(Outcome { committed: 0, raised: false, first: None }),
            flag: AtomicBool::new(false),
            armed: Mutex::new(Some(armed)),
            raised,
        }
    }

    /// Stops the pipeline because of `error`: every wait of a worker or the caller on a channel ends. Only the first
    /// error is kept, because later ones are its consequences.
    pub(crate) fn raise(&self, error: StepError) {
        {
            let mut outcome = self.outcome.lock();
            if !outcome.raised {
                (outcome.raised, outcome.first) = (true, Some(error));
            }
        }
        self.flag.store(true, Ordering::Release);
        // The drop wakes other threads, so it happens after the lock is released.
        let armed = self.armed.lock().take();
        drop(armed);
    }

    /// Returns the first error that stopped the pipeline, and removes it from the stop signal. Returns `None` if there
    /// was no error, or if it was returned before.
    pub(crate) fn take_error(&self) -> Option<StepError> {
        self.outcome.lock().first.take()
    }

    /// Records that all stages have made the first `steps` training steps, which can then no longer be rolled back. If
    /// an error was raised before, fails and records nothing; the workers then roll back the step that is not recorded.
    pub(crate) fn commit(&self, steps: usize) -> Result<(), Stopped> {
        let mut outcome = self.outcome.lock();
        if outcome.raised {
            return Err(Stopped);
        }
        outcome.committed = steps;
        Ok(())
    }

    /// Returns the number of training steps that all stages have made and that can no longer be rolled back.
    pub(crate) fn committed(&self) -> usize {
        self.outcome.lock().committed
    }

    /// Fails with [`Stopped`] if a worker or the caller has raised an error, which stops the pipeline.
    pub(crate) fn check(&self) -> Result<(), Stopped> {
        if self.flag.load(Ordering::Acquire) { Err(Stopped) } else { Ok(()) }
    }

    /// Waits for a message on a channel. Fails if the pipeline stops or the channel's sender is gone.
    pub(crate) fn receive<T>(&self, channel: &Receiver<T>) -> Result<T, Stopped> {
        match self.try_receive(channel)? {
            Some(message) => Ok(message),
            None => self.await_message(channel),
        }
    }

    /// Waits at most `wait` for a message on a channel; returns `None` if no message arrives in that time. Fails if the
    /// pipeline stops or the channel's sender is gone.
    pub(crate) fn receive_within<T>(&self, channel: &Receiver<T>, wait: Duration) -> Result<Option<T>, Stopped> {
        if let Some(message) = self.look_for(channel)? {
            return Ok(Some(message));
        }
        match receive_or(channel, &self.raised, Some(wait)) {
            Ok(message) => Ok(Some(message)),
            Err(Over::InVain) => Ok(None),
            Err(Over::Ended) => Err(Stopped),
        }
    }

    /// Waits for room in a channel and sends a message. Fails if the pipeline stops or the channel's receiver is gone.
    pub(crate) fn send<T>(&self, channel: &Sender<T>, message: T) -> Result<(), Stopped> {
        match self.try_send(channel, message)? {
            None => Ok(()),
            Some(message) => self.await_room(channel, message),
        }
    }

    /// Waits at most `wait` for room in a channel and sends a message; returns the message if there is no room in that
    /// time. Fails if the pipeline stops or the channel's receiver is gone.
    pub(crate) fn send_within<T>(&self, channel: &Sender<T>, message: T, wait: Duration) -> Result<Option<T>, Stopped> {
        let start = Instant::now();
        let mut message = message;
        while let Some(back) = self.try_send(channel, message)? {
            if start.elapsed() >= wait {
                return Ok(Some(back));
            }
            message = back;
            pause();
        }
        Ok(None)
    }

    /// Returns a message that is already in a channel, or `None` if there is none, without waiting. Fails if the
    /// pipeline stops or the channel's sender is gone.
    fn try_receive<T>(&self, channel: &Receiver<T>) -> Result<Option<T>, Stopped> {
        self.check()?;
        match channel.try_recv() {
            Ok(message) => Ok(Some(message)),
            Err(TryRecvError::Disconnected) => Err(Stopped),
            Err(TryRecvError::Empty) => Ok(None),
        }
    }

    /// Polls a channel for a message for a short time ([`PATIENCE`]), and yields the core between polls. Returns `None`
    /// if no message arrives in that time. For short waits, polling is cheaper than putting the thread to sleep.
    fn look_for<T>(&self, channel: &Receiver<T>) -> Result<Option<T>, Stopped> {
        let start = Instant::now();
        loop {
            if let Some(message) = self.try_receive(channel)? {
                return Ok(Some(message));
            }
            if start.elapsed() >= PATIENCE {
                return Ok(None);
            }
            yield_now();
        }
    }

    fn await_message<T>(&self, channel: &Receiver<T>) -> Result<T, Stopped> {
        if let Some(message) = self.look_for(channel)? {
            return Ok(message);
        }
        receive_or(channel, &self.raised, None).map_err(|_| Stopped)
    }

    /// Sends a message on a channel without waiting; returns the message if the channel is full. Fails if the pipeline
    /// stops or the channel's receiver is gone.
    fn try_send<T>(&self, channel: &Sender<T>, message: T) -> Result<Option<T>, Stopped> {
        self.check()?;
        match channel.try_send(message) {
            Ok(()) => Ok(None),
            Err(TrySendError::Disconnected(_)) => Err(Stopped),
            Err(TrySendError::Full(message)) => Ok(Some(message)),
        }
    }

    fn await_room<T>(&self, channel: &Sender<T>, message: T) -> Result<(), Stopped> {
        send_or(channel, message, &self.raised).map_err(|_| Stopped)
    }
}

/// A worker's wrapper around the stop signal, through which the worker sends and receives on channels. Sends and
/// receives end when the pipeline stops. The wrapper also measures the total time that the worker waits in them.
pub(crate) struct Waits {
    stop: Arc<Stop>,
    waited: Cell<Duration>,
}

impl Waits {
    pub(crate) fn new(stop: Arc<Stop>) -> Self {
        Self { stop, waited: Cell::default() }
    }

    /// Returns the time that the worker has spent waiting on channels since the last call of this function.
    pub(crate) fn take(&self) -> Duration {
        self.waited.take()
    }

    pub(crate) fn raise(&self, error: StepError) {
        self.stop.raise(error);
    }

    pub(crate) fn committed(&self) -> usize {
        self.stop.committed()
    }

    pub(crate) fn check(&self) -> Result<(), Stopped> {
        self.stop.check()
    }

    /// Waits for a message on a channel, and adds the time of the wait to the worker's total waiting time. Fails if the
    /// pipeline stops or the channel's sender is gone.
    pub(crate) fn receive<T>(&self, channel: &Receiver<T>) -> Result<T, Stopped> {
        match self.stop.try_receive(channel)? {
            Some(message) => Ok(message),
            None => self.timed(|| self.stop.await_message(channel)),
        }
    }

    pub(crate) fn try_receive<T>(&self, channel: &Receiver<T>) -> Result<Option<T>, Stopped> {
        self.stop.try_receive(channel)
    }

    /// Waits for room in a channel, sends a message, and adds the time of the wait to the worker's total waiting time.
    /// Fails if the pipeline stops or the channel's receiver is gone.
    pub(crate) fn send<T>(&self, channel: &Sender<T>, message: T) -> Result<(), Stopped> {
        match self.stop.try_send(channel, message)? {
            None => Ok(()),
            Some(message) => self.timed(|| self.stop.await_room(channel, message)),
        }
    }

    fn timed<R>(&self, wait: impl FnOnce() -> R) -> R {
        let start = Instant::now();
        let result = wait();
        self.waited.set(self.waited.get() + start.elapsed());
        result
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use crate::model::batch_error::BatchError;
    use std::thread;

    #[test]
    fn the_first_error_ends_waits_and_is_kept() {
        let stop = Stop::new();
        let (full, _receiver) = bounded(1);
        full.send(0).unwrap();
        let (_sender, empty) = bounded::<u32>(1);
        thread::scope(|scope| {
            let receiving = scope.spawn(|| stop.receive(&empty));
            let sending = scope.spawn(|| stop.send(&full, 1));
            stop.raise(BatchError::NoWeight.into());
            stop.raise(BatchError::NoTensors.into());
            assert_eq!(receiving.join().unwrap(), Err(Stopped));
            assert_eq!(sending.join().unwrap(), Err(Stopped));
        });
        assert!(matches!(stop.take_error(), Some(StepError::Batch(BatchError::NoWeight))));
    }

    #[test]
    fn sends_and_receives_that_need_not_wait_fail_after_the_stop() {
        let stop = Stop::new();
        let (sender, receiver) = bounded(2);
        stop.send(&sender, 1).unwrap();
        stop.raise(BatchError::NoWeight.into());
        assert_eq!(stop.send(&sender, 2), Err(Stopped));
        assert_eq!(stop.receive(&receiver), Err(Stopped));
    }

    #[test]
    fn no_step_is_committed_after_an_error() {
        let stop = Stop::new();
        stop.commit(1).unwrap();
        stop.raise(BatchError::NoWeight.into());
        assert_eq!((stop.commit(2), stop.committed()), (Err(Stopped), 1));
    }
}
