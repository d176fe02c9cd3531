//! The messages between the caller's pipeline and its workers: [`Command`]s, verdicts (step the optimizers, or skip the
//! step) and replies, and the channels that carry them.

use std::sync::Arc;
use std::time::Instant;

use stageline_schedule::{Checked, Event};

use crate::failure::activity::During;
use crate::model::replica::Replica;
use crate::recording::Clock;
use crate::runner::pass::Pass;
use crate::runner::{Conclusion, ErasedModule};
use crate::state::layout::StageState;
use crate::threads::{Receiver, Sender};
use crate::update::flush::{Flush, Outcome, Verdict};

/// A command from the caller to a worker: run a pass, send copies of states or modules, or receive the verdict on the
/// last step (step the optimizers, or skip the step).
pub(crate) enum Command {
    /// The command to run one pass (a training step, an evaluation, ...): the worker executes its list of the plan's
    /// instructions once.
    Run(Run),
    /// The command to send a copy of the state (parameters and optimizer state) of each of the worker's stages, for a
    /// checkpoint.
    Save { during: During },
    /// The command to send a copy of the module of each of the worker's stages, for a snapshot (copies of all modules
    /// of a running pipeline).
    Copy { during: During },
    /// The command to receive the true verdict on the last step (step the optimizers, or skip the step), if the stages
    /// have ended that step with an assumed verdict. If the two verdicts differ, the stages roll the step back and end
    /// it again with the true verdict.
    Settle { during: During },
}

/// The command to one worker to run a pass (a training step, an evaluation, ...): the request, and an empty list for
/// the events that the worker records.
pub(crate) struct Run {
    pub(crate) asked: Asked,
    /// The empty list to which the worker adds its events (timed activities) of the pass. The caller allocates the
    /// list; events beyond the list's capacity are dropped.
    pub(crate) events: Vec<Event>,
}

/// The request to run one pass over a batch (a training step, an evaluation, ...), which is the same for all workers of
/// a data-parallel replica.
#[derive(Clone)]
pub(crate) struct Asked {
    /// The kind and number of the requested pass (such as step 3), for error messages and logs.
    pub(crate) during: During,
    /// The plan (each worker's list of forwards, backwards and transfers) that the workers execute in this pass over a
    /// batch (a step, an evaluation, ...).
    pub(crate) plan: Arc<Checked>,
    pub(crate) pass: Pass,
    /// The clock by which the workers time the events of a training step or an evaluation: the host's clock, with or
    /// without a wait for the device after every action.
    pub(crate) clock: Clock,
    /// The time at which the pass (a step, an evaluation, ...) began; the times of recorded events are counted from it.
    pub(crate) began: Instant,
    /// The moment at which the stages step their optimizers: after the common verdict of all stages (step, or skip the
    /// step), or speculatively before that verdict, on an assumed verdict.
    pub(crate) flush: Flush,
    /// Whether the requested pass is a training step that begins before the verdict on the previous step (step the
    /// optimizers, or skip) is known. If that verdict differs from the assumed one, this pass is discarded.
    pub(crate) behind: bool,
}

/// A stage's reply to the caller after the stage has acted on a verdict on a training step (the true verdict, or one
/// that the stage assumed): it has stepped its optimizer, or skipped the step.
pub(crate) struct Stepped {
    pub(crate) replica: Replica,
    pub(crate) stage: usize,
    /// The verdict on the training step (to step the optimizer, to skip the step, ...) on which the stage acted: the
    /// true one, or one that the stage assumed.
    pub(crate) verdict: Verdict,
    pub(crate) conclusion: Conclusion,
}

/// A worker's reply to the caller at the end of a training step: the timed events that the worker has recorded.
pub(crate) struct Recorded {
    pub(crate) replica: Replica,
    pub(crate) worker: usize,
    pub(crate) events: Vec<Event>,
}

/// A worker's ends of the channels by which it exchanges commands, verdicts and replies with the caller.
pub(crate) struct WorkerChannels {
    pub(crate) commands: Receiver<Command>,
    /// The channel on which the worker receives the caller's verdict on each step: whether all stages step their
    /// optimizers or skip the step.
    pub(crate) verdicts: Receiver<Verdict>,
    pub(crate) replies: ReplySenders,
}

/// The sending ends of the channels by which workers reply to the caller, one channel for each kind of reply. All
/// workers share these channels.
#[derive(Clone)]
pub(crate) struct ReplySenders {
    /// The channel on which workers send the caller each stage's outcome (losses, gradient norms, number of summed
    /// micro-batches) at the end of a step or an evaluation.
    pub(crate) finished: Sender<Outcome>,
    /// The channel on which workers send the caller each stage's report (learning rate, parameter health, gradients)
    /// after the stage has acted on the verdict (step the optimizer, or skip the step).
    pub(crate) stepped: Sender<Stepped>,
    /// The channel on which workers send the caller the events (timed activities) that they have recorded in a training
    /// step.
    pub(crate) recorded: Sender<Recorded>,
    /// The channel on which workers send the caller a copy of each stage's state (parameters and optimizer state) for a
    /// checkpoint.
    pub(crate) saved: Sender<StageState>,
    /// The channel on which workers send the caller a copy of each stage's module, with the index of the stage, for a
    /// snapshot (copies of all modules of a running pipeline).
    pub(crate) copied: Sender<(usize, ErasedModule)>,
}
