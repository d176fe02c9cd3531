//! The GPipe schedule: all forward passes of a step, then all backward passes.

use super::error::ScheduleError;
use super::rows::one_worker_a_stage;
use super::schedule::Schedule;
use crate::costs::StageCost;
use crate::plan::{Action, Plan};

/// The GPipe schedule, which runs all forward passes, then all backward passes (Huang et al., 2019,
/// [arXiv:1811.06965](https://arxiv.org/abs/1811.06965)).
///
/// Backward passes run in ascending micro-batch order, so that each gradient is added to the sum as soon as it is
/// ready.
///
/// The plan for P = 4 stages and M = 8 micro-batches, if a backward pass takes twice as long as a forward pass:
///
/// ```text
/// stage 0 F0 F1 F2 F3 F4 F5 F6 F7 .. .. .. .. .. .. .. .. .. B0 B0 B1 B1 B2 B2 B3 B3 B4 B4 B5 B5 B6 B6 B7 B7
/// stage 1 .. F0 F1 F2 F3 F4 F5 F6 F7 .. .. .. .. .. .. B0 B0 B1 B1 B2 B2 B3 B3 B4 B4 B5 B5 B6 B6 B7 B7 .. ..
/// stage 2 .. .. F0 F1 F2 F3 F4 F5 F6 F7 .. .. .. B0 B0 B1 B1 B2 B2 B3 B3 B4 B4 B5 B5 B6 B6 B7 B7 .. .. .. ..
/// stage 3 .. .. .. F0 F1 F2 F3 F4 F5 F6 F7 B0 B0 B1 B1 B2 B2 B3 B3 B4 B4 B5 B5 B6 B6 B7 B7 .. .. .. .. .. ..
/// ```
///
/// In these formulas F and B are the times of the forward pass and the backward pass of one stage for one micro-batch.
///
/// - The step time with transfers of latency c is (M+P-1)(F+B) + 2(P-1)c.
/// - The bubble is (P-1)/(M+P-1) of the total stage time if transfers take no time.
/// - Every stage has at most M live micro-batches (forwarded, with the backward pass not yet done).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GPipe;

impl Schedule for GPipe {
    fn name(&self) -> &'static str {
        "gpipe"
    }

    fn plan(&self, stages: usize, micro_batches: usize) -> Result<Plan, ScheduleError> {
        one_worker_a_stage(stages, micro_batches, |stage| {
            let forwards = (0..micro_batches).map(|micro_batch| Action::forward(stage, micro_batch));
            let backwards = (0..micro_batches).map(|micro_batch| Action::backward(stage, micro_batch));
            forwards.chain(backwards).collect()
        })
    }

    fn closed_form(&self, stages: usize, micro_batches: usize, cost: StageCost) -> Option<f64> {
        let (warm_up, later) = (stages.checked_sub(1)?, micro_batches.checked_sub(1)?);
        let transfers = warm_up as f64 * (cost.send_activation + cost.send_gradient);
        Some((later as f64 + stages as f64) * (cost.forward + cost.backward) + transfers)
    }
}
