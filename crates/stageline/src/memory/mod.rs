//! Memory: how many bytes each worker will need, and which settings would need less.
//!
//! Takes the parameters, the plan, and measurements of two rehearsed micro-batches. Returns an estimate for each worker before the first
//! step, and predictions for other settings. Allocates nothing itself and changes no setting.

pub(crate) mod choose_recompute;
pub(crate) mod estimate;
pub(crate) mod fit;
pub(crate) mod rehearsal;
pub(crate) mod what_if;
mod worker_peaks;
