//! A checkpoint in memory, and the validation of its progress.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::damage::Damage;
use crate::error::CheckpointError;
use crate::format::json;
use crate::format::tensor::Tensor;

/// The largest step count. Every JSON reader represents integers up to here exactly, and one more can still be counted.
const MOST_STEPS: u64 = 1 << 53;

/// Everything that a training run needs to resume.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// The progress of the training.
    pub progress: Progress,
    /// The caller's configuration and fingerprints of the run.
    pub run: BTreeMap<String, Value>,
    /// The parameters by their global names.
    pub parameters: BTreeMap<String, Tensor>,
    /// The optimizer state by `<parameter>/<field>`.
    pub optimizer: BTreeMap<String, Tensor>,
}

/// The progress of a training run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Progress {
    /// The number of completed steps, skipped ones included; at most 2^53.
    pub steps: u64,
    /// The number of steps that the optimizer made; at most `steps`.
    pub optimizer_steps: u64,
    /// The dynamic loss scale; `None` if the training uses none.
    pub loss_scale: Option<LossScale>,
}

/// The state of a dynamic loss scale.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LossScale {
    /// The factor on the loss; finite and greater than 0.
    #[serde(with = "json::exact_float")]
    pub scale: f64,
    /// The number of steps without an overflow since the scale last changed.
    pub good_steps: u64,
}

/// The reason why a training cannot resume from a [`Progress`].
pub(crate) enum InvalidProgress {
    Steps { steps: u64, most: u64 },
    OptimizerSteps { optimizer_steps: u64, steps: u64 },
    LossScale { scale: f64 },
}

impl Progress {
    /// Checks the limits that the fields document.
    pub(crate) fn validate(&self) -> Result<(), InvalidProgress> {
        let Self { steps, optimizer_steps, loss_scale } = *self;
        match loss_scale {
            _ if steps > MOST_STEPS => Err(InvalidProgress::Steps { steps, most: MOST_STEPS }),
            _ if optimizer_steps > steps => Err(InvalidProgress::OptimizerSteps { optimizer_steps, steps }),
            Some(LossScale { scale, .. }) if !scale.is_finite() || scale <= 0.0 => {
                Err(InvalidProgress::LossScale { scale })
            }
            _ => Ok(()),
        }
    }
}

/// The error of a reader.
impl From<InvalidProgress> for Damage {
    fn from(invalid: InvalidProgress) -> Self {
        match invalid {
            InvalidProgress::Steps { steps, most } => Self::Steps { steps, most },
            InvalidProgress::OptimizerSteps { optimizer_steps, steps } => {
                Self::OptimizerSteps { optimizer_steps, steps }
            }
            InvalidProgress::LossScale { scale } => Self::LossScale { scale },
        }
    }
}

/// The error of a writer.
impl From<InvalidProgress> for CheckpointError {
    fn from(invalid: InvalidProgress) -> Self {
        match invalid {
            InvalidProgress::Steps { steps, most } => Self::Steps { steps, most },
            InvalidProgress::OptimizerSteps { optimizer_steps, steps } => {
                Self::OptimizerSteps { optimizer_steps, steps }
            }
            InvalidProgress::LossScale { scale } => Self::LossScale { scale },
        }
    }
}
