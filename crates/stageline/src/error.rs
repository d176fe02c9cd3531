//! Why a pipeline cannot be built, and why a step ended.

use std::fmt;

use stageline_schedule::{Action, CheckError, Compute, Instruction, ScheduleError};

use crate::batch::BatchError;
use crate::flush::LedgerError;
use crate::stage::BoxError;

/// Why a pipeline cannot be built. No thread has started.
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
    Check(#[from] CheckError),
    /// The schedule wrote a plan of another shape than it was asked for.
    #[error(
        "the `{schedule}` schedule wrote a plan for {} stages and {} micro-batches, but the pipeline has {} and {}; \
         write the plan for these",
        written.0, written.1, asked.0, asked.1
    )]
    Shape {
        /// The schedule.
        schedule: &'static str,
        /// Its plan's stages and micro-batches.
        written: (usize, usize),
        /// The pipeline's.
        asked: (usize, usize),
    },
    /// The plan has an action that stages cannot do.
    #[error(
        "the plan has `{action}`, but stages have whole backwards only; \
         replace `{letter}` and its other half by one `B`", letter = action.compute.letter()
    )]
    SplitBackward {
        /// The action.
        action: Action,
    },
    /// No core was given to a stage.
    #[error("0 cores a stage: every stage needs at least 1 core")]
    NoCores,
    /// The operating system would not start a thread.
    #[error("the thread of worker {worker} could not be started: {cause}")]
    Spawn {
        /// The worker.
        worker: usize,
        /// What the system said.
        cause: std::io::Error,
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
    #[error("{0}")]
    Stage(Box<StageFailure>),
    /// The stages do not agree on what they summed. All workers have stopped; no stage has stepped.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// An earlier step failed.
    #[error(
        "the pipeline stopped in step {step}, with the error that step returned; \
         take the modules back with `into_modules` and build a new pipeline from them"
    )]
    Stopped {
        /// The step that failed.
        step: usize,
    },
}

/// What a stage was doing when it failed, and how.
#[derive(Debug, thiserror::Error)]
#[error("stage {stage} failed in {activity} of step {step}: {failure}")]
#[non_exhaustive]
pub struct StageFailure {
    /// The stage.
    pub stage: usize,
    /// What it was doing.
    pub activity: Activity,
    /// The step, from 0.
    pub step: usize,
    /// How it failed.
    #[source]
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

/// What a stage does at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Activity {
    /// It gets ready for a step.
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
                write!(f, "action {instruction}, micro-batch {}", instruction.micro_batch())
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
    #[error("{0}")]
    Error(#[source] BoxError),
}

impl Failure {
    /// The failure of a caught panic.
    pub(crate) fn of_panic(payload: Box<dyn std::any::Any + Send>) -> Self {
        let text = payload.downcast_ref::<&str>().map(ToString::to_string);
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
        Self::Panic(text.unwrap_or_else(|| "a panic without a message".to_owned()))
    }
}
