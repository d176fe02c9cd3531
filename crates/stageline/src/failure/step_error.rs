//! The errors of a step, an evaluation or a checkpoint.

use crate::device::remote::{LostHost, LostWay};
use crate::failure::activity::{During, StageFailure};
use crate::failure::watchdog::Stall;
use crate::model::batch::BatchError;
use crate::threads::failure::Failure;
use crate::update::finite::Culprit;
use crate::update::ledger::LedgerError;

/// Why a step or an evaluation ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StepError {
    /// The batch cannot be cut. The pipeline takes the next batch.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// A stage panicked or returned an error. All workers have stopped and their threads are joined; no stage has stepped.
    #[error(transparent)]
    Stage(Box<StageFailure>),
    /// The stages do not agree on what they summed. All workers have stopped; no stage has stepped.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The loss or a gradient is NaN or infinite. All workers have stopped; no stage has stepped.
    #[error(
        "the loss or a gradient of step {step} is not finite{}; no stage has stepped: look at the data of that micro-batch, \
         lower the learning rate, clip the gradients with `.clip(...)`, or leave such steps out with \
         `.on_non_finite(OnNonFinite::Skip)`",
        culprit.map_or_else(|| ", though not when the step is run again".to_owned(), |culprit| format!(", first {culprit}"))
    )]
    NonFinite {
        /// The step.
        step: usize,
        /// Where it came from; `None` if a second run of the step did not show it again.
        culprit: Option<Culprit>,
    },
    /// Nothing began for longer than the [`Watchdog`] allows. All workers are told to stop; a thread that
    /// does not end within 5 s is left behind with its module. No stage has stepped.
    #[error(
        "the pipeline is given up: {0}\nlook at what the stages at work do, or give it more time with `.watchdog(...)`"
    )]
    Stalled(Box<Stall>),
    /// A stage has made a step that others may not have made, and keeps no copy of what was before
    /// ([`rollback`](crate::PipelineBuilder::rollback)).
    #[error(
        "{cause}; stage {stage} has made the step that failed, other stages may not have, and without rollback it cannot be undone: \
         resume from {}",
        checkpoint.map_or("the beginning, as no checkpoint was taken".to_owned(), |steps| {
            format!("the checkpoint after {steps} steps, the last one that was taken")
        })
    )]
    Torn {
        /// The first stage that has made it.
        stage: usize,
        /// The error that ended the step.
        cause: Box<StepError>,
        /// After how many steps the last checkpoint was taken or restored, if any was.
        checkpoint: Option<usize>,
    },
    /// Hosts of stages do not answer any more. All workers are told to stop; a thread that does not end within 5 s is left behind
    /// with its module. No stage that is still there has stepped.
    #[error(
        "{}, in {during}; start `stageline serve` there again, or name devices of other hosts, and start this program anew, from the \
         last checkpoint on disk: first, {cause}",
        hosts.iter().map(LostHost::to_string).collect::<Vec<_>>().join("; ")
    )]
    HostsLost {
        /// The hosts.
        hosts: Vec<LostHost>,
        /// In what.
        during: During,
        /// What was seen first.
        cause: Box<StepError>,
    },
    /// Hosts of stages answer this program, and no tensor gets from one to the other. All workers are told to stop; a thread that
    /// does not end within 5 s is left behind with its module. No stage has stepped.
    #[error(
        "{}, in {during}; look at the network between these hosts, which reach each other by the addresses in their names, and start \
         this program anew, from the last checkpoint: first, {cause}",
        ways.iter().map(LostWay::to_string).collect::<Vec<_>>().join("; ")
    )]
    HostsApart {
        /// From where to where.
        ways: Vec<LostWay>,
        /// In what.
        during: During,
        /// What was seen first.
        cause: Box<StepError>,
    },
    /// An earlier step or evaluation failed.
    #[error(
        "the pipeline stopped in {during}, with the error that it returned; take what it had before with `checkpoint`, \
         build a new pipeline, and let it `restore` that"
    )]
    Stopped {
        /// What failed.
        during: During,
    },
    /// A stage has gone, and with it what a checkpoint needs.
    #[error(
        "stage {stage} is lost: its thread did not end, or panicked outside any action, or its host does not answer; go on from the \
         last checkpoint on disk"
    )]
    Lost {
        /// The stage.
        stage: usize,
    },
    /// What a stage keeps cannot be copied from its device after an error.
    #[error(
        "what stage {stage} keeps cannot be read any more: {failure}; where its device is lost, start the program anew and go on \
         from the last checkpoint on disk"
    )]
    Unreadable {
        /// The stage.
        stage: usize,
        /// What came of reading it.
        failure: Failure,
    },
}
