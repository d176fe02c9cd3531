//! Draws a timeline as plain text, with one line per worker.

use super::timeline::Timeline;
use crate::check::Span;
use crate::plan::Action;

impl Timeline {
    /// Draws the forward and backward passes of the timeline as text: one line per worker, one column per `slot` units
    /// of time, idle columns as dots.
    ///
    /// If every worker runs only the stage with its own index, only the start of the line names the stage.
    ///
    /// # Panics
    /// Panics if `slot`, the time per column, is not positive.
    pub fn grid(&self, slot: f64) -> String {
        assert!(slot > 0.0, "a column of the grid takes {slot} units of time; give more than 0");
        let runs_its_stage = |(worker, row): (usize, &Vec<Span>)| row.iter().all(|span| span.action.stage == worker);
        let short = self.rows().iter().enumerate().all(runs_its_stage);
        let text = |Action { stage, compute, micro_batch }: Action| match short {
            true => format!("{}{micro_batch}", compute.letter()),
            false => format!("{stage}{}{micro_batch}", compute.letter()),
        };
        let width = self.rows().iter().flatten().map(|span| text(span.action).len()).max().unwrap_or(2);
        let columns = (self.flush() / slot).round() as usize;
        let mut picture = String::new();
        for (worker, row) in self.rows().iter().enumerate() {
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

#[cfg(test)]
mod tests {
    use crate::{Costs, Plan, check, simulate};

    #[test]
    fn the_grid_names_stages_if_a_worker_has_several() {
        let plan = Plan::from_csv("0F0,2F0,2B0,0B0\n1F0,3F0,3B0,1B0\n").unwrap();
        let timeline = simulate(&check(plan, 1).unwrap(), &Costs::uniform(4, 1.0, 1.0));
        let picture = "\
worker 0 0F0 ... 2F0 ... ... 2B0 ... 0B0
worker 1 ... 1F0 ... 3F0 3B0 ... 1B0 ...
";
        assert_eq!(timeline.grid(1.0), picture);
    }

    #[test]
    fn the_grid_names_stages_if_workers_run_them_in_another_order() {
        let plan = Plan::from_csv("1F0,1B0\n0F0,0B0\n").unwrap();
        let timeline = simulate(&check(plan, 1).unwrap(), &Costs::uniform(2, 1.0, 1.0));
        assert_eq!(timeline.grid(1.0), "worker 0 ... 1F0 1B0 ...\nworker 1 0F0 ... ... 0B0\n");
    }
}
