//! The 1F1B schedule: after a warm-up, every stage alternates one forward pass and one backward pass.

use super::error::ScheduleError;
use super::rows::{Backwards, alternate, one_worker_a_stage};
use super::schedule::Schedule;
use crate::costs::StageCost;
use crate::plan::Plan;

/// The 1F1B schedule, which alternates one forward pass and one backward pass. It is PipeDream-Flush (Narayanan et al.,
/// 2021, [arXiv:2006.09503](https://arxiv.org/abs/2006.09503)), and the non-interleaved schedule of Megatron-LM
/// ([arXiv:2104.04473](https://arxiv.org/abs/2104.04473)).
///
/// Stage s of P warms up with P-s-1 forward passes, then alternates one forward pass and one backward pass, then
/// drains.
///
/// The plan for P = 4 stages and M = 8 micro-batches, if a backward pass takes twice as long as a forward pass:
///
/// ```text
/// stage 0 F0 F1 F2 F3 .. .. .. .. .. .. B0 B0 F4 B1 B1 F5 B2 B2 F6 B3 B3 F7 B4 B4 .. B5 B5 .. B6 B6 .. B7 B7
/// stage 1 .. F0 F1 F2 .. .. .. .. B0 B0 F3 B1 B1 F4 B2 B2 F5 B3 B3 F6 B4 B4 F7 B5 B5 .. B6 B6 .. B7 B7 .. ..
/// stage 2 .. .. F0 F1 .. .. B0 B0 F2 B1 B1 F3 B2 B2 F4 B3 B3 F5 B4 B4 F6 B5 B5 F7 B6 B6 .. B7 B7 .. .. .. ..
/// stage 3 .. .. .. F0 B0 B0 F1 B1 B1 F2 B2 B2 F3 B3 B3 F4 B4 B4 F5 B5 B5 F6 B6 B6 F7 B7 B7 .. .. .. .. .. ..
/// ```
///
/// In these formulas F and B are the times of the forward pass and the backward pass of one stage for one micro-batch.
///
/// - The step time with transfers of latency c is (M+P-1)(F+B) + 2c[(P-1) + (M-1) - ⌈(M-1)/P⌉]. If P divides M, this is
///   (M+P-1)(F+B) + c[2(P-1)M/P + 2(P-2)].
/// - The bubble is (P-1)/(M+P-1) of the total stage time if transfers take no time.
/// - Stage s has at most min(M, P-s) live micro-batches (forwarded, with the backward pass not yet done).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OneFOneB;

impl Schedule for OneFOneB {
    fn name(&self) -> &'static str {
        "1f1b"
    }

    fn plan(&self, stages: usize, micro_batches: usize) -> Result<Plan, ScheduleError> {
        one_worker_a_stage(stages, micro_batches, |stage| {
            alternate(stage, micro_batches, stages - stage - 1, Backwards::Whole)
        })
    }

    fn closed_form(&self, stages: usize, micro_batches: usize, cost: StageCost) -> Option<f64> {
        let (warm_up, later) = (stages.checked_sub(1)?, micro_batches.checked_sub(1)?);
        // All but one of every P micro-batches wait for the transfer of a gradient.
        let delays = 2.0 * (warm_up as f64 + (later - later.div_ceil(stages)) as f64);
        Some((later as f64 + stages as f64) * (cost.forward + cost.backward) + delays * cost.latency()?)
    }
}
