//! The V-Half schedule: two stages per worker in a V (worker w of P has stages w and 2P-1-w), with about half the
//! memory of 1F1B.

use super::building_block::repeated;
use super::error::ScheduleError;
use super::schedule::Schedule;
use crate::plan::Plan;

/// The V-Half schedule: two chunks (stages) per worker in a V, with split backward passes. Worker w of P has stages w
/// and 2P-1-w (Qi et al., 2024, [arXiv:2405.15362](https://arxiv.org/abs/2405.15362)).
///
/// A worker's actions on one micro-batch form a building block. The worker repeats the block for the next micro-batch
/// every six time cells, where a cell is a slot for one action. Weight gradients fill the cells that no other action
/// takes. Then every action moves to the earliest time that does not raise the peak of live micro-batches.
///
/// A longer block retains the activations of more micro-batches. In V-Half, the forward passes of a micro-batch advance
/// by one stage every two cells in the first half of the stages, and every cell in the second half. The input gradients
/// begin at the last stage. They go back by one stage every two cells in the second half of the stages, and every cell
/// in the first half.
///
/// The number of stages must be even.
///
/// The plan for P = 4 workers and M = 8 micro-batches, if forward pass, input gradient and weight gradient take the
/// same time:
///
/// ```text
/// worker 0 0F0 0F1 0F2 0F3 0F4 ... ... 7F0 7I0 7W0 7F1 7I1 7W1 ... 7F2 7I2 0I0 0W0 7W2 7F3 0F5 7I3 0I1 0W1 7W3 7F4 0F6 7I4 0I2 0W2 7W4 7F5 0F7 7I5 0I3 0W3 7W5 7F6 7I6 7W6 0I4 0W4 ... 7F7 7I7 0I5 0W5 0I6 7W7 0W6 ... 0I7 0W7
/// worker 1 ... 1F0 1F1 1F2 1F3 ... 6F0 ... 6F1 6I0 6W0 ... 6I1 6F2 6W1 1I0 1W0 1F4 6F3 6I2 6W2 1I1 1W1 1F5 6F4 6I3 6W3 1I2 1W2 1F6 6F5 6I4 6W4 1I3 1W3 1F7 6F6 6I5 6W5 1I4 6I6 1W4 6F7 6W6 1I5 6I7 1I6 1W5 6W7 1W6 1I7 1W7 ...
/// worker 2 ... ... 2F0 2F1 2F2 5F0 2F3 5F1 ... ... 5I0 5W0 5F2 5I1 2I0 2W0 5W1 5F3 2F4 ... 2I1 5I2 2W1 5F4 5W2 2F5 2I2 5I3 2W2 5F5 5W3 2F6 2I3 5I4 2W3 5F6 5W4 2F7 2I4 5I5 2W4 5F7 5I6 2I5 5W5 2I6 5I7 2W5 5W6 2I7 2W6 5W7 2W7
/// worker 3 ... ... ... 3F0 4F0 3F1 4F1 3F2 4F2 ... ... 4I0 4W0 3I0 3W0 3F3 4F3 4I1 4W1 3I1 3W1 3F4 4F4 4I2 4W2 3I2 3W2 3F5 4F5 4I3 4W3 3I3 3W3 3F6 4F6 4I4 4W4 3I4 3W4 3F7 4F7 4I5 3I5 4I6 3I6 4W5 3W5 4I7 3I7 4W6 3W6 4W7 3W7
/// ```
///
/// - Assume these equal times, transfers that take no time, and M of at least P+1. A worker then idles between its
///   first and its last action for at most the time of 6⌊(P-1)/2⌋-1 forward passes (0 for P < 3). This is less than
///   P/(2M) of the worker's compute time.
/// - Every worker has at most min(2M, 2⌊P/2⌋+2) live micro-batches (between the forward pass and the end of the weight
///   gradient), counted once for each chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VHalf;

impl Schedule for VHalf {
    fn name(&self) -> &'static str {
        "v-half"
    }

    fn plan(&self, stages: usize, micro_batches: usize) -> Result<Plan, ScheduleError> {
        repeated(stages, micro_batches, block)
    }

    fn chunks(&self) -> usize {
        2
    }
}

/// Returns the building block of V-Half for worker `w` of `p`, as the time cells of four actions on micro-batch 0.
/// These are the forward passes on the worker's first and second stage, then the input gradients on its second and
/// first stage.
pub(super) fn block(w: usize, p: usize) -> [usize; 4] {
    let gap = if p.is_multiple_of(2) { 3 } else { 0 };
    [2 * w, 3 * p - 2 - w, 3 * p - 1 + gap + 2 * w, 6 * p - 2 + gap - w]
}
