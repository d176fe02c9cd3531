//! The V-Min schedule: two stages per worker in a V (worker w of P has stages w and 2P-1-w), with about a third of the
//! memory of 1F1B.

use super::building_block::repeated;
use super::error::ScheduleError;
use super::schedule::Schedule;
use crate::plan::Plan;

/// The V-Min schedule: two chunks (stages) per worker in a V, with split backward passes, as in
/// [`VHalf`](crate::VHalf), but with the least memory (Qi et al., 2024,
/// [arXiv:2405.15362](https://arxiv.org/abs/2405.15362)). A worker's actions on one micro-batch form a building block,
/// and V-Min has the shortest block. In this block, forward passes and input gradients advance by one stage in each
/// time cell, which is a slot for one action.
///
/// The number of stages must be even.
///
/// The plan for P = 4 workers and M = 8 micro-batches, if forward pass, input gradient and weight gradient take the
/// same time:
///
/// ```text
/// worker 0 0F0 0F1 0F2 ... ... ... ... 7F0 7I0 7W0 ... ... 7F1 7I1 7W1 0I0 0W0 0F3 ... 7F2 7I2 0I1 7W2 0W1 0F4 7F3 7I3 0I2 7W3 0W2 0F5 7F4 7I4 0I3 7W4 0W3 0F6 7F5 7I5 0I4 7W5 0W4 0F7 7F6 7I6 0I5 7W6 0W5 ... 7F7 7I7 0I6 7W7 0W6 ... ... ... 0I7 0W7
/// worker 1 ... 1F0 1F1 1F2 ... ... 6F0 ... ... 6I0 6W0 6F1 ... ... 1I0 6I1 1W0 6W1 6F2 1F3 1I1 6I2 1W1 6W2 6F3 1F4 1I2 6I3 1W2 6W3 6F4 1F5 1I3 6I4 1W3 6W4 6F5 1F6 1I4 6I5 1W4 6W5 6F6 1F7 1I5 6I6 1W5 6W6 6F7 ... 1I6 6I7 1W6 6W7 ... ... 1I7 1W7 ...
/// worker 2 ... ... 2F0 2F1 ... 5F0 ... 5F1 ... ... 5I0 5W0 2F2 2I0 2W0 ... 5I1 5F2 5W1 2I1 2F3 2W1 5I2 5F3 5W2 2I2 2F4 2W2 5I3 5F4 5W3 2I3 2F5 2W3 5I4 5F5 5W4 2I4 2F6 2W4 5I5 5F6 5W5 2I5 2F7 2W5 5I6 5F7 5W6 2I6 2W6 ... 5I7 5W7 ... 2I7 2W7 ... ...
/// worker 3 ... ... ... 3F0 4F0 3F1 4F1 ... ... ... ... 4I0 3I0 4W0 3W0 3F2 4F2 4I1 3I1 4W1 3W1 3F3 4F3 4I2 3I2 4W2 3W2 3F4 4F4 4I3 3I3 4W3 3W3 3F5 4F5 4I4 3I4 4W4 3W4 3F6 4F6 4I5 3I5 4W5 3W5 3F7 4F7 4I6 3I6 4W6 3W6 ... ... 4I7 3I7 4W7 3W7 ... ...
/// ```
///
/// - Assume these equal times, transfers that take no time, and M of at least P+1. A worker then idles between its
///   first and its last action for at most the time of 4P-5 forward passes (4P-7 if 3 divides P, and P-1 for P < 3).
///   This is less than 2P/(3M) of the worker's compute time. If the times differ, the idle time is much longer and
///   grows with M.
/// - Every worker has at most min(2M, 2⌊(P+4)/3⌋) live micro-batches (between the forward pass and the end of the
///   weight gradient), counted once for each chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VMin;

impl Schedule for VMin {
    fn name(&self) -> &'static str {
        "v-min"
    }

    fn plan(&self, stages: usize, micro_batches: usize) -> Result<Plan, ScheduleError> {
        repeated(stages, micro_batches, block)
    }

    fn chunks(&self) -> usize {
        2
    }
}

/// Returns the building block of V-Min for worker `w` of `p`, as the time cells of four actions on micro-batch 0. These
/// are the forward passes on the worker's first and second stage, then the input gradients on its second and first
/// stage.
pub(super) fn block(w: usize, p: usize) -> [usize; 4] {
    let gap = if p.is_multiple_of(3) { 2 } else { 0 };
    [w, 2 * p - 1 - w, 2 * p + gap + w, 4 * p - 1 + gap - w]
}
