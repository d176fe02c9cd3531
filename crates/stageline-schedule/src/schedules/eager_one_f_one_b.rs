//! The eager 1F1B schedule: a longer warm-up than 1F1B has, which hides transfers behind forward and backward passes.

use super::error::ScheduleError;
use super::gpipe::GPipe;
use super::rows::{Backwards, alternate, one_worker_a_stage};
use super::schedule::Schedule;
use crate::costs::StageCost;
use crate::plan::Plan;

/// The eager 1F1B schedule: 1F1B with twice the warm-up. Stage s of P runs 2(P-s-1) forward passes before it alternates
/// forward and backward passes. This hides transfers behind computation if a transfer takes at most half the time of
/// one forward and one backward pass together (Zhuang et al., 2023,
/// [arXiv:2211.05322](https://arxiv.org/abs/2211.05322)).
///
/// The plan for P = 4 stages and M = 8 micro-batches, if a backward pass takes twice as long as a forward pass:
///
/// ```text
/// stage 0 F0 F1 F2 F3 F4 F5 F6 .. .. .. B0 B0 F7 B1 B1 .. B2 B2 .. B3 B3 .. B4 B4 .. B5 B5 .. B6 B6 .. B7 B7
/// stage 1 .. F0 F1 F2 F3 F4 .. .. B0 B0 F5 B1 B1 F6 B2 B2 F7 B3 B3 .. B4 B4 .. B5 B5 .. B6 B6 .. B7 B7 .. ..
/// stage 2 .. .. F0 F1 F2 .. B0 B0 F3 B1 B1 F4 B2 B2 F5 B3 B3 F6 B4 B4 F7 B5 B5 .. B6 B6 .. B7 B7 .. .. .. ..
/// stage 3 .. .. .. F0 B0 B0 F1 B1 B1 F2 B2 B2 F3 B3 B3 F4 B4 B4 F5 B5 B5 F6 B6 B6 F7 B7 B7 .. .. .. .. .. ..
/// ```
///
/// In these formulas F and B are the times of the forward pass and the backward pass of one stage for one micro-batch.
///
/// - The step time with transfers of latency c is (M+P-1)(F+B) + 2(P-1)c, if 2c is at most F+B.
/// - The bubble is (P-1)/(M+P-1) of the total stage time if transfers take no time.
/// - Stage s has at most min(M, 2(P-s)-1) live micro-batches (forwarded, with the backward pass not yet done).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EagerOneFOneB;

impl Schedule for EagerOneFOneB {
    fn name(&self) -> &'static str {
        "eager-1f1b"
    }

    fn plan(&self, stages: usize, micro_batches: usize) -> Result<Plan, ScheduleError> {
        one_worker_a_stage(stages, micro_batches, |stage| {
            alternate(stage, micro_batches, 2 * (stages - stage - 1), Backwards::Whole)
        })
    }

    fn closed_form(&self, stages: usize, micro_batches: usize, cost: StageCost) -> Option<f64> {
        let hidden = 2.0 * cost.latency()? <= cost.forward + cost.backward;
        hidden.then(|| GPipe.closed_form(stages, micro_batches, cost)).flatten()
    }
}
