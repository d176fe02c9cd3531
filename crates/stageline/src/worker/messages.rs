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
use crate::state::frozen::FrozenFrom;
use crate::state::layout::StageState;
use crate::threads::{Receiver, Sender};
use crate::update::flush::{Flush, Outcome, Verdict};

/// A command from the caller to a worker.
pub(crate) enum Command {
    /// The command to run one pass over a batch, such as a training step. The worker executes its list of instructions
    /// (computations and transfers) once.
    Run(Run),
    /// The command to send a copy of each stage's state (parameters and optimizer state), for a checkpoint. If
    /// `frozen_from` is the model, hashes of large frozen parameters are sent in place of their values.
    Save { during: During, frozen_from: FrozenFrom },
    /// The command to send a copy of each stage's module, for a snapshot of a running pipeline.
    Copy { during: During },
    /// The command to receive the true verdict on the last step, if the stages have ended that step with an assumed
    /// verdict. If the two differ, the stages roll the step back, and end it again with the true verdict.
    Settle { during: During },
}

/// The command to a worker to run a pass, such as a training step: the request, and an empty list for the events that
/// the worker records.
pub(crate) struct Run {
    pub(crate) asked: Asked,
    /// The list for the events (timed computations, transfers and waits) that the worker records in the pass. It is
    /// empty at first and allocated by the caller. Events beyond its capacity are dropped.
    pub(crate) events: Vec<Event>,
}

/// The request to run one pass over a batch, such as a training step. It is the same for all workers of a data-parallel
/// replica.
#[derive(Clone)]
pub(crate) struct Asked {
    /// The kind and number of the requested pass, such as step 3, for error messages and logs.
    pub(crate) during: During,
    /// The plan that the workers execute in the requested pass: each worker's list of forward passes, backward passes
    /// and transfers.
    pub(crate) plan: Arc<Checked>,
    pub(crate) pass: Pass,
    /// The clock that times the workers' events: the host's clock, with or without a wait for the device after every
    /// action, such as a forward pass.
    pub(crate) clock: Clock,
    /// The time at which the requested pass (step, evaluation, ...) began. The times of recorded events are counted
    /// from it.
    pub(crate) began: Instant,
    /// The moment at which the stages step their optimizers: after the common verdict of all stages, or speculatively
    /// before it.
    pub(crate) flush: Flush,
    /// Whether the requested pass is a training step that begins before the verdict on the previous step is known. If
    /// that verdict differs from the assumed one, the pass is discarded.
    pub(crate) behind: bool,
}

/// A stage's reply to the caller after it has stepped its optimizer or skipped the step, because of the true or an
/// assumed verdict.
pub(crate) struct Stepped {
    pub(crate) replica: Replica,
    pub(crate) stage: usize,
    /// The verdict that the stage acted on (step the optimizer, or skip the step): the true one, or an assumed one.
    pub(crate) verdict: Verdict,
    pub(crate) conclusion: Conclusion,
}

/// A worker's reply to the caller at the end of a training step, with the timed events that it has recorded.
pub(crate) struct Recorded {
    pub(crate) replica: Replica,
    pub(crate) worker: usize,
    pub(crate) events: Vec<Event>,
}

/// A worker's ends of the channels that carry commands, verdicts and replies between the caller and the worker.
pub(crate) struct WorkerChannels {
    pub(crate) commands: Receiver<Command>,
    /// The channel for the caller's verdicts to the worker: whether all stages step their optimizers, or skip the step.
    pub(crate) verdicts: Receiver<Verdict>,
    pub(crate) replies: ReplySenders,
}

/// The sending ends of the channels for workers' replies to the caller, one for each kind of reply. All workers share
/// these channels.
#[derive(Clone)]
pub(crate) struct ReplySenders {
    /// The channel that carries each stage's outcome of a pass, such as losses and gradient norms, to the caller.
    pub(crate) finished: Sender<Outcome>,
    /// The channel that carries each stage's report to the caller, after the stage has stepped its optimizer or skipped
    /// the step.
    pub(crate) stepped: Sender<Stepped>,
    /// The channel that carries each worker's timed events of a training step to the caller.
    pub(crate) recorded: Sender<Recorded>,
    /// The channel that carries a copy of each stage's parameters and optimizer state to the caller, for a checkpoint.
    pub(crate) saved: Sender<StageState>,
    /// The channel that carries each stage's index and a copy of its module to the caller, for a snapshot of a running
    /// pipeline.
    pub(crate) copied: Sender<(usize, ErasedModule)>,
}
