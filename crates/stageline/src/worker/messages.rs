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
    /// Run one step, evaluation or inference: execute the worker's list of instructions (computations and transfers)
    /// once.
    Run(Run),
    /// Send a copy of each stage's state (parameters and optimizer state) to the caller, for a checkpoint. With
    /// `FrozenFrom::Model`, large frozen parameters are sent as hashes only: a resumed run takes their values from the
    /// newly built model, and checks them against the hashes. `during` names this work in errors.
    Save { during: During, frozen_from: FrozenFrom },
    /// Send a copy of each stage's module to the caller, for a snapshot of a running pipeline. `during` names this work
    /// in errors.
    Copy { during: During },
    /// Wait for the true verdict (step the optimizers, or skip) on the last step, if the worker has ended that step
    /// with an assumed verdict. If the two verdicts differ, roll the step back, and end it again with the true verdict.
    Settle { during: During },
}

/// The command to a worker to run a step, evaluation or inference: the request, and an empty list for the events that
/// the worker records.
pub(crate) struct Run {
    pub(crate) asked: Asked,
    /// The list for the worker's events (timed computations, transfers and waits). The caller allocates it empty;
    /// events beyond its capacity are dropped.
    pub(crate) events: Vec<Event>,
}

/// The request to run one step, evaluation or inference, which is the same for all workers of a data-parallel replica.
#[derive(Clone)]
pub(crate) struct Asked {
    /// The kind and number of the requested work, such as "step 3", for error messages and logs.
    pub(crate) during: During,
    /// The plan to execute, with each worker's list of forward passes, backward passes and transfers.
    pub(crate) plan: Arc<Checked>,
    pub(crate) pass: Pass,
    /// The timing of events: by the host's clock alone, or with a device synchronisation after every action, such as a
    /// forward pass.
    pub(crate) clock: Clock,
    /// The start time of the requested step, evaluation or inference. The times of its recorded events are relative to
    /// it.
    pub(crate) began: Instant,
    /// The time at which the stages act on the verdict (step their optimizers, or skip): together after it is known, or
    /// speculatively on an assumed one.
    pub(crate) flush: Flush,
    /// Whether the requested work is a training step that begins before the verdict on the previous step (step or skip)
    /// is known. If true, and that verdict differs from the assumed one, the requested step is discarded.
    pub(crate) behind: bool,
}

/// A stage's reply to the caller after it has acted on the true or an assumed verdict: it has stepped its optimizer or
/// skipped the step.
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

/// A worker's ends of its channels to the caller, for commands, verdicts and replies.
pub(crate) struct WorkerChannels {
    pub(crate) commands: Receiver<Command>,
    /// Receives the caller's verdict on each step: whether all stages step their optimizers, or skip the step.
    pub(crate) verdicts: Receiver<Verdict>,
    pub(crate) replies: ReplySenders,
}

/// The channels for all workers' replies to the caller, one for each kind of reply.
#[derive(Clone)]
pub(crate) struct ReplySenders {
    /// Sends each stage's outcome of a step or evaluation, such as losses and gradient norms, to the caller.
    pub(crate) finished: Sender<Outcome>,
    /// Sends each stage's report to the caller, after the stage has stepped its optimizer or skipped the step.
    pub(crate) stepped: Sender<Stepped>,
    /// Sends each worker's timed events of a training step to the caller.
    pub(crate) recorded: Sender<Recorded>,
    /// Sends a copy of each stage's parameters and optimizer state to the caller, for a checkpoint.
    pub(crate) saved: Sender<StageState>,
    /// Sends each stage's index and a copy of its module to the caller, for a snapshot of a running pipeline.
    pub(crate) copied: Sender<(usize, ErasedModule)>,
}
