//! The stop signal: the first error ends every wait.

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

/// A wait ended because the pipeline stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stopped;

/// What it has come to.
struct Outcome {
    /// How many steps all stages have made. It stays what it is when the first error comes.
    committed: usize,
    raised: bool,
    first: Option<StepError>,
}

/// Shared by all workers and the caller. Every wait in the pipeline goes through it.
pub(crate) struct Stop {
    outcome: Mutex<Outcome>,
    /// For those who do not wait.
    flag: AtomicBool,
    /// For those who do: dropping this disconnects `raised`, which every wait watches.
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

    /// Ends every wait. The first error is kept; later ones are its consequences.
    pub(crate) fn raise(&self, error: StepError) {
        {
            let mut outcome = self.outcome.lock();
            if !outcome.raised {
                (outcome.raised, outcome.first) = (true, Some(error));
            }
        }
        self.flag.store(true, Ordering::Release);
        // Dropped outside of the lock: it wakes others.
        let armed = self.armed.lock().take();
        drop(armed);
    }

    /// The first error, once.
    pub(crate) fn take_error(&self) -> Option<StepError> {
        self.outcome.lock().first.take()
    }

    /// All stages have made so many steps, unless an error came before that was said: then they all undo the last one.
    pub(crate) fn commit(&self, steps: usize) -> Result<(), Stopped> {
        let mut outcome = self.outcome.lock();
        if outcome.raised {
            return Err(Stopped);
        }
        outcome.committed = steps;
        Ok(())
    }

    /// How many steps all stages have made.
    pub(crate) fn committed(&self) -> usize {
        self.outcome.lock().committed
    }

    /// Whether to go on.
    pub(crate) fn check(&self) -> Result<(), Stopped> {
        if self.flag.load(Ordering::Acquire) { Err(Stopped) } else { Ok(()) }
    }

    /// Receives, unless the pipeline stops or the other end is gone.
    pub(crate) fn receive<T>(&self, channel: &Receiver<T>) -> Result<T, Stopped> {
        match self.try_receive(channel)? {
            Some(message) => Ok(message),
            None => self.await_message(channel),
        }
    }

    /// The same, but none if nothing comes for so long.
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

    /// Sends, unless the pipeline stops or the other end is gone.
    pub(crate) fn send<T>(&self, channel: &Sender<T>, message: T) -> Result<(), Stopped> {
        match self.try_send(channel, message)? {
            None => Ok(()),
            Some(message) => self.await_room(channel, message),
        }
    }

    /// The same, but the message comes back if there is no room for so long.
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

    /// What is there already, if anything.
    fn try_receive<T>(&self, channel: &Receiver<T>) -> Result<Option<T>, Stopped> {
        self.check()?;
        match channel.try_recv() {
            Ok(message) => Ok(Some(message)),
            Err(TryRecvError::Disconnected) => Err(Stopped),
            Err(TryRecvError::Empty) => Ok(None),
        }
    }

    /// What comes in a short time. It leaves its core to whoever is ready meanwhile.
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

    /// The message, if there is no room for it.
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

/// A worker's waits, timed.
pub(crate) struct Waits {
    stop: Arc<Stop>,
    waited: Cell<Duration>,
}

impl Waits {
    pub(crate) fn new(stop: Arc<Stop>) -> Self {
        Self { stop, waited: Cell::default() }
    }

    /// How long there was nothing to do but wait, since this was last asked.
    pub(crate) fn take(&self) -> Duration {
        self.waited.take()
    }

    pub(crate) fn raise(&self, error: StepError) {
        self.stop.raise(error);
    }

    /// As [`Stop::committed`].
    pub(crate) fn committed(&self) -> usize {
        self.stop.committed()
    }

    pub(crate) fn check(&self) -> Result<(), Stopped> {
        self.stop.check()
    }

    /// As [`Stop::receive`].
    pub(crate) fn receive<T>(&self, channel: &Receiver<T>) -> Result<T, Stopped> {
        match self.stop.try_receive(channel)? {
            Some(message) => Ok(message),
            None => self.timed(|| self.stop.await_message(channel)),
        }
    }

    /// What is there already, if anything.
    pub(crate) fn try_receive<T>(&self, channel: &Receiver<T>) -> Result<Option<T>, Stopped> {
        self.stop.try_receive(channel)
    }

    /// As [`Stop::send`].
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
    use crate::model::batch::BatchError;
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
    fn who_need_not_wait_stops_too() {
        let stop = Stop::new();
        let (sender, receiver) = bounded(2);
        stop.send(&sender, 1).unwrap();
        stop.raise(BatchError::NoWeight.into());
        assert_eq!(stop.send(&sender, 2), Err(Stopped));
        assert_eq!(stop.receive(&receiver), Err(Stopped));
    }

    #[test]
    fn what_all_have_made_is_no_more_once_there_is_an_error() {
        let stop = Stop::new();
        stop.commit(1).unwrap();
        stop.raise(BatchError::NoWeight.into());
        assert_eq!((stop.commit(2), stop.committed()), (Err(Stopped), 1));
    }
}
