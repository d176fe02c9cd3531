//! The interleaved 1F1B schedule: several chunks (stages) of the model on every worker.

use super::error::ScheduleError;
use super::rows::{in_chunks, workers_of};
use super::schedule::Schedule;
use crate::costs::StageCost;
use crate::plan::{Action, Plan};

/// The interleaved 1F1B schedule over P workers with V chunks (stages) each, in Megatron-LM's order (Narayanan et al.,
/// 2021, [arXiv:2104.04473](https://arxiv.org/abs/2104.04473)). Stage s is on worker s mod P. A worker runs the forward
/// passes of P micro-batches on one chunk, then the forward passes of the same micro-batches on the next chunk.
///
/// The number of stages must be a multiple of V, and the number of micro-batches a multiple of P.
///
/// The plan for P = 4 workers, V = 2 and M = 8 micro-batches, if a backward pass takes twice as long as a forward pass:
///
/// ```text
/// worker 0 0F0 0F1 0F2 0F3 4F0 4F1 4F2 4F3 0F4 0F5 0F6 ... ... ... 4B0 4B0 0F7 4B1 4B1 ... 4F4 4B2 4B2 4F5 4B3 4B3 4F6 0B0 0B0 4F7 0B1 0B1 0B2 0B2 ... 0B3 0B3 ... 4B4 4B4 ... 4B5 4B5 ... 4B6 4B6 ... 4B7 4B7 0B4 0B4 0B5 0B5 0B6 0B6 0B7 0B7
/// worker 1 ... 1F0 1F1 1F2 1F3 5F0 5F1 5F2 5F3 1F4 ... ... 5B0 5B0 1F5 5B1 5B1 1F6 5B2 5B2 1F7 5B3 5B3 5F4 1B0 1B0 5F5 1B1 1B1 5F6 1B2 1B2 5F7 1B3 1B3 ... 5B4 5B4 ... 5B5 5B5 ... 5B6 5B6 ... 5B7 5B7 1B4 1B4 1B5 1B5 1B6 1B6 1B7 1B7 ... ...
/// worker 2 ... ... 2F0 2F1 2F2 2F3 6F0 6F1 6F2 ... 6B0 6B0 6F3 6B1 6B1 2F4 6B2 6B2 2F5 6B3 6B3 2F6 2B0 2B0 2F7 2B1 2B1 6F4 2B2 2B2 6F5 2B3 2B3 6F6 6B4 6B4 6F7 6B5 6B5 ... 6B6 6B6 ... 6B7 6B7 2B4 2B4 2B5 2B5 2B6 2B6 2B7 2B7 ... ... ... ...
/// worker 3 ... ... ... 3F0 3F1 3F2 3F3 7F0 7B0 7B0 7F1 7B1 7B1 7F2 7B2 7B2 7F3 7B3 7B3 3F4 3B0 3B0 3F5 3B1 3B1 3F6 3B2 3B2 3F7 3B3 3B3 7F4 7B4 7B4 7F5 7B5 7B5 7F6 7B6 7B6 7F7 7B7 7B7 3B4 3B4 3B5 3B5 3B6 3B6 3B7 3B7 ... ... ... ... ... ...
/// ```
///
/// In these formulas F and B are the times of the forward pass and the backward pass of one chunk.
///
/// - The step time with transfers of latency c is (VM+P-1)(F+B) + 2(VP-1)c, if c is at most F and B.
/// - The bubble is (P-1)/(VM+P-1) of the total stage time if transfers take no time.
/// - Worker 0 has at most (V+1)P-1 live micro-batches (forwarded, with the backward pass not yet done), counted once
///   for each chunk, and each later worker two fewer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interleaved {
    /// Number of chunks (stages) of the model that interleaved 1F1B places on every worker (V). With 0, the schedule
    /// has no plan: [`ScheduleError::NoChunks`](crate::ScheduleError::NoChunks).
    pub chunks: usize,
}

impl Schedule for Interleaved {
    fn name(&self) -> &'static str {
        "interleaved"
    }

    fn plan(&self, stages: usize, micro_batches: usize) -> Result<Plan, ScheduleError> {
        let chunks = self.chunks;
        in_chunks(stages, micro_batches, chunks, |worker, workers| {
            if !micro_batches.is_multiple_of(workers) {
                return Err(ScheduleError::MicroBatches { given: micro_batches, multiple_of: workers });
            }
            let total = chunks * micro_batches;
            let chunk_of = |n: usize| n / workers % chunks;
            let micro_batch_of = |n: usize| n / (workers * chunks) * workers + n % workers;
            let forward = |n| Action::forward(chunk_of(n) * workers + worker, micro_batch_of(n));
            let backward = |n| Action::backward((chunks - 1 - chunk_of(n)) * workers + worker, micro_batch_of(n));

            let warm_up = total.min((chunks - 1) * workers + 2 * (workers - worker - 1));
            let mut row: Vec<_> = (0..warm_up).map(forward).collect();
            for n in 0..total {
                row.extend((warm_up + n < total).then(|| forward(warm_up + n)));
                row.push(backward(n));
            }
            Ok(row)
        })
    }

    fn chunks(&self) -> usize {
        self.chunks
    }

    fn with_chunks(&self, chunks: usize) -> Option<Box<dyn Schedule>> {
        Some(Box::new(Self { chunks }))
    }

    fn closed_form(&self, stages: usize, micro_batches: usize, cost: StageCost) -> Option<f64> {
        let workers = workers_of(stages, self.chunks).filter(|workers| micro_batches.is_multiple_of(*workers))?;
        let later = self.chunks as f64 * micro_batches.checked_sub(1)? as f64 + (self.chunks - 1) as f64;
        let hops = if workers == 1 { 0.0 } else { 2.0 * (stages - 1) as f64 };
        let (latency, both) = (cost.latency()?, cost.forward + cost.backward);
        let known = latency <= cost.forward.min(cost.backward);
        known.then_some((later + workers as f64) * both + hops * latency)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_do_not_divide_are_rejected_with_the_nearest_that_do() {
        let message = |stages, micro_batches| {
            let error = Interleaved { chunks: 2 }.plan(stages, micro_batches).unwrap_err();
            error.to_string()
        };
        assert!(message(5, 4).contains("5 stages are not a multiple of 2 chunks per worker; ask for 4 or 6 stages"));
        assert!(message(6, 7).contains(
            "7 micro-batches are not a multiple of 3, the number of workers, as this schedule needs; ask for 6 or 9"
        ));
        assert!(message(6, 2).contains("ask for 3 micro-batches"));
        assert!(Interleaved { chunks: 0 }.plan(0, 4).unwrap_err().to_string().contains("0 chunks"));
        assert!(Interleaved { chunks: 0 }.plan(4, 4).unwrap_err().to_string().contains("0 chunks"));
    }
}
