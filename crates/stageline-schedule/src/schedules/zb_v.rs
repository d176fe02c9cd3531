//! The ZB-V schedule: no bubble except fill and drain, with the memory of 1F1B.

use super::error::ScheduleError;
use super::schedule::Schedule;
use super::v_shape::Step::{F, I, W};
use super::v_shape::in_a_v;
use crate::plan::Plan;

/// The ZB-V schedule: two chunks (stages) per worker in a V, with split backward passes (Qi et al., 2023,
/// [arXiv:2401.10241](https://arxiv.org/abs/2401.10241)). Worker w of P has stages w and 2P-1-w, so the first and the
/// last stage share a worker. The order of the actions is PyTorch's. This order suits forward passes, input gradients
/// and weight gradients that take the same time.
///
/// The number of stages must be even.
///
/// The plan for P = 4 workers and M = 8 micro-batches, if forward pass, input gradient and weight gradient take the
/// same time:
///
/// ```text
/// worker 0 0F0 0F1 0F2 0F3 0F4 0F5 0F6 7F0 7I0 7W0 7F1 7I1 7W1 7F2 7I2 7W2 7F3 7I3 7W3 0F7 0I0 0W0 7F4 7I4 7W4 0I1 0W1 7F5 7I5 7W5 0I2 0W2 7F6 7I6 7W6 0I3 0W3 7F7 7I7 7W7 0I4 0W4 0I5 0W5 0I6 0W6 0I7 0W7 ... ... ...
/// worker 1 ... 1F0 1F1 1F2 1F3 1F4 6F0 1F5 6F1 6I0 6W0 6F2 6I1 6W1 6F3 6I2 6W2 1F6 1I0 1W0 6F4 6I3 6W3 1F7 1I1 1W1 6F5 6I4 6W4 1I2 1W2 6F6 6I5 6W5 1I3 1W3 6F7 6I6 6W6 1I4 6I7 1I5 1W4 1I6 1W5 1I7 1W6 6W7 1W7 ... ...
/// worker 2 ... ... 2F0 2F1 2F2 5F0 2F3 5F1 2F4 5F2 5I0 5W0 5F3 5I1 5W1 2F5 2I0 2W0 5F4 5I2 5W2 2F6 2I1 2W1 5F5 5I3 5W3 2F7 2I2 2W2 5F6 5I4 5W4 2I3 2W3 5F7 5I5 5W5 2I4 5I6 2I5 5I7 2I6 2W4 2I7 2W5 5W6 5W7 2W6 2W7 ...
/// worker 3 ... ... ... 3F0 4F0 3F1 4F1 3F2 4F2 3F3 4F3 4I0 4W0 3F4 3I0 3W0 4F4 4I1 4W1 3F5 3I1 3W1 4F5 4I2 4W2 3F6 3I2 3W2 4F6 4I3 4W3 3F7 3I3 3W3 4F7 4I4 4W4 3I4 4I5 3I5 4I6 3I6 4I7 3I7 3W4 4W5 4W6 4W7 3W5 3W6 3W7
/// ```
///
/// - Assume these equal times and transfers that take no time. A worker then idles between its first and its last
///   action for at most the time of 2(2P-1-M) forward passes. If M is at least 2P-1, it does not idle at all.
/// - Worker w has at most min(2M, M+1+w, 2P) live micro-batches (between the forward pass and the end of the weight
///   gradient), counted once for each chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZbV;

impl Schedule for ZbV {
    fn name(&self) -> &'static str {
        "zb-v"
    }

    fn plan(&self, stages: usize, micro_batches: usize) -> Result<Plan, ScheduleError> {
        in_a_v(stages, micro_batches, |row, worker, workers| {
            let after = workers - worker - 1;
            let micro_batches = micro_batches.max(2 * workers - 1);
            // The warm-up begins with forward passes on chunk 0, adds those on chunk 1, and then chunk 1's backward
            // passes.
            row.repeat(2 * after + 1, &[F(0)]);
            row.repeat(worker, &[F(1), F(0)]);
            row.repeat(after + 1, &[F(1), I(1), W(1)]);
            // The steady phase is followed by steps without new micro-batches.
            row.repeat(micro_batches - workers - after, &[F(0), I(0), W(0), F(1), I(1), W(1)]);
            row.repeat(after, &[I(0), W(0), F(1), I(1), W(1)]);
            // The cool-down begins with the actions that other workers wait for.
            row.repeat(worker, &[I(0), I(1)]);
            row.repeat(after + 1, &[I(0), W(0)]);
            row.repeat(worker, &[W(1)]);
            row.repeat(worker, &[W(0)]);
        })
    }

    fn chunks(&self) -> usize {
        2
    }
}
