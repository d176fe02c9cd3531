//! [`StepError`]: why a step, an evaluation or a checkpoint fails, and how training can continue.

use crate::device::remote::{LostHost, LostLink};
use crate::failure::activity::{During, StageFailure};
use crate::failure::watchdog::Stall;
use crate::model::batch_error::BatchError;
use crate::threads::failure::Failure;
use crate::update::ledger::LedgerError;
use crate::update::not_finite::{Culprit, Origin};

/// The error that says why a step, evaluation, inference or checkpoint failed. After the error `Batch`, the pipeline is
/// unchanged and can continue. After any other error, the pipeline has stopped and runs no further steps.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StepError {
    /// The batch cannot be split into micro-batches, or the outputs of an inference cannot be concatenated. The
    /// pipeline is unchanged and accepts another batch.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// A stage panicked or returned an error. All workers are told to stop, and their threads are joined. A thread that
    /// does not end in time is abandoned, as described at [`Stalled`](StepError::Stalled). No stage keeps the parameter
    /// update of the failed step.
    #[error(transparent)]
    Stage(Box<StageFailure>),
    /// A stage's gradient sum does not contain every micro-batch of the batch exactly once, which is a bug in the
    /// pipeline. All workers have stopped, and no stage keeps the parameter update of the failed step.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The loss or a gradient of the step is NaN or infinite. All workers have stopped, and no stage keeps the
    /// parameter update of the step.
    #[error(
        "the loss or a gradient of step {step} is not finite{}; no stage has stepped: {}",
        culprit.map_or_else(|| ", but was finite when the step was repeated".to_owned(), |culprit| format!(", first {culprit}")),
        remedy(*culprit)
    )]
    NonFinite {
        /// Zero-based index of the step whose loss or gradients are not finite.
        step: usize,
        /// The first stage and micro-batch with a NaN or infinite result, found by a second run of the step. `None` if
        /// all results of the second run were finite.
        culprit: Option<Culprit>,
    },
    /// The pipeline stalled: no worker began a new computation, transfer or wait for longer than the
    /// [`Watchdog`](crate::Watchdog) allows. All workers are told to stop. A worker thread that does not end within 5
    /// s, or the watchdog's `factor` times the longest action if that is longer, is abandoned with its stage's module.
    /// No stage keeps the parameter update of the step.
    #[error(
        "the pipeline is given up: {0}\ncheck what the stages at work do, or allow more time with `.watchdog(...)` \
         (`--watchdog`)"
    )]
    Stalled(Box<Stall>),
    /// The stages are no longer in the same state: at least one has stepped its optimizer in the failed step, and
    /// others may not have. The step cannot be undone, because [`rollback`](crate::PipelineBuilder::rollback) is off.
    #[error(
        "{cause}; stage {stage} has made the step that failed, other stages may not have, and without rollback it cannot be undone: \
         resume from {}",
        checkpoint.map_or("the beginning, as no checkpoint was taken".to_owned(), |steps| {
            format!("the checkpoint after {steps} steps, the last one that was taken")
        })
    )]
    Torn {
        /// Zero-based index of the first stage that stepped its optimizer in the failed training step.
        stage: usize,
        /// The error that ended the training step, after the first stages had stepped their optimizers.
        cause: Box<StepError>,
        /// The number of training steps after which the last checkpoint was taken or restored. `None` if there is no
        /// checkpoint.
        checkpoint: Option<usize>,
    },
    /// Hosts that run stages are unreachable. All workers are told to stop. A worker thread that does not end within 5
    /// s is abandoned together with its stage's module. No stage on a reachable host keeps the parameter update of the
    /// step.
    #[error(
        "{}, in {during}; start `stageline serve` there again, or name devices of other hosts, and restart this program from the \
         last checkpoint on disk; the first error: {cause}",
        hosts.iter().map(LostHost::to_string).collect::<Vec<_>>().join("; ")
    )]
    HostsLost {
        /// The unreachable hosts, each with the stages that run on the host's devices.
        hosts: Vec<LostHost>,
        /// The step, evaluation or other pass that ran when the hosts became unreachable.
        during: During,
        /// The first error of the pipeline: the failure of a stage, or a stall. Liveness checks, which ran after this
        /// error, showed that the hosts are unreachable.
        cause: Box<StepError>,
    },
    /// The network link between two hosts is broken, although both hosts can be reached from this program. All workers
    /// are told to stop. A worker thread that does not end within 5 s is abandoned together with its stage's module. No
    /// stage keeps the parameter update of the step.
    #[error(
        "{}, in {during}; check the network between these hosts, which reach each other by the addresses in their names, and \
         restart this program from the last checkpoint; the first error: {cause}",
        links.iter().map(LostLink::to_string).collect::<Vec<_>>().join("; ")
    )]
    HostsApart {
        /// The broken network links, each with its sending and its receiving host.
        links: Vec<LostLink>,
        /// The step, evaluation or other pass that ran when the network links between hosts broke.
        during: During,
        /// The first error of the pipeline: the failure of a stage, or a stall. Tests of the network links, which ran
        /// after this error, showed that links between hosts are broken.
        cause: Box<StepError>,
    },
    /// The pipeline has stopped, because an earlier step, evaluation or other pass failed.
    #[error(
        "the pipeline stopped in {during}; take the state before that with `checkpoint`, build a new pipeline, and `restore` the \
         state there; if a stage is lost, resume from the last checkpoint on disk"
    )]
    Stopped {
        /// The earlier step, evaluation or other pass whose failure stopped the pipeline.
        during: During,
    },
    /// A stage's parameters and optimizer state can no longer be read, or are of another step than those of other
    /// stages ([`Torn`](Self::Torn)). So no checkpoint of the whole pipeline can be made.
    #[error(
        "stage {stage} is lost: its thread did not end, or panicked outside any action, its host is unreachable, or it made a step \
         that cannot be undone; resume from the last checkpoint on disk"
    )]
    Lost {
        /// Zero-based index of the first stage whose state is lost.
        stage: usize,
    },
    /// A stage's parameters and optimizer state cannot be copied from its device after an error.
    #[error(
        "the state of stage {stage} cannot be read from its device: {failure}; if the device is lost, restart the program from \
         the last checkpoint on disk"
    )]
    Unreadable {
        /// Zero-based index of the stage whose parameters and optimizer state could not be copied from its device.
        stage: usize,
        /// The panic that occurred while the stage's parameters and optimizer state were copied from its device.
        failure: Failure,
    },
}

/// Returns the advice for a step that is not finite, given where the first NaN or infinity appeared.
fn remedy(culprit: Option<Culprit>) -> &'static str {
    match culprit.map(|culprit| culprit.origin) {
        Some(Origin::Parameters) => {
            "check the weights file or the initialisation, and lower the learning rate if earlier steps were finite"
        }
        _ => {
            "check the data of that micro-batch, lower the learning rate or a fixed loss scale, clip the gradients with \
             `.clip(...)` (`--clip`), or skip such steps with `.on_non_finite(OnNonFinite::Skip)` (`--on-non-finite skip`)"
        }
    }
}
