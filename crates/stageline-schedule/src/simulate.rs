//! A plan and its costs become a timeline.

use crate::action::Action;
use crate::check::Checked;
use crate::costs::Costs;
use crate::replay::{Observer, Span, replay};

/// When everything happens in one step.
#[derive(Clone, Debug, PartialEq)]
pub struct Timeline {
    rows: Vec<Vec<Span>>,
    optimizers: Vec<f64>,
}

impl Timeline {
    /// Each worker's computes, in order.
    pub fn rows(&self) -> &[Vec<Span>] {
        &self.rows
    }

    /// The flush: the end of the last compute of all.
    pub fn flush(&self) -> f64 {
        self.rows.iter().flatten().map(|span| span.end).fold(0.0, f64::max)
    }

    /// The length of the step: the flush, and then the longest optimizer step.
    pub fn step(&self) -> f64 {
        self.flush() + self.optimizers.iter().copied().fold(0.0, f64::max)
    }

    /// Each worker's optimizer steps, those of its stages added up. They begin at the flush.
    pub fn optimizers(&self) -> &[f64] {
        &self.optimizers
    }

    /// How long each worker computes, its optimizer step included.
    pub fn busy(&self) -> Vec<f64> {
        let computes = self.rows.iter().map(|row| busy(row));
        computes.zip(&self.optimizers).map(|(computes, optimizer)| computes + optimizer).collect()
    }

    /// The bubble: the share of the total stage time (workers x step) in which nothing is computed.
    pub fn bubble(&self) -> f64 {
        let total = self.rows.len() as f64 * self.step();
        let busy: f64 = self.busy().iter().sum();
        if total == 0.0 { 0.0 } else { (total - busy) / total }
    }

    /// The longest span of a worker: from the start of its first compute to the end of its last.
    ///
    /// Steps of workers that need not wait for each other at the flush follow at this distance.
    pub fn span(&self) -> f64 {
        let span =
            |row: &Vec<Span>| row.last().map_or(0.0, |last| last.end) - row.first().map_or(0.0, |first| first.start);
        self.rows.iter().map(span).fold(0.0, f64::max)
    }

    /// The bubble by span, as the Zero Bubble paper defines it: the share of the longest span in which the busiest
    /// worker does not compute (Qi et al., 2023, [arXiv:2401.10241](https://arxiv.org/abs/2401.10241)).
    pub fn span_bubble(&self) -> f64 {
        let (span, busy) = (self.span(), self.rows.iter().map(|row| busy(row)).fold(0.0, f64::max));
        if span == 0.0 { 0.0 } else { (span - busy) / span }
    }

    /// A picture for people: a line a worker, a column every `slot` units of time; idle is `..`.
    ///
    /// Where every worker has one stage, the stage is said once, at the start of its line.
    ///
    /// # Panics
    /// If `slot` is not positive.
    pub fn grid(&self, slot: f64) -> String {
        assert!(slot > 0.0, "a column of the grid takes {slot} units of time; give more than 0");
        let one_stage = |row: &Vec<Span>| row.iter().all(|span| span.action.stage == row[0].action.stage);
        let short = self.rows.iter().all(one_stage);
        let text = |Action { stage, compute, micro_batch }: Action| match short {
            true => format!("{}{micro_batch}", compute.letter()),
            false => format!("{stage}{}{micro_batch}", compute.letter()),
        };
        let width = self.rows.iter().flatten().map(|span| text(span.action).len()).max().unwrap_or(2);
        let columns = (self.flush() / slot).round() as usize;
        let mut picture = String::new();
        for (worker, row) in self.rows.iter().enumerate() {
            picture += if short { "stage" } else { "worker" };
            picture += &format!(" {worker}");
            let mut spans = row.iter().peekable();
            for column in 0..columns {
                let middle = (column as f64 + 0.5) * slot;
                while spans.next_if(|span| span.end <= middle).is_some() {}
                let running = spans.peek().filter(|span| span.start <= middle);
                let cell = running.map_or_else(|| ".".repeat(width), |span| text(span.action));
                picture += &format!(" {cell:<width$}");
            }
            picture.truncate(picture.trim_end().len());
            picture.push('\n');
        }
        picture
    }
}

/// Runs a plan and gives its timeline, in time linear in its actions. (Where transfers are serialised, a factor of the
/// logarithm of the number of workers comes to it.)
///
/// # Panics
/// If `costs` has fewer stages than the plan.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::check;
    use crate::plan::Plan;

    #[test]
    fn the_grid_names_stages_where_a_worker_has_several() {
        let plan = Plan::from_csv("0F0,2F0,2B0,0B0\n1F0,3F0,3B0,1B0\n").unwrap();
        let timeline = simulate(&check(plan, 1).unwrap(), &Costs::uniform(4, 1.0, 1.0));
        let picture = "\
worker 0 0F0 ... 2F0 ... ... 2B0 ... 0B0
worker 1 ... 1F0 ... 3F0 3B0 ... 1B0 ...
";
        assert_eq!(timeline.grid(1.0), picture);
    }
}
