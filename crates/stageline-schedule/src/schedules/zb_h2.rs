//! The ZB-H2 schedule: no bubble except fill and drain, with twice the memory of 1F1B.

use super::error::ScheduleError;
use super::rows::{Backwards, alternate, one_worker_a_stage};
use super::schedule::Schedule;
use crate::costs::StageCost;
use crate::plan::Plan;

/// The ZB-H2 schedule: ZB-H1 with twice the warm-up and twice the delay of weight gradients (Qi et al., 2023,
/// [arXiv:2401.10241](https://arxiv.org/abs/2401.10241)). The warm-up of stage s of P has 2(P-s-1) forward passes. The
/// stage runs the weight gradient of a micro-batch after the input gradients of 2s further micro-batches. If forward
/// pass, input gradient and weight gradient take the same time, no stage idles between its first and its last action.
///
/// The plan for P = 4 stages and M = 8 micro-batches, if forward pass, input gradient and weight gradient take the same
/// time:
///
/// ```text
/// stage 0 F0 F1 F2 F3 F4 F5 F6 I0 W0 F7 I1 W1 I2 W2 I3 W3 I4 W4 I5 W5 I6 W6 I7 W7 .. .. ..
/// stage 1 .. F0 F1 F2 F3 F4 I0 F5 I1 F6 I2 W0 F7 I3 W1 I4 W2 I5 W3 I6 W4 I7 W5 W6 W7 .. ..
/// stage 2 .. .. F0 F1 F2 I0 F3 I1 F4 I2 F5 I3 F6 I4 W0 F7 I5 W1 I6 W2 I7 W3 W4 W5 W6 W7 ..
/// stage 3 .. .. .. F0 I0 F1 I1 F2 I2 F3 I3 F4 I4 F5 I5 F6 I6 W0 F7 I7 W1 W2 W3 W4 W5 W6 W7
/// ```
///
/// In these formulas F, I and W are the times of the forward pass, the input gradient and the weight gradient of one
/// stage for one micro-batch.
///
/// - The step time with transfers of latency c is M(F+I+W) + (P-1) max(F+c, I-F+2c, F+I-2W+2c), if M is at least 2P-1
///   and 2c is at most each of F, I and W.
/// - The bubble by span ([`span_bubble`](crate::Timeline::span_bubble)) is (S - C) / S. S is the longest span of any
///   worker, from the start of its first forward or backward pass to the end of its last one. C is the compute time of
///   the busiest worker. Neither includes the optimizer step. If F = I = W, M is at least 2P-1 and transfers take no
///   time, the bubble by span is 0.
/// - Every stage has at most min(M, 2P-1) live micro-batches (between the forward pass and the end of the weight
///   gradient).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZbH2;

impl Schedule for ZbH2 {
    fn name(&self) -> &'static str {
        "zb-h2"
    }

    fn plan(&self, stages: usize, micro_batches: usize) -> Result<Plan, ScheduleError> {
        one_worker_a_stage(stages, micro_batches, |stage| {
            alternate(stage, micro_batches, 2 * (stages - stage - 1), Backwards::Split { delay: 2 * stage })
        })
    }

    fn closed_form(&self, stages: usize, micro_batches: usize, cost: StageCost) -> Option<f64> {
        let StageCost { forward: f, input_gradient: i, weight_gradient: w, .. } = cost;
        let (warm_up, latency) = (stages.checked_sub(1)?, cost.latency()?);
        let each = (f + latency).max(i - f + 2.0 * latency).max(f + i - 2.0 * w + 2.0 * latency);
        let known = micro_batches.checked_sub(1)? / 2 >= warm_up && 2.0 * latency <= f.min(i).min(w);
        known.then_some(micro_batches as f64 * (f + i + w) + warm_up as f64 * each)
    }
}
