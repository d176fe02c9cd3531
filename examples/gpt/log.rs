//! One JSON object a line.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;
use stageline::{ParameterHealth, StepReport, Update};

/// A log that may go nowhere.
pub struct Log(Option<BufWriter<File>>);

/// What one step did; the loss is in nats a byte, the bubble a share of the total stage time.
#[derive(Serialize)]
pub struct StepLine {
    step: usize,
    loss: f64,
    weight: f64,
    pub tokens_per_s: f64,
    step_seconds: f64,
    bubble: f64,
    bubble_ideal: f64,
    /// This and the next two are `null` where the step was skipped.
    learning_rate: Option<f64>,
    gradient_norm: Option<f64>,
    clipped: Option<bool>,
    loss_scale: f64,
    /// In the steps that examine it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    health: Vec<HealthLine>,
}

/// What a step did to one parameter.
#[derive(Serialize)]
struct HealthLine {
    stage: usize,
    parameter: String,
    gradient_norm: f64,
    parameter_norm: f64,
    update_ratio: f64,
    second_moment: Option<f64>,
    zeros: f64,
    /// How many elements of the gradient are of a size from each power of two on.
    histogram: Vec<(f64, u64)>,
}

impl From<&ParameterHealth> for HealthLine {
    fn from(health: &ParameterHealth) -> Self {
        Self {
            stage: health.stage,
            parameter: health.path.clone(),
            gradient_norm: health.gradient_norm,
            parameter_norm: health.parameter_norm,
            update_ratio: health.update_ratio(),
            second_moment: health.second_moment,
            zeros: health.zeros,
            histogram: health.histogram.bins().filter(|(_, count)| *count > 0).collect(),
        }
    }
}

/// What came of it all.
#[derive(Serialize)]
pub struct FinalLine {
    pub r#final: bool,
    pub validation_bits_per_byte: f64,
    pub parameters: usize,
    pub parameters_sha256: String,
}

impl From<&StepReport> for StepLine {
    fn from(report: &StepReport) -> Self {
        let step_seconds = report.step_time.as_secs_f64();
        let (gradient_norm, clipped) = match report.update {
            Update::Stepped { gradient_norm, clipped } => (Some(gradient_norm), Some(clipped)),
            _ => (None, None),
        };
        Self {
            step: report.step,
            loss: report.loss,
            weight: report.weight(),
            tokens_per_s: report.weight() / step_seconds,
            step_seconds,
            bubble: report.bubble(),
            bubble_ideal: report.ideal_bubble(),
            learning_rate: report.stages.last().and_then(|stage| stage.learning_rate),
            gradient_norm,
            clipped,
            loss_scale: report.loss_scale,
            health: report.health.iter().map(HealthLine::from).collect(),
        }
    }
}

impl Log {
    /// Creates the file at `path`, if there is one.
    pub fn create(path: Option<&Path>) -> Result<Self> {
        let create = |path: &Path| File::create(path).with_context(|| format!("--log {}", path.display()));
        Ok(Self(path.map(create).transpose()?.map(BufWriter::new)))
    }

    /// Appends a line, and hands it to the system at once: a run that is cut short keeps its log.
    pub fn write(&mut self, line: &impl Serialize) -> Result<()> {
        let Some(file) = &mut self.0 else { return Ok(()) };
        serde_json::to_writer(&mut *file, line)?;
        file.write_all(b"\n")?;
        Ok(file.flush()?)
    }
}
