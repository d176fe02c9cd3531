//! The DualPipeV schedule: pairs of a forward pass and a backward pass whose computation and transfers can overlap.

use super::error::ScheduleError;
use super::schedule::Schedule;
use super::v_shape::Step::{B, F, I, Oldest, W};
use super::v_shape::in_a_v;
use crate::plan::Plan;

/// The DualPipeV schedule, which is half of DeepSeek's DualPipe (DeepSeek-AI, 2024,
/// [arXiv:2412.19437](https://arxiv.org/abs/2412.19437)). It has two chunks (stages) per worker in a V: worker w of P
/// has stages w and 2P-1-w.
///
/// In the main part, each worker pairs a forward pass on one chunk with a backward pass on the other. The transfers of
/// one pass can then overlap with the computation of the other pass. Some backward passes are split during fill and
/// drain. The order is PyTorch's, which requires M >= 2P. For a smaller M, the plan is the one for 2P micro-batches,
/// without the actions on micro-batches with the indices M and above.
///
/// The number of stages must be even.
///
/// The plan for P = 4 workers and M = 8 micro-batches, if forward pass, input gradient and weight gradient take the
/// same time:
///
/// ```text
/// worker 0 0F0 0F1 0F2 0F3 0F4 0F5 0F6 7F0 7I0 7W0 7F1 7I1 7W1 7F2 7I2 7W2 7F3 0F7 7B3 7B3 7F4 0B0 0B0 7B4 7B4 7F5 ... 0B1 0B1 7B5 7B5 7F6 ... 0B2 0B2 7B6 7B6 7F7 ... 0B3 0B3 7B7 7B7 0I4 0W4 0I5 0W5 0I6 0W6 0I7 0W7
/// worker 1 ... 1F0 1F1 1F2 1F3 1F4 6F0 1F5 6F1 6I0 6W0 6F2 6I1 6W1 6F3 1F6 6B2 6B2 6F4 1B0 1B0 1F7 6B3 6B3 6F5 1B1 1B1 6B4 6B4 6F6 ... 1B2 1B2 6B5 6B5 6F7 ... 1B3 1B3 6B6 6B6 1B4 1B4 6I7 1I5 6W7 1I6 1W5 1I7 1W6 1W7
/// worker 2 ... ... 2F0 2F1 2F2 5F0 2F3 5F1 2F4 5F2 5I0 5W0 5F3 2F5 5B1 5B1 5F4 2B0 2B0 2F6 5B2 5B2 5F5 2B1 2B1 2F7 5B3 5B3 5F6 2B2 2B2 5B4 5B4 5F7 ... 2B3 2B3 5B5 5B5 2B4 2B4 5B6 5B6 2I5 5I7 2I6 2W5 2I7 5W7 2W6 2W7
/// worker 3 ... ... ... 3F0 4F0 3F1 4F1 3F2 4F2 3F3 4F3 3F4 4B0 4B0 4F4 3B0 3B0 3F5 4B1 4B1 4F5 3B1 3B1 3F6 4B2 4B2 4F6 3B2 3B2 3F7 4B3 4B3 4F7 3B3 3B3 4B4 4B4 3B4 3B4 4B5 4B5 3B5 3B5 4I6 3I6 4I7 3I7 4W6 3W6 4W7 3W7
/// ```
///
/// - With transfers that take no time and without overlap, a worker idles between its first and its last action for at
///   most (P-1)(2F-W). This holds if M is at least 2P, an input gradient takes as long as a forward pass (F), and a
///   weight gradient (W) takes no longer.
/// - Worker w has at most min(2M, M+1+w, 2P+1) live micro-batches (between the forward pass and the end of the weight
///   gradient), counted once for each chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DualPipeV;

impl Schedule for DualPipeV {
    fn name(&self) -> &'static str {
        "dualpipe-v"
    }

    fn plan(&self, stages: usize, micro_batches: usize) -> Result<Plan, ScheduleError> {
        in_a_v(stages, micro_batches, |row, worker, workers| {
            let after = workers - worker - 1;
            let micro_batches = micro_batches.max(2 * workers);
            // The numbers in these comments are DeepSeek's numbers of the steps of this schedule.
            row.repeat(2 * after, &[F(0)]); // 1
            row.repeat(worker + 1, &[F(0), F(1)]); // 2
            row.repeat(after, &[I(1), W(1), F(1)]); // 3
            row.repeat(micro_batches - workers - after, &[F(0), B(1), F(1), B(0)]); // 4
            row.repeat(after, &[B(1), F(1), B(0)]); // 5
            row.repeat(worker.div_ceil(2), &[B(1), B(0)]); // 6, whole
            row.repeat((worker + 1) % 2, &[B(1), I(0)]);
            row.repeat(worker.div_ceil(2), &[I(1), I(0)]); // 6, split
            row.repeat(after, &[Oldest, I(0)]); // 7
            row.repeat(worker + 1, &[Oldest]); // 8
        })
    }

    fn chunks(&self) -> usize {
        2
    }
}
