//! Why a pipeline cannot be built, and why a step ended.

use std::fmt;

use stageline_schedule::{Action, CheckError, Compute, Instruction, ScheduleError};

use crate::batch::BatchError;
use crate::flush::LedgerError;
use crate::stage::BoxError;

/// Why a pipeline cannot be built. Threads that have started, if any, have ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The schedule has no plan for this number of stages and micro-batches.
    #[error("the `{schedule}` schedule has no plan: {cause}")]
    Schedule {
        /// The schedule.
        schedule: &'static str,
        /// Why.
        cause: ScheduleError,
    },
    /// The plan cannot run.
    #[error("the plan is refused: {0}")]
    Check(CheckError),
    /// The plan has an action that stages cannot do.
    #[error(
        "the plan has `{action}`, but stages have whole backwards only; \
         replace `{letter}` and its other half by one `B`", letter = action.compute.letter()
    )]
    SplitBackward {
        /// The action.
        action: Action,
    },
    /// Two stages train the same parameter; each would step a copy of its own.
    #[error(
        "stages {} and {} train the same parameter; keep both uses in one stage, or give each its own parameter",
        stages.0, stages.1
    )]
    SharedParameter {
        /// The stages.
        stages: (usize, usize),
    },
    /// Stages are on several GPUs.
    #[error(
        "stages are on {gpus} GPUs, but transfers between GPUs are not ordered yet and could deadlock; \
         put all stages on one GPU"
    )]
    SeveralGpus {
        /// How many.
        gpus: usize,
    },
    /// No core was given to a stage.
    #[error("0 cores a stage: every stage needs at least 1 core")]
    NoCores,
    /// The operating system would not start a worker's thread.
    #[error("the thread of worker {worker} could not be started: {cause}; lower the number of stages")]
    Spawn {
        /// The worker.
        worker: usize,
        /// What the system said.
        cause: std::io::Error,
    },
    /// The operating system would not start the threads of a worker's kernels.
    #[error("the pool of {cores} cores of worker {worker} could not be started: {cause}; lower the cores a stage")]
    Pool {
        /// The worker.
        worker: usize,
        /// The cores asked for.
        cores: usize,
        /// What went wrong.
        cause: String,
    },
}

impl BuildError {
    /// The first action of a plan that the runtime has no way to do.
    pub(crate) fn unsupported(rows: &[Vec<Action>]) -> Option<Self> {
        let whole = |compute| matches!(compute, Compute::Forward | Compute::Backward);
        let split = rows.iter().flatten().find(|action| !whole(action.compute));
        split.map(|&action| Self::SplitBackward { action })
    }
}

/// Why a step or an evaluation ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StepError {
    /// The batch cannot be cut. The pipeline takes the next batch.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// A stage panicked or returned an error. All workers have stopped and their threads are joined; no stage has
    /// stepped, unless the activity is the optimizer step itself.
    #[error(transparent)]
    Stage(Box<StageFailure>),
    /// The stages do not agree on what they summed. All workers have stopped; no stage has stepped.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// An earlier step or evaluation failed.
    #[error(
        "the pipeline stopped in {during}, with the error that it returned; take the modules back with \
         `into_modules` and build a new pipeline from them (optimizer states and learning rates start anew)"
    )]
    Stopped {
        /// What failed.
        during: During,
    },
}

/// What a stage was doing when it failed, and how.
#[derive(Debug, thiserror::Error)]
#[error("stage {stage} failed in {activity} of {during}: {failure}")]
#[non_exhaustive]
pub struct StageFailure {
    /// The stage.
    pub stage: usize,
    /// What it was doing.
    pub activity: Activity,
    /// As part of what.
    pub during: During,
    /// How it failed.
    pub failure: Failure,
}

impl StageFailure {
    /// The micro-batch that the stage was at, if it was at one.
    pub fn micro_batch(&self) -> Option<usize> {
        match self.activity {
            Activity::Instruction(instruction) => Some(instruction.micro_batch()),
            Activity::Start | Activity::Finish | Activity::OptimizerStep => None,
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
}

impl fmt::Display for During {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Step(step) => write!(f, "step {step}"),
            Self::Evaluation { steps } => write!(f, "an evaluation after {steps} steps"),
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
    /// It reads the loss and shows its ledger.
    Finish,
    /// It steps its optimizer.
    OptimizerStep,
}

impl fmt::Display for Activity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start => write!(f, "the start"),
            Self::Instruction(instruction) => {
                write!(f, "action {instruction}, micro-batch {},", instruction.micro_batch())
            }
            Self::Finish => write!(f, "the flush"),
            Self::OptimizerStep => write!(f, "the optimizer step"),
        }
    }
}

/// How a stage failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// It panicked, with this message.
    #[error("it panicked: {0}")]
    Panic(String),
    /// It returned this error.
    #[error(transparent)]
    Error(BoxError),
}

impl Failure {
    /// The failure of a caught panic.
    pub(crate) fn of_panic(payload: Box<dyn std::any::Any + Send>) -> Self {
        let text = payload.downcast_ref::<&str>().map(ToString::to_string);
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
        Self::Panic(text.unwrap_or_else(|| "a panic without a message".to_owned()))
    }
}
