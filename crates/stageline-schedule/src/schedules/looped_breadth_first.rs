//! The looped breadth-first schedule: GPipe over several chunks (stages) of the model on every worker.

use super::error::ScheduleError;
use super::rows::{in_chunks, workers_of};
use super::schedule::Schedule;
use crate::costs::StageCost;
use crate::plan::{Action, Plan};

/// The looped breadth-first schedule: each worker runs all micro-batches on one of its V chunks (stages) before the
/// next chunk (Lamy-Poirier, 2022, [arXiv:2211.05953](https://arxiv.org/abs/2211.05953)). All forward passes come
/// first, then all backward passes. Stage s is on worker s mod P.
///
/// The number of stages must be a multiple of V, the number of chunks per worker.
///
/// The plan for P = 4 workers, V = 2 and M = 8 micro-batches, if a backward pass takes twice as long as a forward pass:
///
/// ```text
/// worker 0 0F0 0F1 0F2 0F3 0F4 0F5 0F6 0F7 4F0 4F1 4F2 4F3 4F4 4F5 4F6 4F7 ... ... ... ... ... ... ... ... ... 4B0 4B0 4B1 4B1 4B2 4B2 4B3 4B3 4B4 4B4 4B5 4B5 4B6 4B6 4B7 4B7 0B0 0B0 0B1 0B1 0B2 0B2 0B3 0B3 0B4 0B4 0B5 0B5 0B6 0B6 0B7 0B7
/// worker 1 ... 1F0 1F1 1F2 1F3 1F4 1F5 1F6 1F7 5F0 5F1 5F2 5F3 5F4 5F5 5F6 5F7 ... ... ... ... ... ... 5B0 5B0 5B1 5B1 5B2 5B2 5B3 5B3 5B4 5B4 5B5 5B5 5B6 5B6 5B7 5B7 1B0 1B0 1B1 1B1 1B2 1B2 1B3 1B3 1B4 1B4 1B5 1B5 1B6 1B6 1B7 1B7 ... ...
/// worker 2 ... ... 2F0 2F1 2F2 2F3 2F4 2F5 2F6 2F7 6F0 6F1 6F2 6F3 6F4 6F5 6F6 6F7 ... ... ... 6B0 6B0 6B1 6B1 6B2 6B2 6B3 6B3 6B4 6B4 6B5 6B5 6B6 6B6 6B7 6B7 2B0 2B0 2B1 2B1 2B2 2B2 2B3 2B3 2B4 2B4 2B5 2B5 2B6 2B6 2B7 2B7 ... ... ... ...
/// worker 3 ... ... ... 3F0 3F1 3F2 3F3 3F4 3F5 3F6 3F7 7F0 7F1 7F2 7F3 7F4 7F5 7F6 7F7 7B0 7B0 7B1 7B1 7B2 7B2 7B3 7B3 7B4 7B4 7B5 7B5 7B6 7B6 7B7 7B7 3B0 3B0 3B1 3B1 3B2 3B2 3B3 3B3 3B4 3B4 3B5 3B5 3B6 3B6 3B7 3B7 ... ... ... ... ... ...
/// ```
///
/// In these formulas F and B are the times of the forward pass and the backward pass of one chunk.
///
/// - The step time with transfers of latency c is the sum over X = F and X = B of (M+P-1)X + (P-1)c + (V-1) max(MX,
///   P(X+c)).
/// - The bubble is (P-1)/(VM+P-1) of the total stage time if transfers take no time and M is at least P.
/// - Every worker has at most VM live micro-batches (forwarded, with the backward pass not yet done), counted once for
///   each chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoopedBreadthFirst {
    /// Number of chunks (stages) of the model that looped breadth-first places on every worker (V). With 0, the
    /// schedule has no plan: [`ScheduleError::NoChunks`](crate::ScheduleError::NoChunks).
    pub chunks: usize,
}

impl Schedule for LoopedBreadthFirst {
    fn name(&self) -> &'static str {
        "looped-breadth-first"
    }

    fn plan(&self, stages: usize, micro_batches: usize) -> Result<Plan, ScheduleError> {
        in_chunks(stages, micro_batches, self.chunks, |worker, workers| {
            let stages_of_worker = || (worker..stages).step_by(workers);
            let all = |stage| (0..micro_batches).map(move |micro_batch| (stage, micro_batch));
            let forwards = stages_of_worker().flat_map(all).map(|(stage, m)| Action::forward(stage, m));
            let backwards = stages_of_worker().rev().flat_map(all).map(|(stage, m)| Action::backward(stage, m));
            Ok(forwards.chain(backwards).collect())
        })
    }

    fn chunks(&self) -> usize {
        self.chunks
    }

    fn with_chunks(&self, chunks: usize) -> Option<Box<dyn Schedule>> {
        Some(Box::new(Self { chunks }))
    }

    fn closed_form(&self, stages: usize, micro_batches: usize, cost: StageCost) -> Option<f64> {
        let workers = workers_of(stages, self.chunks)?;
        let later = micro_batches.checked_sub(1)?;
        let (warm_up, again) = ((workers - 1) as f64, (self.chunks - 1) as f64);
        let slots = later as f64 + workers as f64;
        let (workers, micro_batches) = (workers as f64, micro_batches as f64);
        // Returns the time of one pass through all chunks. The next chunk begins when the first micro-batch has arrived
        // and the last one has left.
        let pass = |compute: f64, latency: f64| {
            let latency = if warm_up == 0.0 { 0.0 } else { latency };
            let chunk = f64::max(micro_batches * compute, workers * (compute + latency));
            slots * compute + warm_up * latency + again * chunk
        };
        Some(pass(cost.forward, cost.send_activation) + pass(cost.backward, cost.send_gradient))
    }
}
