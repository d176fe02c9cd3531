//! Threads of the operating system, crossbeam's channels with waits that a stop signal ends, and rayon's thread pools
//! for kernels.

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

/// The time (50 µs) that a thread polls a channel for a message before it sleeps. Waking a thread takes up to this
/// long, so polling saves time if the message comes soon.
pub(crate) const PATIENCE: Duration = Duration::from_micros(50);

/// Sleeps for [`PATIENCE`] (50 µs), the interval at which a sender checks a full channel for room. Such sleeps are
/// rare, because channels nearly always have room.
pub(crate) fn pause() {
    std::thread::sleep(PATIENCE);
}

pub(crate) fn spawn<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    Builder::new().name(name.to_owned()).spawn(run)
}

/// Creates and returns a pool of `cores` threads for tensor operations on the CPU, which includes the calling thread.
/// Operations that the calling thread starts run on this pool, because burn's CPU backend uses the pool of the thread
/// that calls it.
///
/// Each thread of the pool except the calling thread is named after `name` and calls `started` when it starts. These
/// threads end some time after the pool is dropped, because rayon does not join them. The error is rayon's message if a
/// thread cannot be started.
pub(crate) fn kernels(
    name: &str,
    cores: usize,
    started: impl Fn() + Send + Sync + 'static,
) -> Result<ThreadPool, String> {
    let name = name.to_owned();
    let pool = ThreadPoolBuilder::new().num_threads(cores).use_current_thread().start_handler(move |_| started());
    pool.thread_name(move |core| format!("{name}-core-{core}")).build().map_err(|error| error.to_string())
}

/// Waits until a thread has ended, but at most for the time `patience`. Returns true if the thread has ended, so that
/// joining it does not block, and false if it still runs.
pub(crate) fn ends_within<T>(thread: &JoinHandle<T>, patience: Duration) -> bool {
    let start = std::time::Instant::now();
    // Most threads end immediately, so the first waits are short.
    let mut pause = Duration::from_micros(50);
    while start.elapsed() < patience && !thread.is_finished() {
        sleep(pause);
        pause = (2 * pause).min(Duration::from_millis(1));
    }
    thread.is_finished()
}

/// Waits for a message on `channel` and returns it. Fails if all senders of the channel are dropped, if the pipeline
/// stops, or after the optional time limit `within`. `signal` is a channel without messages. Its sender is dropped when
/// the pipeline stops.
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

/// Waits for room in `channel` and sends the message. Fails if all receivers of the channel are dropped, or if the
/// pipeline stops. `signal` is a channel without messages. Its sender is dropped when the pipeline stops.
pub(crate) fn send_or<T>(channel: &Sender<T>, message: T, signal: &Receiver<Infallible>) -> Result<(), Over> {
    select! {
        send(channel, message) -> sent => sent.map_err(|_| Over::Ended),
        recv(signal) -> _ => Err(Over::Ended),
    }
}
