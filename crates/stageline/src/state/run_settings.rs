//! The settings of a training run that a checkpoint records ([`RunSettings`]), so that a warning can be logged if a
//! resumed run has other settings.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// The key of the pipeline's settings in a checkpoint's map `run`, which holds a program's own state.
const ENTRY: &str = "pipeline";

/// The largest relative difference at which two learning rates still count as equal, because functions such as the
/// cosine may differ in their last bits between machines.
const SAME_RATE: f64 = 1e-9;

/// The settings of a pipeline that affect the exact bits of the trained parameters, and that its checkpoints record.
///
/// A run may be resumed with settings that differ from those in the checkpoint, on purpose or by mistake. The pipeline
/// then continues, and a warning names each setting that differs.
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
    /// Stores these settings as one entry in `run`, a checkpoint's map for a program's own state.
    pub(crate) fn write(self, run: &mut BTreeMap<String, Value>) {
        let Self { micro_batches, gradient_groups, learning_rate } = self;
        let entry = json!({
            "micro_batches": micro_batches,
            "gradient_groups": gradient_groups,
            "learning_rate": learning_rate,
        });
        run.insert(ENTRY.to_owned(), entry);
    }

    /// Reads the pipeline's settings from `run`, a checkpoint's map for a program's own state. Returns `None` if it has
    /// no such entry.
    pub(crate) fn read(run: &BTreeMap<String, Value>) -> Option<Self> {
        let entry = run.get(ENTRY)?;
        let number = |name: &str| usize::try_from(entry.get(name)?.as_u64()?).ok();
        Some(Self {
            micro_batches: number("micro_batches")?,
            gradient_groups: number("gradient_groups")?,
            learning_rate: entry.get("learning_rate").and_then(Value::as_f64),
        })
    }

    /// Returns a warning message for each setting of this pipeline that differs from `before`, the settings in the
    /// checkpoint that it resumes from. Learning rates are compared only if both are known.
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
