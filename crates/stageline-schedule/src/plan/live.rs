//! Counts the live micro-batches of a worker. A micro-batch is live from its forward pass until its weight gradient is
//! done, because its activations are retained that long.

use super::action::{Action, Compute};
use super::rows::Plan;

/// Updates the number of live micro-batches on a worker, `live`, for one more computation, such as a forward pass. A
/// micro-batch is live from its forward pass until its weight gradient is done.
pub(crate) fn live_after(live: usize, compute: Compute) -> usize {
    live.saturating_add_signed(live_change(compute))
}

/// Returns the change of a worker's number of live micro-batches (those with retained activations) by one computation:
/// 1 for a forward pass, 0 for an input gradient, and -1 for a weight gradient or a whole backward pass.
pub(crate) fn live_change(compute: Compute) -> isize {
    match compute {
        Compute::Forward => 1,
        Compute::InputGradient => 0,
        Compute::Backward | Compute::WeightGradient => -1,
    }
}

impl Plan {
    /// Returns the peak number of live micro-batches on each worker of a plan, summed over the worker's stages. A
    /// micro-batch is live from its forward pass until its weight gradient is done.
    pub fn peak_live(&self) -> Vec<usize> {
        let peak = |row: &Vec<Action>| {
            // The sum is signed, because an unchecked plan may end a micro-batch before it begins.
            let (mut live, mut peak) = (0_isize, 0);
            for action in row {
                live += live_change(action.compute);
                peak = peak.max(live);
            }
            peak.unsigned_abs()
        };
        self.rows().iter().map(peak).collect()
    }
}
