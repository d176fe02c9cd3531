//! What is saved.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::exact;
use crate::tensor::Tensor;

/// The most steps: all integers up to here are exact in every reader of JSON, and one more can still be counted.
const MOST_STEPS: u64 = 1 << 53;

/// All that training goes on from.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// How far training is.
    pub progress: Progress,
    /// Configuration and fingerprints of the run, which are the caller's.
    pub run: BTreeMap<String, Value>,
    /// Parameters, by their global names.
    pub parameters: BTreeMap<String, Tensor>,
    /// Optimizer state, by `<parameter>/<field>`.
    pub optimizer: BTreeMap<String, Tensor>,
}

/// How far training is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Progress {
    /// Steps that are done, with those that were skipped: at most 2^53.
    pub steps: u64,
    /// Steps of the optimizer; not more than all steps.
    pub optimizer_steps: u64,
    /// The loss scale, where there is one.
    pub loss_scale: Option<LossScale>,
}

/// A loss scale that adapts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LossScale {
    /// The scale: finite, and greater than 0.
    #[serde(with = "exact")]
    pub scale: f64,
    /// Steps without an overflow since it last changed.
    pub good_steps: u64,
}

/// What training cannot go on from.
pub(crate) enum Wrong {
    /// More steps than can be.
    Steps { steps: u64, most: u64 },
    /// More steps of the optimizer than steps.
    OptimizerSteps { optimizer_steps: u64, steps: u64 },
    /// A loss scale that is not a positive number.
    LossScale { scale: f64 },
}

impl Progress {
    /// What is wrong with it, if training cannot go on from it.
    pub(crate) fn wrong(&self) -> Option<Wrong> {
        let Self { steps, optimizer_steps, loss_scale } = *self;
        match loss_scale {
            _ if steps > MOST_STEPS => Some(Wrong::Steps { steps, most: MOST_STEPS }),
            _ if optimizer_steps > steps => Some(Wrong::OptimizerSteps { optimizer_steps, steps }),
            Some(LossScale { scale, .. }) if !scale.is_finite() || scale <= 0.0 => Some(Wrong::LossScale { scale }),
            _ => None,
        }
    }
}
