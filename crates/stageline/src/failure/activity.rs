//! What a stage was doing when it failed.

use std::fmt;

use stageline_schedule::Instruction;

use crate::device::remote::HostName;
use crate::model::replica::Replica;
use crate::threads::failure::Failure;

/// What a stage was doing when it failed, and how.
#[derive(Debug, thiserror::Error)]
#[error("{} failed in {activity} of {during}: {failure}{}", replica.stage(*stage), logs_of(elsewhere))]
#[non_exhaustive]
pub struct StageFailure {
    /// The replica,
    pub replica: Replica,
    /// and its stage.
    pub stage: usize,
    /// What it was doing.
    pub activity: Activity,
    /// As part of what.
    pub during: During,
    /// How it failed.
    pub failure: Failure,
    /// Other hosts that have stages: what fails there shows where it is read.
    pub elsewhere: Vec<HostName>,
}

fn logs_of(hosts: &[HostName]) -> String {
    let names: Vec<_> = hosts.iter().map(|host| format!("`{host}`")).collect();
    match names.is_empty() {
        true => String::new(),
        false => format!("; what failed on another host is in what `stageline serve` says there: {}", names.join(", ")),
    }
}

impl StageFailure {
    /// The micro-batch of its replica that the stage was at, if it was at one.
    pub fn micro_batch(&self) -> Option<usize> {
        match self.activity {
            Activity::Instruction(instruction) => Some(instruction.micro_batch()),
            _ => None,
        }
    }
}

/// What the workers did as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum During {
    /// A step, counted from 0.
    Step(usize),
    /// An evaluation, after so many steps.
    Evaluation {
        /// The steps before it.
        steps: usize,
    },
    /// A checkpoint, after so many steps.
    Checkpoint {
        /// The steps before it.
        steps: usize,
    },
    /// A step that is undone, to see what it holds, after so many steps.
    Rehearsal {
        /// The steps before it.
        steps: usize,
    },
}

impl fmt::Display for During {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Step(step) => write!(f, "step {step}"),
            Self::Evaluation { steps } => write!(f, "an evaluation after {steps} steps"),
            Self::Checkpoint { steps } => write!(f, "a checkpoint after {steps} steps"),
            Self::Rehearsal { steps } => write!(f, "a rehearsal after {steps} steps"),
        }
    }
}

/// What a stage does at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Activity {
    /// It gets ready.
    Start,
    /// It computes or transfers a micro-batch.
    Instruction(Instruction),
    /// It adds the gradients of all replicas up, or sends its own, where there are several.
    Reduce,
    /// It reads the loss and shows its ledger.
    Finish,
    /// It waits until all stages are at the flush.
    Verdict,
    /// It steps its optimizer, or takes over the values of the replica that does.
    OptimizerStep,
    /// It takes over the new values of other stages' parameters.
    Follow,
    /// It copies what it keeps from step to step.
    Save,
    /// It has done all that it was asked for.
    Idle,
}

impl fmt::Display for Activity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start => write!(f, "the start"),
            Self::Instruction(instruction) => {
                write!(f, "action {instruction}, micro-batch {},", instruction.micro_batch())
            }
            Self::Reduce => write!(f, "the reduction over the replicas"),
            Self::Finish => write!(f, "the flush"),
            Self::Verdict => write!(f, "the wait at the flush"),
            Self::OptimizerStep => write!(f, "the optimizer step"),
            Self::Follow => write!(f, "the exchange of tied parameters"),
            Self::Save => write!(f, "the copy of its state"),
            Self::Idle => write!(f, "nothing"),
        }
    }
}

/// Whom a worker waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitCause {
    /// The stage that sends, or the one that makes room in its channel.
    Stage(usize),
    /// All of them, at the flush.
    AllStages,
    /// The stages that have the same parameters, in its replica or in others.
    TiedStages,
    /// Who called `step`.
    Caller,
}

impl fmt::Display for WaitCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stage(stage) => write!(f, "stage {stage}"),
            Self::AllStages => write!(f, "all stages"),
            Self::TiedStages => write!(f, "stages with the same parameters"),
            Self::Caller => write!(f, "the caller"),
        }
    }
}

impl Activity {
    /// Whom it waits for, if it has to.
    pub fn wait_cause(self) -> Option<WaitCause> {
        match self {
            Self::Instruction(Instruction::Receive(transfer)) => Some(WaitCause::Stage(transfer.from)),
            Self::Instruction(Instruction::Send(transfer)) => Some(WaitCause::Stage(transfer.to())),
            Self::Instruction(Instruction::Compute(_)) | Self::Reduce | Self::OptimizerStep | Self::Follow => {
                Some(WaitCause::TiedStages)
            }
            Self::Verdict => Some(WaitCause::AllStages),
            Self::Start | Self::Idle => Some(WaitCause::Caller),
            Self::Finish | Self::Save => None,
        }
    }
}
