//! The messages between the caller's pipeline and its workers: [`Command`]s, verdicts and replies, and the channels
//! that carry them.

use std::sync::Arc;
use std::time::Instant;

use stageline_schedule::Checked;

use crate::failure::activity::During;
use crate::model::replica::Replica;
use crate::recording::Clock;
use crate::recording::events::Event;
use crate::runner::pass::Pass;
use crate::runner::{Conclusion, ErasedModule};
use crate::state::layout::StageState;
use crate::threads::{Receiver, Sender};
use crate::update::flush::{Flush, Outcome, Verdict};

/// A command from the caller to a worker: run a pass, copy states or modules, or receive a verdict.
pub(crate) enum Command {
    /// The command to run one pass over the worker's list of instructions.
    Run(Run),
    /// The command to send a copy of the state of the worker's stages for a checkpoint.
    Save { during: During },
    /// The command to send a copy of the module of each of the worker's stages for a snapshot.
    Copy { during: During },
    /// The command to receive the verdict on the last step, on which stages have acted by an assumed verdict, and to
    /// act on the true one.
    Settle { during: During },
}

/// The command to one worker to run a pass: the request, which is the same for all workers of a replica, and room for
/// the worker's events.
pub(crate) struct Run {
    pub(crate) asked: Asked,
    /// The empty list for the worker's events of the pass, allocated by the caller; events beyond the list's capacity
    /// are dropped.
    pub(crate) events: Vec<Event>,
}

/// The request to run one pass over the plan (a step, an evaluation, ...), which is the same for all workers of a
/// replica.
#[derive(Clone)]
pub(crate) struct Asked {
    /// The kind and number of the pass (step, evaluation, ...), for errors and logs.
    pub(crate) during: During,
    /// The plan whose instructions the workers execute in this pass.
    pub(crate) plan: Arc<Checked>,
    pub(crate) pass: Pass,
    /// The clock by which the events of the pass are timed.
    pub(crate) clock: Clock,
    /// The time at which the pass began, from which the times of the pass's events count.
    pub(crate) began: Instant,
    /// The time of the optimizer step: after the verdict on the step, or before it, with an assumed verdict.
    pub(crate) flush: Flush,
    /// Whether the pass begins before the verdict on the previous step is known. If that verdict differs from the
    /// assumed verdict, this pass is discarded.
    pub(crate) behind: bool,
}

/// The reply of a stage that has acted on the verdict on a step, or on the assumed verdict.
pub(crate) struct Stepped {
    pub(crate) replica: Replica,
    pub(crate) stage: usize,
    /// The verdict, true or assumed, on which the stage acted.
    pub(crate) verdict: Verdict,
    pub(crate) conclusion: Conclusion,
}

/// The reply of a worker with its recorded events of a training pass.
pub(crate) struct Recorded {
    pub(crate) replica: Replica,
    pub(crate) worker: usize,
    pub(crate) events: Vec<Event>,
}

/// A worker's ends of its channels to and from the caller.
pub(crate) struct WorkerChannels {
    pub(crate) commands: Receiver<Command>,
    /// The receiver of the verdicts on steps, each of which says what all stages do at the end of a step.
    pub(crate) verdicts: Receiver<Verdict>,
    pub(crate) replies: ReplySenders,
}

/// The senders of replies to the caller, one for each kind of reply, which all workers share.
#[derive(Clone)]
pub(crate) struct ReplySenders {
    /// The sender of each stage's outcome (ledger, losses, gradient norms) at the end of a pass.
    pub(crate) finished: Sender<Outcome>,
    /// The sender of each stage's report after it has acted on the verdict.
    pub(crate) stepped: Sender<Stepped>,
    /// The sender of each worker's recorded events of a training pass.
    pub(crate) recorded: Sender<Recorded>,
    /// The sender of each stage's state for a checkpoint.
    pub(crate) saved: Sender<StageState>,
    /// The sender of each stage's number and module for a snapshot.
    pub(crate) copied: Sender<(usize, ErasedModule)>,
}
