//! The timeline of one step: the start and end of every forward and backward pass, the step and the bubble.

use crate::check::{Checked, Observer, Span, replay};
use crate::costs::Costs;

/// The timeline of one simulated step: when each worker runs its forward passes, backward passes and optimizer steps.
/// The step time, the bubble and pictures follow from it. All times are in the time unit of the simulation's costs,
/// such as milliseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Timeline {
    rows: Vec<Vec<Span>>,
    optimizers: Vec<f64>,
}

impl Timeline {
    /// Returns one list for each worker of a simulated step: its forward and backward passes in order, each with its
    /// start and end.
    pub fn rows(&self) -> &[Vec<Span>] {
        &self.rows
    }

    /// Returns the time of the flush, at which the last worker ends its last forward or backward pass. The time counts
    /// from the start of the simulated step, in the costs' time unit (such as ms).
    pub fn flush(&self) -> f64 {
        self.rows.iter().flatten().map(|span| span.end).fold(0.0, f64::max)
    }

    /// Returns the simulated step time, in the costs' time unit (such as ms). It is the time until all workers have
    /// ended their forward and backward passes, plus the longest optimizer time of any worker.
    pub fn step(&self) -> f64 {
        self.flush() + self.optimizers.iter().copied().fold(0.0, f64::max)
    }

    /// Returns how long each worker's optimizer steps take in a simulated step, summed over the worker's stages, in the
    /// costs' time unit (such as ms). Optimizer steps begin at the flush, when all workers have finished their forward
    /// and backward passes.
    pub fn optimizers(&self) -> &[f64] {
        &self.optimizers
    }

    /// Returns each worker's compute time in the simulated step, including optimizer steps, in the costs' time unit
    /// (such as ms).
    pub fn busy(&self) -> Vec<f64> {
        let computes = self.rows.iter().map(|row| busy(row));
        computes.zip(&self.optimizers).map(|(computes, optimizer)| computes + optimizer).collect()
    }

    /// Returns this timeline with a longer last action on each worker: its end is later by the worker's entry in
    /// `longer`, in the costs' time unit (such as ms). The extra time is work for which no other worker waits, such as
    /// gradient norms, so it delays no other action.
    #[must_use]
    pub fn with_longer_ends(mut self, longer: &[f64]) -> Self {
        for (row, longer) in self.rows.iter_mut().zip(longer) {
            if let Some(last) = row.last_mut() {
                last.end += longer;
            }
        }
        self
    }

    /// Returns the bubble of a simulated step: the idle fraction of the total stage time (workers x step), from 0 to 1.
    pub fn bubble(&self) -> f64 {
        let total = self.rows.len() as f64 * self.step();
        let busy: f64 = self.busy().iter().sum();
        if total == 0.0 { 0.0 } else { (total - busy) / total }
    }

    /// Returns the longest span of any worker in a simulated step, in the costs' time unit (such as ms). The span of a
    /// worker begins with its first forward or backward pass and ends with its last one. It does not include the
    /// optimizer step.
    ///
    /// The result is the time from one step to the next if no worker waits for others before it begins the next step.
    pub fn span(&self) -> f64 {
        let span =
            |row: &Vec<Span>| row.last().map_or(0.0, |last| last.end) - row.first().map_or(0.0, |first| first.start);
        self.rows.iter().map(span).fold(0.0, f64::max)
    }

    /// Returns the bubble by span, from 0 to 1: (S - C) / S. S is the longest [`span`](Self::span) of any worker, from
    /// the start of its first forward or backward pass to the end of its last one. C is the compute time of the busiest
    /// worker. Neither includes the optimizer step. The definition comes from the Zero Bubble paper (Qi et al., 2023,
    /// [arXiv:2401.10241](https://arxiv.org/abs/2401.10241)).
    pub fn span_bubble(&self) -> f64 {
        let (span, busy) = (self.span(), self.rows.iter().map(|row| busy(row)).fold(0.0, f64::max));
        if span == 0.0 { 0.0 } else { (span - busy) / span }
    }
}

/// Simulates one step of a checked plan, and returns its timeline. `costs` has the times of the forward passes,
/// backward passes, transfers and optimizer steps.
///
/// The simulation takes time linear in the number of actions. With serialised transfers (one queue of transfers per
/// worker), it takes about log(P) times longer for P workers.
///
/// # Panics
/// Panics if `costs` has fewer stages than the plan.
pub fn simulate(checked: &Checked, costs: &Costs) -> Timeline {
    let plan = checked.plan();
    let placement = plan.placement();
    let mut timeline = Timeline {
        rows: plan.rows().iter().map(|row| Vec::with_capacity(row.len())).collect(),
        optimizers: vec![0.0; plan.workers()],
    };
    for stage in 0..plan.stages() {
        timeline.optimizers[placement.worker(stage)] += costs.optimizer(stage);
    }
    replay(plan, checked.capacity(), costs, &mut timeline).expect("a checked plan completes at any costs");
    timeline
}

impl Observer for Timeline {
    fn computed(&mut self, worker: usize, span: Span) {
        self.rows[worker].push(span);
    }
}

fn busy(row: &[Span]) -> f64 {
    row.iter().map(|span| span.end - span.start).sum()
}
