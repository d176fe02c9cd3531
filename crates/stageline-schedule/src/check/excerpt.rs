//! Excerpts of a plan around an invalid or blocked action, for error messages.

use std::fmt;

use crate::plan::{Action, Plan};

/// Number of actions that an excerpt of a plan shows on each side of the faulty action.
const REACH: usize = 4;
/// Maximum number of workers that an excerpt of a plan shows.
const WORKERS: usize = 8;

/// An excerpt of a plan for an error message. It has one line per worker: one action in brackets, and the actions next
/// to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excerpt {
    rows: Vec<Row>,
    /// Number of faulty workers that this excerpt of a plan omits, because it shows at most [`WORKERS`].
    left_out: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    worker: usize,
    actions: Vec<Action>,
    marked: usize,
    /// Whether the worker has `(earlier, later)` actions that this row of the excerpt leaves out.
    cut_off: (bool, bool),
}

impl Excerpt {
    /// Makes an excerpt of a plan for an error message. Each entry of `places` is `(worker, action)`: a worker's index,
    /// and an action's index in this worker's list. The excerpt shows that action in brackets, with the actions next to
    /// it.
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
