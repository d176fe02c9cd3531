//! The structures of a log's lines, which a training program serialises as one JSON object per line.
//!
//! The first line describes the run ([`Run`]). One line for each training step ([`Step`]) and each validation
//! ([`Validation`]) follows. Readers recognise the kind of a line by a field that only this kind has: `plan`, `step` or
//! `after_steps`. Times are in seconds unless a field says otherwise. JSON has no NaN and no infinity, so these values
//! are written as `null`. This folder must not open files, and must not summarise several steps: `run_log` does.
//!
//! - `run`: the description of a run, its layers, network links and estimated memory.
//! - `step`: the measurements of a step, with the time of each worker by cause, and the costs, memory and events.
//! - `unit`: the unit that data is counted in: tokens or samples.

mod run;
mod step;
mod unit;

use std::collections::BTreeMap;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

pub use run::{EstimatedMemory, Layer, Link, Run};
pub(crate) use step::clock;
pub use step::{
    Account, DeviceMemory, Event, Health, Noise, SignalAndNoise, StageCosts, StageNoise, Step, WorkerMemory, layer_of,
};
pub use unit::Unit;

/// A parsed line of a run's log, with a variant for each kind of line.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Line {
    /// The first line of a run's log, which describes the run: its plan, layers, settings and machine.
    Run(Box<Run>),
    /// A line of a run's log with the measurements of one training step.
    Step(Box<Step>),
    /// A line of a run's log with the loss on validation data after some training steps.
    Validation(Validation),
    /// A line of an unknown kind in a run's log, with none of the fields `plan`, `step` and `after_steps` of the known
    /// kinds. Readers of the log skip it.
    Other(Value),
}

impl Line {
    /// Parses one line of a run's log, and recognises its kind by a field that only this kind has.
    ///
    /// # Errors
    /// Returns [`serde_json::Error`] if the line is not valid JSON, or lacks a field that lines of its kind require.
    pub fn read(text: &str) -> Result<Self, serde_json::Error> {
        let value: Value = serde_json::from_str(text)?;
        let has = |field: &str| value.get(field).is_some();
        if has("plan") {
            return Ok(Self::Run(serde_json::from_value(value)?));
        }
        if has("step") {
            return Ok(Self::Step(serde_json::from_value(value)?));
        }
        if has("after_steps") {
            return Ok(Self::Validation(serde_json::from_value(value)?));
        }
        Ok(Self::Other(value))
    }

    /// Parses the bytes of one line of a run's log, like [`read`](Self::read). Bytes that are not UTF-8 are an error.
    pub(in crate::log) fn from_bytes(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        Self::read(str::from_utf8(bytes).map_err(serde_json::Error::custom)?)
    }
}

/// Deserializes a number of the log as a float; `null` becomes NaN, which JSON cannot represent.
fn or_nan<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

/// The loss on validation data, measured after some training steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Validation {
    /// The number of training steps that the run had completed before the validation.
    pub after_steps: usize,
    /// The mean loss over all validation targets, weighted by the weights of the targets. A mean that is not finite is
    /// `null` in the log, and NaN after reading.
    #[serde(deserialize_with = "or_nan")]
    pub validation_loss: f64,
    /// The mean of each of the model's metrics over the validation targets, by the name of the metric. The loss is not
    /// among them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metrics: BTreeMap<String, f64>,
}
