//! The threads of a pipeline: started, asked for passes, watched, and joined.
//!
//! [`Workers`] owns the channels to and from all workers, the signal that stops them, and the watchdog. It sends commands, gathers
//! replies in the order of stages, and turns a failure of any worker into one error. What a step is, it does not know.
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

/// All workers of all replicas, and the caller's ends of their channels.
pub(crate) struct Workers<In, Target> {
    /// Where each replica's part of a batch enters.
    inputs: Vec<BatchInput<In, Target>>,
    /// The running workers, replica by replica; empty once they have ended.
    handles: Vec<WorkerHandle>,
    replies: Replies,
    stop: Arc<Stop>,
    watch: Watch,
    /// The device of each stage, by replica.
    devices: Vec<Vec<Device>>,
    /// The number of stages of one replica.
    stages: usize,
    /// The stages of the first replica, once their workers have ended.
    ended: Vec<Box<dyn Runner>>,
    /// The stages of the first replica on hosts that no longer answer.
    out_of_reach: Vec<usize>,
}

/// The messages that workers send.
struct Replies {
    finished: Receiver<Outcome>,
    stepped: Receiver<Stepped>,
    recorded: Receiver<Recorded>,
    saved: Receiver<StageState>,
}

struct WorkerHandle {
    replica: Replica,
    commands: Sender<Command>,
    verdicts: Sender<Verdict>,
    thread: JoinHandle<Vec<Box<dyn Runner>>>,
    progress: ProgressBoard,
    /// The number of events of a step or a rehearsal, whichever has more.
    events: usize,
    /// The bytes of the packing buffer of each of its kernel threads.
    packing_buffer: u64,
}

/// Why a pass ended early.
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
    /// The number of replicas.
    pub(crate) fn replicas(&self) -> usize {
        self.inputs.len()
    }

    /// The number of workers of all replicas that still run.
    pub(crate) fn running(&self) -> usize {
        self.handles.len()
    }

    /// The bytes of the largest packing buffer of a kernel thread.
    pub(crate) fn packing_buffer(&self) -> u64 {
        self.handles.iter().map(|worker| worker.packing_buffer).max().unwrap_or(0)
    }

    /// Records that all stages have made this many steps.
    pub(crate) fn commit(&self, steps: usize) -> Result<(), Ended> {
        Ok(self.stop.commit(steps)?)
    }
}
