//! The stop signal: the first error ends every wait.

use std::convert::Infallible;

use crossbeam_channel::{Receiver, Sender, TryRecvError, TrySendError, bounded, select};
use parking_lot::Mutex;

/// A wait ended because the pipeline stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stopped;

/// Shared by all workers and the caller. Every wait in the pipeline goes through it.
pub(crate) struct Stop<E> {
    first: Mutex<Option<E>>,
    /// Dropping this disconnects `raised`, which every wait watches.
    armed: Mutex<Option<Sender<Infallible>>>,
    raised: Receiver<Infallible>,
}

impl<E> Stop<E> {
    pub(crate) fn new() -> Self {
        let (armed, raised) = bounded(0);
        Self { first: Mutex::new(None), armed: Mutex::new(Some(armed)), raised }
    }

    /// Ends every wait. The first error is kept; later ones are its consequences.
    pub(crate) fn raise(&self, error: E) {
        self.first.lock().get_or_insert(error);
        self.armed.lock().take();
    }

    /// The first error, once.
    pub(crate) fn take_error(&self) -> Option<E> {
        self.first.lock().take()
    }

    /// Receives, unless the pipeline stops or the other end is gone.
    pub(crate) fn receive<T>(&self, channel: &Receiver<T>) -> Result<T, Stopped> {
        match channel.try_recv() {
            Ok(message) => return Ok(message),
            Err(TryRecvError::Disconnected) => return Err(Stopped),
            Err(TryRecvError::Empty) => {}
        }
        select! {
            recv(channel) -> message => message.map_err(|_| Stopped),
            recv(self.raised) -> _ => Err(Stopped),
        }
    }

    /// Sends, unless the pipeline stops or the other end is gone.
    pub(crate) fn send<T>(&self, channel: &Sender<T>, message: T) -> Result<(), Stopped> {
        let message = match channel.try_send(message) {
            Ok(()) => return Ok(()),
            Err(TrySendError::Disconnected(_)) => return Err(Stopped),
            Err(TrySendError::Full(message)) => message,
        };
        select! {
            send(channel, message) -> sent => sent.map_err(|_| Stopped),
            recv(self.raised) -> _ => Err(Stopped),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn the_first_error_ends_waits_and_is_kept() {
        let stop = Stop::new();
        let (full, receiver) = bounded(1);
        full.send(0).unwrap();
        let (_sender, empty) = bounded::<u32>(1);
        thread::scope(|scope| {
            let receiving = scope.spawn(|| stop.receive(&empty));
            let sending = scope.spawn(|| stop.send(&full, 1));
            stop.raise("first");
            stop.raise("second");
            assert_eq!(receiving.join().unwrap(), Err(Stopped));
            assert_eq!(sending.join().unwrap(), Err(Stopped));
        });
        assert_eq!(stop.take_error(), Some("first"));
        drop(receiver);
    }
}
