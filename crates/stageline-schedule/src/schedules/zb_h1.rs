//! The ZB-H1 schedule: weight gradients fill a part of 1F1B's bubble, with the memory of 1F1B.

use super::error::ScheduleError;
use super::rows::{Backwards, alternate, one_worker_a_stage};
use super::schedule::Schedule;
use crate::costs::StageCost;
use crate::plan::Plan;

/// The ZB-H1 schedule: 1F1B with split backward passes (Qi et al., 2023,
/// [arXiv:2401.10241](https://arxiv.org/abs/2401.10241)). Stage s runs the weight gradient of a micro-batch after the
/// input gradients of s further micro-batches. The delayed weight gradients fill the drain.
///
/// The plan for P = 4 stages and M = 8 micro-batches, if forward pass, input gradient and weight gradient take the same
/// time:
///
/// ```text
/// stage 0 F0 F1 F2 F3 .. .. .. I0 W0 F4 I1 W1 F5 I2 W2 F6 I3 W3 F7 I4 W4 I5 W5 I6 W6 I7 W7
/// stage 1 .. F0 F1 F2 .. .. I0 F3 I1 W0 F4 I2 W1 F5 I3 W2 F6 I4 W3 F7 I5 W4 I6 W5 I7 W6 W7
/// stage 2 .. .. F0 F1 .. I0 F2 I1 F3 I2 W0 F4 I3 W1 F5 I4 W2 F6 I5 W3 F7 I6 W4 I7 W5 W6 W7
/// stage 3 .. .. .. F0 I0 F1 I1 F2 I2 F3 I3 W0 F4 I4 W1 F5 I5 W2 F6 I6 W3 F7 I7 W4 W5 W6 W7
/// ```
///
/// In these formulas F, I and W are the times of the forward pass, the input gradient and the weight gradient of one
/// stage for one micro-batch.
///
/// - The step time with transfers that take no time is M(F+I+W) + (P-1)(F+I) - (min(M,P)-1) min(F,I,W).
/// - The step time with transfers of latency c is M(F+I+W) + (P-1) max(F+3c, I+2c, F+I-W+4c), if M > P and 2c is at
///   most each of F, I and W.
/// - The bubble by span ([`span_bubble`](crate::Timeline::span_bubble)) is (S - C) / S. S is the longest span of any
///   worker, from the start of its first forward or backward pass to the end of its last one. C is the compute time of
///   the busiest worker. Neither includes the optimizer step. If F = I = W, M is at least P and transfers take no time,
///   the bubble by span is (P-1)/(3M+P-1). The idle time is then a third of 1F1B's.
/// - Every stage has at most min(M, P) live micro-batches (between the forward pass and the end of the weight
///   gradient).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZbH1;

impl Schedule for ZbH1 {
    fn name(&self) -> &'static str {
        "zb-h1"
    }

    fn plan(&self, stages: usize, micro_batches: usize) -> Result<Plan, ScheduleError> {
        one_worker_a_stage(stages, micro_batches, |stage| {
            alternate(stage, micro_batches, stages - stage - 1, Backwards::Split { delay: stage })
        })
    }

    fn closed_form(&self, stages: usize, micro_batches: usize, cost: StageCost) -> Option<f64> {
        let StageCost { forward: f, input_gradient: i, weight_gradient: w, .. } = cost;
        let (warm_up, latency) = (stages.checked_sub(1)? as f64, cost.latency()?);
        let saved = micro_batches.min(stages).checked_sub(1)? as f64 * f.min(i).min(w);
        let work = micro_batches as f64 * (f + i + w);
        if latency == 0.0 {
            return Some(work + warm_up * (f + i) - saved);
        }
        let each = (f + 3.0 * latency).max(i + 2.0 * latency).max(f + i - w + 4.0 * latency);
        (micro_batches > stages && 2.0 * latency <= f.min(i).min(w)).then_some(work + warm_up * each)
    }
}
