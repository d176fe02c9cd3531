//! What is saved.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::exact;
use crate::tensor::Tensor;

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
    /// Steps that are done, with those that were skipped.
    pub steps: u64,
    /// Steps of the optimizer.
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

impl Progress {
    /// The loss scale, if it is none that training can go on with.
    pub(crate) fn wrong_scale(&self) -> Option<f64> {
        let scale = self.loss_scale?.scale;
        (!scale.is_finite() || scale <= 0.0).then_some(scale)
    }
}
