//! The failure of a stage ([`StageFailure`]), with the work that failed, such as a forward pass. Also the step,
//! evaluation or other pass in which the failure happened ([`During`]).

use std::fmt;

use stageline_schedule::Activity;

use crate::device::remote::HostName;
use crate::model::replica::Replica;
use crate::threads::failure::Failure;

/// The failure of one stage, which stops the pipeline: the work that the stage was doing, and the panic or error that
/// ended it.
#[derive(Debug, thiserror::Error)]
#[error("{} failed in {}{activity} of {during}: {failure}{}", replica.stage(*stage), in_its(layer), logs_of(elsewhere))]
#[non_exhaustive]
pub struct StageFailure {
    /// The data-parallel replica that contains the failed stage.
    pub replica: Replica,
    /// Zero-based index, within its replica, of the stage that failed.
    pub stage: usize,
    /// The work that failed, such as a forward pass, a transfer or the optimizer step.
    pub activity: Activity,
    /// The path of the layer whose forward pass failed, in the form of burn's parameter paths. For example, `1.3` is
    /// layer 3 in a list of layers that is itself layer 1 of the stage, both counted from 0. `None` if the stage is not
    /// a tuple or list of layers, or if it did not fail in a forward pass.
    pub layer: Option<String>,
    /// The step, evaluation or other pass over a batch that ran when the stage failed.
    pub during: During,
    /// The panic or error that ended the failed stage.
    pub failure: Failure,
    /// The addresses of the other hosts that run stages of the pipeline. An error on one of these hosts may only become
    /// visible at a stage on another host. The logs of `stageline serve` on these hosts may then show the cause.
    pub elsewhere: Vec<HostName>,
}

/// Returns the part of an error message that names the failed layer, such as "layer `1.3`, in "; empty if the layer is
/// not known.
fn in_its(layer: &Option<String>) -> String {
    layer.as_ref().map_or_else(String::new, |layer| format!("layer `{layer}`, in "))
}

fn logs_of(hosts: &[HostName]) -> String {
    let names: Vec<_> = hosts.iter().map(|host| format!("`{host}`")).collect();
    match names.is_empty() {
        true => String::new(),
        false => format!("; if another host failed, the log of `stageline serve` there says why: {}", names.join(", ")),
    }
}

impl StageFailure {
    /// Returns the index of the micro-batch that the failed stage was computing or transferring, counted from 0 within
    /// the replica. Returns `None` if the stage failed in work that belongs to no micro-batch, such as the optimizer
    /// step.
    pub fn micro_batch(&self) -> Option<usize> {
        match self.activity {
            Activity::Instruction(instruction) => Some(instruction.micro_batch()),
            _ => None,
        }
    }
}

/// The training step, evaluation, checkpoint or other work of the whole pipeline, as errors and reports name it. Each
/// variant has the number of training steps before this work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum During {
    /// A training step. The value is the step's zero-based index.
    Step(usize),
    /// An evaluation: forward passes and losses of a batch, without training on the batch.
    Evaluation {
        /// The number of training steps that the pipeline made before the evaluation.
        steps: usize,
    },
    /// Inference: only the forward passes of a batch, without a loss. The caller gets the outputs.
    Inference {
        /// The number of training steps that the pipeline made before the inference.
        steps: usize,
    },
    /// A snapshot: a copy of the modules of all stages for the caller.
    Snapshot {
        /// The number of training steps that the pipeline made before the snapshot.
        steps: usize,
    },
    /// A checkpoint: a copy of the parameters and optimizer states of all stages.
    Checkpoint {
        /// The number of training steps that the pipeline made before the checkpoint.
        steps: usize,
    },
    /// A rehearsal: a training step that is run only to measure the memory that training needs, and is rolled back.
    Rehearsal {
        /// The number of training steps that the pipeline made before the rehearsal, which itself does not count as a
        /// step.
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
