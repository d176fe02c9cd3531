//! The settings of a training run that a checkpoint records ([`RunSettings`]), so that a run that resumes with other
//! settings is reported.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// The name of the entry for the pipeline's settings in a checkpoint's map `run`, which holds a program's own state.
const ENTRY: &str = "pipeline";

/// The largest relative difference between two learning rates that count as equal. Functions such as a cosine may
/// differ in their last bits between machines.
const SAME_RATE: f64 = 1e-9;

/// The settings of a pipeline that decide the bits of its parameters, and that a checkpoint of the pipeline records.
///
/// A run may be resumed with settings that differ from those in the checkpoint, on purpose or by mistake. The pipeline
/// then continues, and reports each setting that differs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RunSettings {
    /// R x M, the number of micro-batches of a training step: M for each of R data-parallel replicas.
    pub(crate) micro_batches: usize,
    /// The number of groups of micro-batches whose gradients are summed separately, before the sums of the groups are
    /// added up.
    pub(crate) gradient_groups: usize,
    /// The learning rate of the first stage in the last optimizer step; `None` before the first optimizer step.
    pub(crate) learning_rate: Option<f64>,
}

impl RunSettings {
    /// Writes the pipeline's settings as one entry into `run`, the map for a program's own state in a checkpoint.
    pub(crate) fn write(self, run: &mut BTreeMap<String, Value>) {
        let Self { micro_batches, gradient_groups, learning_rate } = self;
        let entry = json!({
            "micro_batches": micro_batches,
            "gradient_groups": gradient_groups,
            "learning_rate": learning_rate,
        });
        run.insert(ENTRY.to_owned(), entry);
    }

    /// Returns the pipeline's settings from `run`, the map for a program's own state in a checkpoint. Returns `None` if
    /// the checkpoint is an older one without such settings.
    pub(crate) fn read(run: &BTreeMap<String, Value>) -> Option<Self> {
        let entry = run.get(ENTRY)?;
        let number = |name: &str| usize::try_from(entry.get(name)?.as_u64()?).ok();
        Some(Self {
            micro_batches: number("micro_batches")?,
            gradient_groups: number("gradient_groups")?,
            learning_rate: entry.get("learning_rate").and_then(Value::as_f64),
        })
    }

    /// Returns a message for each setting that differs between this pipeline and the checkpoint that it resumes from
    /// (`before`). Learning rates are compared only if both are known.
    pub(crate) fn changes(self, before: Self) -> Vec<String> {
        let mut changes = Vec::new();
        for (name, was, is) in [
            ("micro-batches", before.micro_batches, self.micro_batches),
            ("groups of gradients", before.gradient_groups, self.gradient_groups),
        ] {
            if was != is {
                changes.push(format!(
                    "the steps of the checkpoint have {was} {name}, and those of this pipeline {is}: the training \
                     continues, with other bits"
                ));
            }
        }
        if let (Some(was), Some(is)) = (before.learning_rate, self.learning_rate)
            && (was - is).abs() > SAME_RATE * was.abs()
        {
            changes.push(format!(
                "the last optimizer step of the checkpoint had the learning rate {was}, and the schedule of this pipeline \
                 has {is} there: the training continues with its schedule"
            ));
        }
        changes
    }
}
