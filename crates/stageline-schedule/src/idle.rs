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

/// Each worker's idle time by cause.
///
/// Some causes are the same for all workers: what transfers add to the step, and what filling and draining the pipeline
/// add to the computes of the busiest worker. The latter is shared out between `fill` and `drain` as the worker idles
/// before its first backward and after its last forward when transfers take no time.
///
/// # Panics
/// If `costs` has fewer stages than the plan.
pub fn idle_by_cause(checked: &Checked, costs: &Costs) -> Vec<Idle> {
    let timeline = simulate(checked, costs);
    let untransferred = simulate(checked, &costs.without_latency());
    let slowest = timeline.optimizers().iter().copied().fold(0.0, f64::max);
    let transfer = (timeline.flush() - untransferred.flush()).max(0.0); // but for rounding, it is never less
    let computes: Vec<_> = untransferred.rows().iter().map(|row| row.iter().map(length).sum::<f64>()).collect();
    let busiest = computes.iter().copied().fold(0.0, f64::max);
    let pipeline = (untransferred.flush() - busiest).max(0.0);

    let of_worker = |(worker, computes): (usize, f64)| {
        let (before, after) = around_the_steady_phase(&untransferred, worker);
        let fill = if before > 0.0 { pipeline * before / (before + after) } else { 0.0 };
        let drain = (pipeline - fill).max(0.0);
        Idle { fill, drain, imbalance: busiest - computes, transfer, flush: slowest - timeline.optimizers()[worker] }
    };
    computes.iter().copied().enumerate().map(of_worker).collect()
}

/// How long a worker idles before its first backward, and, of the rest, after its last forward until the flush.
fn around_the_steady_phase(timeline: &Timeline, worker: usize) -> (f64, f64) {
    let row = &timeline.rows()[worker];
    let forward = |span: &Span| span.action.compute == Compute::Forward;
    let first_backward = row.iter().position(|span| !forward(span)).unwrap_or(row.len());
    let steady_end = row.iter().rposition(forward).map_or(0, |last| last + 1).max(first_backward + 1).min(row.len());
    let until = |end: usize| row[..end].iter().map(length).sum::<f64>();
    let before = row.get(first_backward).map_or_else(|| timeline.flush(), |span| span.start) - until(first_backward);
    let steady = row.get(steady_end - 1).map_or(0.0, |span| span.end);
    let after = timeline.flush() - steady - row[steady_end..].iter().map(length).sum::<f64>();
    (before.max(0.0), after.max(0.0))
}

fn length(span: &Span) -> f64 {
    span.end - span.start
}
