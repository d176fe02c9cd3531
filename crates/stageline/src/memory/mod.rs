//! Memory: how many bytes each worker will need, and which settings would need less.
//!
//! Takes the parameters, the plan, and measurements of two rehearsed micro-batches. Returns an estimate for each worker
//! before the first step, and predictions for other settings. Allocates nothing itself and changes no setting.
//!
//! - `rehearsal`: the measurements of two micro-batches and one optimizer step (`Rehearsal`).
//! - `estimate`: the memory figures of one stage, one worker and one pipeline (`StageEstimate`, `WorkerEstimate`,
//!   `MemoryEstimate`).
//! - `whatever_rows`: the part of a stage's memory that does not depend on the rows of a micro-batch (`WhateverRows`).
//! - `worker_peaks`: the peak memory of each worker, from the plan and the figures of its stages.
//! - `what_if`: the estimate under other settings, such as another plan, micro-batch size or number of stages.
//! - `fit`: the check against the devices' memory (`DoesNotFit`), and the changes that would help (`WayOut`, `Lever`).
//! - `choose_recompute`: the least recomputation of each stage with which a pipeline fits its memory.

pub(crate) mod choose_recompute;
pub(crate) mod estimate;
pub(crate) mod fit;
pub(crate) mod rehearsal;
pub(crate) mod what_if;
pub(crate) mod whatever_rows;
mod worker_peaks;
