//! Why workers idle.

use crate::action::Compute;
use crate::check::Checked;
use crate::costs::Costs;
use crate::replay::Span;
use crate::simulate::{Timeline, simulate};

/// A worker's idle time in one step, by cause. Each is what would be gained on that worker if the cause were gone; they
/// add up to the step less what the worker computes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Idle {
    /// The pipeline was not yet full: the worker waited before its first backward.
    pub fill: f64,
    /// The pipeline ran empty: the worker waited for the last backwards, its own and others'.
    pub drain: f64,
    /// The worker has less to compute than the busiest one.
    pub imbalance: f64,
    /// The step is this much longer than with transfers that take no time.
    pub transfer: f64,
    /// The worker's optimizer step is this much shorter than the longest.
    pub flush: f64,
}

impl Idle {
    /// All causes together.
    pub fn total(&self) -> f64 {
        self.fill + self.drain + self.imbalance + self.transfer + self.flush
    }
}

impl Timeline {
    /// Each worker's idle time by cause, where this is the timeline of these costs.
    ///
    /// Some causes are the same for all workers: what transfers add to the step, and what filling and draining the
    /// pipeline add to the computes of the busiest worker. The latter is shared out between `fill` and `drain` as the
    /// worker idles before its first backward and after its last forward when transfers take no time.
    ///
    /// # Panics
    /// If `costs` has fewer stages than the plan.
    pub fn idle_by_cause(&self, checked: &Checked, costs: &Costs) -> Vec<Idle> {
        let free = costs.without_latency();
        if free == *costs {
            return idle(self, self);
        }
        idle(self, &simulate(checked, &free))
    }

    /// The same, against a timeline of the same plan in which transfers take no time: for those whose transfers are not
    /// latencies.
    pub fn idle_besides(&self, untransferred: &Self) -> Vec<Idle> {
        idle(self, untransferred)
    }
}

/// From the timeline, and the one in which transfers take no time.
fn idle(timeline: &Timeline, untransferred: &Timeline) -> Vec<Idle> {
    let slowest = timeline.optimizers().iter().copied().fold(0.0, f64::max);
    let flush = untransferred.flush();
    let transfer = (timeline.flush() - flush).max(0.0); // but for rounding, it is never less
    let computes: Vec<_> = untransferred.rows().iter().map(|row| row.iter().map(length).sum::<f64>()).collect();
    let busiest = computes.iter().copied().fold(0.0, f64::max);
    let pipeline = (flush - busiest).max(0.0);

    let of_worker = |(worker, computes): (usize, f64)| {
        let (before, after) = around_the_steady_phase(&untransferred.rows()[worker], flush);
        let fill = if before > 0.0 { pipeline * before / (before + after) } else { 0.0 };
        let drain = (pipeline - fill).max(0.0);
        Idle { fill, drain, imbalance: busiest - computes, transfer, flush: slowest - timeline.optimizers()[worker] }
    };
    computes.iter().copied().enumerate().map(of_worker).collect()
}

/// How long a worker idles before its first backward, and, of the rest, after its last forward until the flush.
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
