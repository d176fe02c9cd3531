//! The activities of a worker, such as an action, a wait or the optimizer step, as errors, stall reports and recordings
//! name them.

use std::fmt;

use stageline_schedule::Instruction;

use crate::device::remote::HostName;
use crate::model::replica::Replica;
use crate::threads::failure::Failure;

/// The failure of one stage: what the stage was doing at that time, and the panic or error that ended the stage.
#[derive(Debug, thiserror::Error)]
#[error("{} failed in {activity} of {during}: {failure}{}", replica.stage(*stage), logs_of(elsewhere))]
#[non_exhaustive]
pub struct StageFailure {
    /// The data-parallel replica of the stage that failed.
    pub replica: Replica,
    /// The stage that failed, counted from 0 within its replica.
    pub stage: usize,
    /// The activity, such as an action or the optimizer step, in which the stage failed.
    pub activity: Activity,
    /// The step, evaluation or other pass to which the failed activity belongs.
    pub during: During,
    /// The panic or error that ended the failed stage.
    pub failure: Failure,
    /// The addresses of the other hosts that run stages of the pipeline. If one of these hosts fails, the error may
    /// appear at another stage, which reads the host's results later; the log of the server on each host may show the
    /// cause.
    pub elsewhere: Vec<HostName>,
}

fn logs_of(hosts: &[HostName]) -> String {
    let names: Vec<_> = hosts.iter().map(|host| format!("`{host}`")).collect();
    match names.is_empty() {
        true => String::new(),
        false => format!("; if another host failed, the log of `stageline serve` there says why: {}", names.join(", ")),
    }
}

impl StageFailure {
    /// Returns the micro-batch that the failed stage was computing or transferring, counted from 0 within the replica;
    /// `None` if the stage failed in another activity.
    pub fn micro_batch(&self) -> Option<usize> {
        match self.activity {
            Activity::Instruction(instruction) => Some(instruction.micro_batch()),
            _ => None,
        }
    }
}

/// The kind of the work that all workers do together, with the number of training steps before it: a training step, an
/// evaluation, an inference, a snapshot, a checkpoint or a rehearsal (a step that only measures memory and is rolled
/// back).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum During {
    /// A training step with this number, counted from 0.
    Step(usize),
    /// An evaluation: forwards and losses of a batch, without training on the batch.
    Evaluation {
        /// The number of training steps before the evaluation.
        steps: usize,
    },
    /// An inference: forwards of a batch whose outputs the caller gets.
    Inference {
        /// The number of training steps before the inference.
        steps: usize,
    },
    /// A snapshot: a copy of the modules of all stages for the caller.
    Snapshot {
        /// The number of training steps before the snapshot.
        steps: usize,
    },
    /// A checkpoint: a copy of the parameters and optimizer states of all stages.
    Checkpoint {
        /// The number of training steps before the checkpoint.
        steps: usize,
    },
    /// A rehearsal: a training step that is run only to measure the memory that training needs, and is rolled back.
    Rehearsal {
        /// The number of training steps before the rehearsal (a step that only measures memory and is rolled back).
        steps: usize,
    },
}

impl fmt::Display for During {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Step(step) => write!(f, "step {step}"),
            Self::Evaluation { steps } => write!(f, "an evaluation after {steps} steps"),
            Self::Inference { steps } => write!(f, "an inference after {steps} steps"),
            Self::Snapshot { steps } => write!(f, "a snapshot after {steps} steps"),
            Self::Checkpoint { steps } => write!(f, "a checkpoint after {steps} steps"),
            Self::Rehearsal { steps } => write!(f, "a rehearsal after {steps} steps"),
        }
    }
}

/// The present activity of a stage: a kind of work, such as a forward or the optimizer step, or a kind of wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Activity {
    /// The stage prepares for a training step or another pass over the plan.
    Start,
    /// The stage executes an instruction of the plan: it computes or transfers a micro-batch.
    Instruction(Instruction),
    /// The stage adds up the gradient sums of all replicas, or, in a replica other than 0, sends its own sum to
    /// replica 0.
    Reduce,
    /// The stage ends its part of the step: it reads gradient norms and losses from its device, and reports which
    /// micro-batches are in its gradient sum.
    Finish,
    /// The stage waits at the flush (the end of a step) for the common verdict: whether all stages step their
    /// optimizers or skip the step.
    Verdict,
    /// The stage steps its optimizer, or, in a replica other than 0, receives the new parameter values from replica 0.
    OptimizerStep,
    /// The stage receives the new values of tied parameters from the stages that own them (whose optimizers step them).
    Follow,
    /// The stage copies its parameters and optimizer state for a checkpoint, or its module for a snapshot.
    Save,
    /// The stage has finished its pass and waits for the caller's next command.
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

/// The stages or the caller for which a worker waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitCause {
    /// The neighbouring stage with this index, which has to send the next message, or to receive one so that its
    /// channel has room again.
    Stage(usize),
    /// The slowest of all stages, for which the others wait at the flush (the end of a step).
    AllStages,
    /// The stages that have the same parameters, in the same replica (tied parameters) or in other replicas, with which
    /// the worker's stage exchanges gradients and values.
    TiedStages,
    /// The user's thread, which calls [`Pipeline::step`](crate::Pipeline::step).
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
    /// Returns the stages or the caller for which a worker waits during this activity; `None` if the activity never
    /// waits.
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
