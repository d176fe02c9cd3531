//! The threads of a pipeline: started, asked for passes, watched, and joined.
//!
//! [`Workers`] owns the channels to and from all workers, the signal that stops them, and the watchdog. It sends
//! commands, gathers replies in the order of stages, and turns a failure of any worker into one error. Must not decide
//! how a step ends.
//!
//! - `start`: starts a thread for each worker of each replica.
//! - `exchange`: sends commands and batches, and gathers replies.
//! - `watch`: waits for a worker, and notices meanwhile that all of them have stopped making progress.
//! - `hosts`: finds out whether an error comes from a lost host or network.
//! - `shutdown`: stops and joins the threads, and keeps their stages.

mod exchange;
mod hosts;
mod shutdown;
mod start;
mod watch;

use std::sync::Arc;

use burn::tensor::Device;

pub(crate) use self::exchange::{terms, total_loss};
pub(crate) use self::start::{BatchInput, Prepared, Replicated};
use self::watch::Watch;
use crate::failure::step_error::StepError;
use crate::failure::stop::{Stop, Stopped};
use crate::failure::watchdog::ProgressBoard;
use crate::model::replica::Replica;
use crate::runner::Runner;
use crate::state::layout::StageState;
use crate::threads::{JoinHandle, Receiver, Sender};
use crate::update::flush::{Outcome, Verdict};
use crate::worker::messages::{Command, Recorded, Stepped};

/// The workers of all replicas, with the caller's ends of their channels.
pub(crate) struct Workers<In, Target> {
    /// The channels through which each replica receives its part of a batch.
    inputs: Vec<BatchInput<In, Target>>,
    /// The running workers, replica by replica; empty once they have ended.
    handles: Vec<WorkerHandle>,
    replies: Replies,
    /// The signal that stops all workers, with the error that caused the stop.
    stop: Arc<Stop>,
    watch: Watch,
    /// The device of each stage, by replica.
    devices: Vec<Vec<Device>>,
    /// The number of stages of one replica.
    stages: usize,
    /// The stages of the first replica, once their workers have ended.
    ended: Vec<Box<dyn Runner>>,
    /// The stages of the first replica whose hosts are unreachable, so that their state cannot be read.
    out_of_reach: Vec<usize>,
}

/// The receivers of the workers' replies, one for each kind of reply.
struct Replies {
    finished: Receiver<Outcome>,
    stepped: Receiver<Stepped>,
    recorded: Receiver<Recorded>,
    saved: Receiver<StageState>,
}

/// A running worker: its thread, its progress, and the caller's ends of its channels.
struct WorkerHandle {
    replica: Replica,
    commands: Sender<Command>,
    verdicts: Sender<Verdict>,
    thread: JoinHandle<Vec<Box<dyn Runner>>>,
    progress: ProgressBoard,
    /// The number of events for which room is allocated: those of a step or a rehearsal, whichever has more.
    events: usize,
    /// The bytes of the buffer in which each kernel thread of the worker packs matrix products.
    packing_buffer: u64,
}

/// The reason why a pass ended early.
pub(crate) enum Ended {
    /// A worker stopped and has reported why.
    ByWorker,
    /// The caller stops the workers with this error.
    ByCaller(StepError),
}

impl From<Stopped> for Ended {
    fn from(Stopped: Stopped) -> Self {
        Self::ByWorker
    }
}

impl<In, Target> Workers<In, Target> {
    /// Returns the number of replicas.
    pub(crate) fn replicas(&self) -> usize {
        self.inputs.len()
    }

    /// Returns the number of running workers of all replicas; 0 once the pipeline has stopped.
    pub(crate) fn running(&self) -> usize {
        self.handles.len()
    }

    /// Returns the bytes of the largest packing buffer of a kernel thread.
    pub(crate) fn packing_buffer(&self) -> u64 {
        self.handles.iter().map(|worker| worker.packing_buffer).max().unwrap_or(0)
    }

    /// Records that all stages have made this many steps, so that none of these is rolled back.
    pub(crate) fn commit(&self, steps: usize) -> Result<(), Ended> {
        Ok(self.stop.commit(steps)?)
    }
}
