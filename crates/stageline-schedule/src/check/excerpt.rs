//! Excerpts of a plan around a fault, for error messages.

use std::fmt;

use crate::plan::{Action, Plan};

/// The number of actions (forwards and backwards) that an excerpt of a plan in an error message shows on each side of
/// the marked action.
const REACH: usize = 4;
/// The largest number of workers that an excerpt of a plan in an error message shows.
const WORKERS: usize = 8;

/// A part of a plan for an error message: one line per worker, with one action in brackets and its neighbours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excerpt {
    rows: Vec<Row>,
    /// The number of workers that an excerpt of a plan leaves out, because an error message shows only a few workers.
    left_out: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    worker: usize,
    actions: Vec<Action>,
    marked: usize,
    /// Two flags for one worker's line in an excerpt of a plan: whether the line leaves out earlier actions of the
    /// worker, and whether it leaves out later ones.
    cut_off: (bool, bool),
}

impl Excerpt {
    /// Makes an excerpt of a plan for an error message: one marked action of each listed worker, with the actions next
    /// to it. Each entry of `places` has the number of a worker, and the index of the marked action in that worker's
    /// list of actions.
    pub(crate) fn around(plan: &Plan, places: &[(usize, usize)]) -> Self {
        let row = |&(worker, at): &(usize, usize)| {
            let row = &plan.rows()[worker];
            let (start, end) = (at.saturating_sub(REACH), row.len().min(at + REACH + 1));
            Row { worker, actions: row[start..end].to_vec(), marked: at - start, cut_off: (start > 0, end < row.len()) }
        };
        let rows = places.iter().take(WORKERS).map(row).collect();
        Self { rows, left_out: places.len().saturating_sub(WORKERS) }
    }
}

impl fmt::Display for Excerpt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Row { worker, actions, marked, cut_off: (before, after) } in &self.rows {
            write!(f, "\n  worker {worker}:{}", if *before { " ..." } else { "" })?;
            for (at, action) in actions.iter().enumerate() {
                if at == *marked { write!(f, " [{action}]")? } else { write!(f, " {action}")? }
            }
            f.write_str(if *after { " ..." } else { "" })?;
        }
        if self.left_out > 0 {
            write!(f, "\n  and {} more workers", self.left_out)?;
        }
        Ok(())
    }
}
