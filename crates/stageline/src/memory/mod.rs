//! Memory: how many bytes each worker will need, and which settings would need less.
//!
//! Takes the parameters, the plan, and measurements of two rehearsed micro-batches. Returns an estimate for each worker
//! before the first step, and predictions for other settings. Allocates nothing itself and changes no setting.
//!
//! - `rehearsal`: the measurements of two micro-batches and one optimizer step.
//! - `estimate`: the figures of one stage, one worker and one pipeline.
//! - `whatever_rows`: the part of a stage's memory that does not depend on the rows of a micro-batch.
//! - `worker_peaks`: the peak of each worker, from the plan and the figures of its stages.
//! - `what_if`: the estimate under other settings.
//! - `fit`: the check against the devices' memory, and the changes that would help.
//! - `choose_recompute`: the least recomputation with which a pipeline fits.

pub(crate) mod choose_recompute;
pub(crate) mod estimate;
pub(crate) mod fit;
pub(crate) mod rehearsal;
pub(crate) mod what_if;
pub(crate) mod whatever_rows;
mod worker_peaks;
