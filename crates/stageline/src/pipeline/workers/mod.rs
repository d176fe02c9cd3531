//! The worker threads of a pipeline, seen by the caller: started, commanded, watched for stalls, and joined.
//!
//! Input: assembled replicas, commands, batches, and verdicts (step the optimizers, or skip the step). Output: outcomes
//! (losses, gradient norms), reports, events and states of all stages, in the order of replicas and stages; or one
//! error. This folder owns [`Workers`]: the caller's ends of all channels (`Replies`), the thread handles
//! (`WorkerHandle`), the number of workers that run (`running`), the stop signal and the watchdog. It must not decide
//! how a step ends, and the loop of a worker thread itself is in `worker`.
//!
//! A step or another request of the caller ends early (`Ended`) because of an error in a worker, or because of an error
//! that the caller's thread finds.
//!
//! - `start`: starts a thread for each worker of each replica, and creates its channels (`Prepared`, `BatchChannels`).
//! - `exchange`: sends commands, batches and verdicts to the workers, and gathers their replies (`Finished`); computes
//!   the expected ledgers (counts of micro-batches), and divides summed losses and metrics by their weight.
//! - `watch`: the state from which the watchdog detects a stall (`Watch`): the current pass, its start, the longest
//!   action.
//! - `wait`: blocking sends and receives that check at intervals whether any worker makes progress. `failure` computes
//!   how long no worker has made progress; here, this time is compared with the time limit, for a warning or an error.
//! - `hosts`: finds out whether an error comes from a lost host, or from a broken network link between hosts.
//! - `shutdown`: stops and joins the threads, and keeps their stages for checkpoints and trained modules.

mod exchange;
mod hosts;
mod shutdown;
mod start;
mod wait;
mod watch;

use std::sync::Arc;

use burn::tensor::Device;

pub(crate) use self::exchange::{metrics, terms, total_loss};
pub(crate) use self::start::{BatchChannels, Prepared, Replicated};
use self::watch::Watch;
use crate::failure::step_error::StepError;
use crate::failure::stop::{Stop, Stopped};
use crate::failure::watchdog::ProgressBoard;
use crate::model::replica::Replica;
use crate::runner::{ErasedModule, Runner};
use crate::state::layout::StageState;
use crate::threads::{JoinHandle, Receiver, Sender};
use crate::update::flush::{Outcome, Verdict};
use crate::worker::messages::{Command, Recorded, Stepped};

/// The worker threads of all replicas, with the caller's ends of their channels.
pub(crate) struct Workers<In, Out, Target> {
    /// The caller's ends of each replica's channels for batches and for outputs of inference.
    batches: Vec<BatchChannels<In, Out, Target>>,
    /// The running workers, replica by replica; empty once they have ended.
    handles: Vec<WorkerHandle>,
    replies: Replies,
    /// The stop signal shared by the caller and all workers. Storing an error in it ends every wait of the pipeline,
    /// and the step returns the first stored error.
    stop: Arc<Stop>,
    watch: Watch,
    /// The device of each pipeline stage, by replica and stage.
    devices: Vec<Vec<Device>>,
    /// The number of pipeline stages of each replica.
    stages: usize,
    /// The first replica's stages, with their modules and optimizers, that ended workers have returned; empty while the
    /// workers run.
    ended: Vec<Box<dyn Runner>>,
    /// Zero-based indices of the first replica's stages whose hosts are unreachable, so that their parameters and
    /// optimizer states cannot be read.
    out_of_reach: Vec<usize>,
}

/// The caller's ends of the channels by which the workers reply to the caller, one channel for each kind of reply.
struct Replies {
    finished: Receiver<Outcome>,
    stepped: Receiver<Stepped>,
    recorded: Receiver<Recorded>,
    saved: Receiver<StageState>,
    copied: Receiver<(usize, ErasedModule)>,
}

struct WorkerHandle {
    replica: Replica,
    commands: Sender<Command>,
    verdicts: Sender<Verdict>,
    thread: JoinHandle<Vec<Box<dyn Runner>>>,
    progress: ProgressBoard,
    /// The capacity of the worker's event list, in events (timed computations, transfers and waits). It is enough for a
    /// step and for a rehearsal (a step that only measures memory).
    events: usize,
    /// Bytes of the matrix-product (packing) buffers that each of the worker's CPU threads retains between matrix
    /// products; 0 if not measured.
    product_buffers: u64,
}

/// The reason why a step, an evaluation or another request of the caller ended early.
pub(crate) enum Ended {
    /// A worker stopped, and the stop signal contains the worker's error.
    ByWorker,
    /// The caller's thread found an error and stops the workers; the value is the error.
    ByCaller(StepError),
}

impl From<Stopped> for Ended {
    fn from(Stopped: Stopped) -> Self {
        Self::ByWorker
    }
}

impl<In, Out, Target> Workers<In, Out, Target> {
    pub(crate) fn replicas(&self) -> usize {
        self.batches.len()
    }

    /// Returns the number of running worker threads of all replicas; 0 once the pipeline has stopped.
    pub(crate) fn running(&self) -> usize {
        self.handles.len()
    }

    /// Returns the bytes of the matrix-product buffers that each CPU thread of a worker retains between products: the
    /// maximum over the workers, or 0 if not measured.
    pub(crate) fn product_buffers(&self) -> u64 {
        self.handles.iter().map(|worker| worker.product_buffers).max().unwrap_or(0)
    }

    /// Records that all stages have made or skipped the first `steps` training steps. These steps can no longer be
    /// rolled back.
    pub(crate) fn commit(&self, steps: usize) -> Result<(), Ended> {
        Ok(self.stop.commit(steps)?)
    }
}
