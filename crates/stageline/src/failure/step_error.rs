//! [`StepError`]: why a step, an evaluation or a checkpoint failed, and what the training can do then.

use crate::device::remote::{LostHost, LostWay};
use crate::failure::activity::{During, StageFailure};
use crate::failure::watchdog::Stall;
use crate::model::batch_error::BatchError;
use crate::threads::failure::Failure;
use crate::update::finite::Culprit;
use crate::update::ledger::LedgerError;

/// Why a step, an evaluation or a checkpoint failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StepError {
    /// The batch cannot be cut into micro-batches. The pipeline is unharmed and accepts another batch.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// A stage panicked or returned an error. All workers have stopped and their threads are joined. No stage has
    /// stepped.
    #[error(transparent)]
    Stage(Box<StageFailure>),
    /// A stage's gradient sum is not that of the whole batch. All workers have stopped; no stage has stepped.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The loss or a gradient is NaN or infinite. All workers have stopped; no stage has stepped.
    #[error(
        "the loss or a gradient of step {step} is not finite{}; no stage has stepped: check the data of that micro-batch, \
        lower the learning rate, clip the gradients with `.clip(...)`, or skip such steps with \
         `.on_non_finite(OnNonFinite::Skip)`",
        culprit.map_or_else(|| ", but was finite when the step was repeated".to_owned(), |culprit| format!(", first {culprit}"))
    )]
    NonFinite {
        /// The step with the non-finite result, counted from 0.
        step: usize,
        /// The first stage and micro-batch with a non-finite result; `None` if a second run of the step was finite.
        culprit: Option<Culprit>,
    },
    /// The pipeline stalled: no worker began a new activity for longer than the [`Watchdog`] allows. All workers are
    /// told to stop; a thread that does not end within 5 s is left behind with its module. No stage has stepped.
    #[error(
        "the pipeline is given up: {0}\ncheck what the stages at work do, or allow more time with `.watchdog(...)`"
    )]
    Stalled(Box<Stall>),
    /// A stage has made a step that other stages may not have made, and cannot undo it because
    /// [`rollback`](crate::PipelineBuilder::rollback) is off.
    #[error(
        "{cause}; stage {stage} has made the step that failed, other stages may not have, and without rollback it cannot be undone: \
         resume from {}",
        checkpoint.map_or("the beginning, as no checkpoint was taken".to_owned(), |steps| {
            format!("the checkpoint after {steps} steps, the last one that was taken")
        })
    )]
    Torn {
        /// The first stage that has made the step.
        stage: usize,
        /// The error that ended the step.
        cause: Box<StepError>,
        /// The number of steps in the last checkpoint that was taken or restored; `None` if there is none.
        checkpoint: Option<usize>,
    },
    /// Hosts of stages are unreachable. All workers are told to stop; a thread that does not end within 5 s is left
    /// behind with its module. No stage on a reachable host has stepped.
    #[error(
        "{}, in {during}; start `stageline serve` there again, or name devices of other hosts, and restart this program from the \
         last checkpoint on disk; the first error: {cause}",
        hosts.iter().map(LostHost::to_string).collect::<Vec<_>>().join("; ")
    )]
    HostsLost {
        /// The unreachable hosts.
        hosts: Vec<LostHost>,
        /// The step, evaluation or other pass that failed.
        during: During,
        /// The first error that was seen.
        cause: Box<StepError>,
    },
    /// The link between two hosts is broken, although both answer this program. All workers are told to stop; a thread
    /// that does not end within 5 s is left behind with its module. No stage has stepped.
    #[error(
        "{}, in {during}; check the network between these hosts, which reach each other by the addresses in their names, and \
         restart this program from the last checkpoint; the first error: {cause}",
        ways.iter().map(LostWay::to_string).collect::<Vec<_>>().join("; ")
    )]
    HostsApart {
        /// The broken links, each with its two hosts.
        ways: Vec<LostWay>,
        /// The step, evaluation or other pass that failed.
        during: During,
        /// The first error that was seen.
        cause: Box<StepError>,
    },
    /// The pipeline has stopped, because an earlier step or evaluation failed.
    #[error(
        "the pipeline stopped in {during}, with the error that it returned; take the state before that with `checkpoint`, \
         build a new pipeline, and `restore` the state there"
    )]
    Stopped {
        /// The step, evaluation or other pass that failed.
        during: During,
    },
    /// A stage is lost, and with it the state that a checkpoint needs.
    #[error(
        "stage {stage} is lost: its thread did not end, or panicked outside any action, or its host is unreachable; resume from \
         the last checkpoint on disk"
    )]
    Lost {
        /// The lost stage.
        stage: usize,
    },
    /// A stage's parameters and optimizer state cannot be copied from its device after an error.
    #[error(
        "the state of stage {stage} cannot be read from its device: {failure}; if the device is lost, restart the program from \
         the last checkpoint on disk"
    )]
    Unreadable {
        /// The stage whose state was read.
        stage: usize,
        /// The panic or error that ended the read.
        failure: Failure,
    },
}
