//! The idle time of each worker in a simulated step, attributed to causes: fill, drain, imbalance, transfers and the
//! flush.

use super::timeline::{Timeline, simulate};
use crate::check::{Checked, Span};
use crate::costs::Costs;
use crate::plan::Compute;

/// A worker's idle time in one simulated step by cause, in the simulation's time unit (such as ms).
///
/// A single wait often has several causes. So the causes are removed one after the other: first transfers, then filling
/// and draining, then unequal compute times, then unequal optimizer steps. Each field is the time that the removal of
/// its cause saves, so no time counts twice. The sum of the fields is the length of the step minus the worker's compute
/// time, optimizer steps included.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Idle {
    /// The worker's idle time while the pipeline fills, before the worker's first backward pass, in the simulation's
    /// time unit (such as ms).
    pub fill: f64,
    /// The worker's idle time while the pipeline drains (the workers run their last backward passes), in the
    /// simulation's time unit (such as ms).
    pub drain: f64,
    /// The worker's idle time because another worker's forward and backward passes take longer in total, in the
    /// simulation's time unit (such as ms).
    pub imbalance: f64,
    /// The worker's idle time because of transfers between stages: the time that they add to the step, in the
    /// simulation's time unit (such as ms).
    pub transfer: f64,
    /// The worker's idle time at the end of a step, while other workers still run their optimizer steps, in the
    /// simulation's time unit (such as ms).
    pub flush: f64,
}

impl Idle {
    /// Returns a worker's total idle time in a simulated step: the sum over all causes, in the simulation's time unit
    /// (such as ms).
    pub fn total(&self) -> f64 {
        self.fill + self.drain + self.imbalance + self.transfer + self.flush
    }
}

impl Timeline {
    /// Returns each worker's idle time by cause. This timeline must be the result of simulating the plan `checked` at
    /// `costs`.
    ///
    /// The field `transfer` is the same for all workers: the time that transfers add to the step. The sum of `fill` and
    /// `drain` is the same for all workers, too. This sum is the time that filling and draining the pipeline add to the
    /// compute time of the busiest worker. For each worker, it is divided in proportion to two waits, simulated without
    /// transfer times: the wait before the worker's first backward pass (`fill`), and the wait after its last forward
    /// pass (`drain`).
    ///
    /// # Panics
    /// Panics if `costs` has fewer stages than the plan.
    pub fn idle_by_cause(&self, checked: &Checked, costs: &Costs) -> Vec<Idle> {
        let free = costs.without_latency();
        if free == *costs {
            return idle(self, self);
        }
        idle(self, &simulate(checked, &free))
    }

    /// Returns each worker's idle time by cause. `untransferred` is a timeline of the same plan in which transfers take
    /// no time.
    ///
    /// Use this method instead of [`idle_by_cause`](Self::idle_by_cause) if transfers were simulated as parts of
    /// forward and backward passes. In this case, the costs do not show the times of transfers.
    pub fn idle_besides(&self, untransferred: &Self) -> Vec<Idle> {
        idle(self, untransferred)
    }
}

/// Returns each worker's idle time by cause. Both timelines are of the same plan; in `untransferred`, transfers take no
/// time.
fn idle(timeline: &Timeline, untransferred: &Timeline) -> Vec<Idle> {
    let slowest = timeline.optimizers().iter().copied().fold(0.0, f64::max);
    let flush = untransferred.flush();
    let transfer = (timeline.flush() - flush).max(0.0); // Only rounding can make the difference negative.
    let computes: Vec<_> = untransferred.rows().iter().map(|row| row.iter().map(length).sum::<f64>()).collect();
    let busiest = computes.iter().copied().fold(0.0, f64::max);
    let pipeline = (flush - busiest).max(0.0);

    let by_cause = |(worker, computes): (usize, f64)| {
        let (before, after) = around_the_steady_phase(&untransferred.rows()[worker], flush);
        let fill = if before > 0.0 { pipeline * before / (before + after) } else { 0.0 };
        let drain = (pipeline - fill).max(0.0);
        Idle { fill, drain, imbalance: busiest - computes, transfer, flush: slowest - timeline.optimizers()[worker] }
    };
    computes.iter().copied().enumerate().map(by_cause).collect()
}

/// Returns two idle times of a worker, in the simulation's time unit (such as ms). The first is the idle time before
/// its first backward pass. The second is the idle time between its last forward pass and the flush, which begins when
/// all workers have ended their forward and backward passes.
fn around_the_steady_phase(row: &[Span], flush: f64) -> (f64, f64) {
    let forward = |span: &Span| span.action.compute == Compute::Forward;
    let first_backward = row.iter().position(|span| !forward(span)).unwrap_or(row.len());
    let last_forward = row.iter().rposition(forward).unwrap_or(0);
    let (fill, rest) = row.split_at(first_backward);
    let drain = &row[last_forward.max(first_backward).saturating_add(1).min(row.len())..];
    let computes = |row: &[Span]| row.iter().map(length).sum::<f64>();
    let before = rest.first().map_or(flush, |span| span.start) - computes(fill);
    let steady_end = row[..row.len() - drain.len()].last().map_or(0.0, |span| span.end);
    (before.max(0.0), (flush - steady_end - computes(drain)).max(0.0))
}

fn length(span: &Span) -> f64 {
    span.end - span.start
}
