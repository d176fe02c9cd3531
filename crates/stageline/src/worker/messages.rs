//! The messages between the caller and its workers: commands, verdicts and replies.

use std::sync::Arc;
use std::time::Instant;

use stageline_schedule::Checked;

use crate::failure::activity::During;
use crate::model::replica::Replica;
use crate::recording::Clock;
use crate::recording::events::Event;
use crate::runner::Conclusion;
use crate::runner::pass::Pass;
use crate::state::layout::StageState;
use crate::threads::{Receiver, Sender};
use crate::update::flush::{Flush, Outcome, Verdict};

/// A command from the caller to a worker.
pub(crate) enum Command {
    /// Runs one pass over the worker's list of instructions.
    Run(Run),
    /// Copies the state of the worker's stages for a checkpoint.
    Save { during: During },
    /// Receives the verdict on the last step, which ran ahead of it, and acts on it.
    Settle { during: During },
}

/// A pass that one worker is to run.
pub(crate) struct Run {
    pub(crate) asked: Asked,
    /// The empty list for the worker's events, allocated by the caller; events beyond its capacity are dropped.
    pub(crate) events: Vec<Event>,
}

/// The request for a pass, which is the same for all workers of a replica.
#[derive(Clone)]
pub(crate) struct Asked {
    /// The kind of the pass, for errors and logs.
    pub(crate) during: During,
    /// The plan whose instructions the workers execute.
    pub(crate) plan: Arc<Checked>,
    pub(crate) pass: Pass,
    /// The clock by which events are timed.
    pub(crate) clock: Clock,
    /// The time at which the pass began, from which the times of events count.
    pub(crate) began: Instant,
    /// Whether a stage steps before the verdict, and with which assumed verdict.
    pub(crate) flush: Flush,
    /// Whether the verdict on the previous step is still unknown. If it is not the assumed one, this pass is discarded.
    pub(crate) behind: bool,
}

/// The reply of a stage that has acted on the verdict, or on the assumed verdict, of a step.
pub(crate) struct Stepped {
    pub(crate) replica: Replica,
    pub(crate) stage: usize,
    /// The verdict on which the stage acted.
    pub(crate) verdict: Verdict,
    pub(crate) conclusion: Conclusion,
}

/// The reply of a worker with its events of a training pass.
pub(crate) struct Recorded {
    pub(crate) replica: Replica,
    pub(crate) worker: usize,
    pub(crate) events: Vec<Event>,
}

/// The worker's ends of its channels to and from the caller.
pub(crate) struct WorkerChannels {
    pub(crate) commands: Receiver<Command>,
    /// The verdict on each step: what all stages do at its end.
    pub(crate) verdicts: Receiver<Verdict>,
    pub(crate) replies: ReplySenders,
}

/// The senders of replies, which all workers share.
#[derive(Clone)]
pub(crate) struct ReplySenders {
    /// The outcome of each stage at the end of a pass.
    pub(crate) finished: Sender<Outcome>,
    /// The report of each stage after the verdict.
    pub(crate) stepped: Sender<Stepped>,
    /// The events of each worker.
    pub(crate) recorded: Sender<Recorded>,
    /// The state of each stage, for a checkpoint.
    pub(crate) saved: Sender<StageState>,
}
