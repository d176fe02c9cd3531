//! The threads of the system, and crossbeam's channels.

use std::convert::Infallible;
use std::io;
pub(crate) use std::sync::atomic::AtomicBool;
use std::thread::{Builder, sleep};
pub(crate) use std::thread::{JoinHandle, yield_now};
use std::time::Duration;

use crossbeam_channel::select;
pub(crate) use crossbeam_channel::{Receiver, Sender, TryRecvError, TrySendError, bounded};
use rayon::{ThreadPool, ThreadPoolBuilder};

use super::Over;

/// How long a wait looks again for a message before it sleeps: to wake a thread takes up to that long.
pub(crate) const PATIENCE: Duration = Duration::from_micros(50);

/// Waits until it is worth to look whether there is room in a channel, which there nearly always is.
pub(crate) fn pause() {
    std::thread::sleep(PATIENCE);
}

/// Starts a thread.
pub(crate) fn spawn<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    Builder::new().name(name.to_owned()).spawn(run)
}

/// So many threads for kernels, with this one as the first.
pub(crate) fn kernels(
    name: &str,
    cores: usize,
    started: impl Fn() + Send + Sync + 'static,
) -> Result<ThreadPool, String> {
    let name = name.to_owned();
    let pool = ThreadPoolBuilder::new().num_threads(cores).use_current_thread().start_handler(move |_| started());
    pool.thread_name(move |core| format!("{name}-core-{core}")).build().map_err(|error| error.to_string())
}

/// Waits until it has ended, but not longer than that; whether it has.
pub(crate) fn ends_within<T>(thread: &JoinHandle<T>, patience: Duration) -> bool {
    let start = std::time::Instant::now();
    while start.elapsed() < patience && !thread.is_finished() {
        sleep(Duration::from_millis(1));
    }
    thread.is_finished()
}

/// Receives, unless the signal's other end is dropped, or nothing comes for so long.
pub(crate) fn receive_or<T>(
    channel: &Receiver<T>,
    signal: &Receiver<Infallible>,
    within: Option<Duration>,
) -> Result<T, Over> {
    match within {
        None => select! {
            recv(channel) -> message => message.map_err(|_| Over::Ended),
            recv(signal) -> _ => Err(Over::Ended),
        },
        Some(within) => select! {
            recv(channel) -> message => message.map_err(|_| Over::Ended),
            recv(signal) -> _ => Err(Over::Ended),
            default(within) => Err(Over::InVain),
        },
    }
}

/// Sends, unless the signal's other end is dropped.
pub(crate) fn send_or<T>(channel: &Sender<T>, message: T, signal: &Receiver<Infallible>) -> Result<(), Over> {
    select! {
        send(channel, message) -> sent => sent.map_err(|_| Over::Ended),
        recv(signal) -> _ => Err(Over::Ended),
    }
}
