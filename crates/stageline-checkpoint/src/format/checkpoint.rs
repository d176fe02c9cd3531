//! A checkpoint in memory, and the validation of its step counts and loss scale.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::damage::Damage;
use crate::error::CheckpointError;
use crate::format::frozen::FrozenTensor;
use crate::format::json;
use crate::format::tensor::Tensor;

/// The maximum step count of a checkpoint, 2^53. JSON readers that parse numbers as f64 represent every integer up to
/// 2^53 exactly.
const MOST_STEPS: u64 = 1 << 53;

/// Everything that a training run needs to resume: progress, configuration, parameters and optimizer state. Frozen
/// parameters may be replaced by their hashes.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// The step counts and the loss scale of the training run at the time of the checkpoint.
    pub progress: Progress,
    /// The JSON values that the caller stores with the checkpoint, under names of its choice. Examples are the run's
    /// configuration, and fingerprints such as a hash of the training data.
    pub run: BTreeMap<String, Value>,
    /// The model's parameters in a checkpoint, by their names in the whole model, such as `blocks.3.up.weight`.
    pub parameters: BTreeMap<String, Tensor>,
    /// The tensors of the optimizer state by name, which is `<parameter>/<field>`, such as
    /// `blocks.3.up.weight/momentum.moment_1`.
    pub optimizer: BTreeMap<String, Tensor>,
    /// The frozen tensors whose values are not stored in the checkpoint, by their names in the whole model; usually
    /// empty. The model that resumes must have the same values. This crate does not check that; the hashes are for the
    /// caller to compare.
    pub frozen: BTreeMap<String, FrozenTensor>,
}

/// A training run's progress in a checkpoint: its step counts and its loss scale. Values outside the fields' limits are
/// an error when a checkpoint is saved ([`Store::save`](crate::Store::save)) or opened
/// ([`Saved::open`](crate::Saved::open)).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Progress {
    /// The number of training steps completed at the time of the checkpoint, including those that skipped the optimizer
    /// update; at most 2^53.
    pub steps: u64,
    /// The number of training steps where the optimizer updated the parameters; at most the number of completed steps.
    pub optimizer_steps: u64,
    /// The state of the dynamic loss scale at the time of the checkpoint; `None` if the training run uses none. The
    /// loss scale is a factor on the loss in mixed-precision training, which is adapted when gradients overflow.
    pub loss_scale: Option<LossScale>,
}

/// The state of the dynamic loss scale, a factor that multiplies the loss in mixed-precision training. Training lowers
/// the loss scale when gradients overflow, and raises it after many steps without an overflow.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LossScale {
    /// The factor that multiplies the loss in mixed-precision training; finite and greater than 0.
    #[serde(with = "json::exact_float")]
    pub scale: f64,
    /// The number of training steps without a gradient overflow since the loss scale was last changed.
    pub good_steps: u64,
}

/// A step count or loss scale outside its limits, which makes a checkpoint invalid. It becomes a [`CheckpointError`]
/// when the checkpoint is saved, and a [`Damage`] when it is read.
pub(crate) enum InvalidProgress {
    Steps { steps: u64, most: u64 },
    OptimizerSteps { optimizer_steps: u64, steps: u64 },
    LossScale { scale: f64 },
}

impl Progress {
    /// Checks the limits of the step counts (`optimizer_steps <= steps <= 2^53`) and of the loss scale (finite and
    /// above 0).
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
