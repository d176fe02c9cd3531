//! The part of a plan around what is wrong with it.

use std::fmt;

use crate::action::Action;
use crate::plan::Plan;

/// How many actions are shown before and after the marked one.
const REACH: usize = 4;
/// How many workers are shown at the most.
const WORKERS: usize = 8;

/// Some workers' lists around one action each, for error messages: a line a worker, the action in brackets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excerpt {
    rows: Vec<Row>,
    /// How many more workers there are to show.
    left_out: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    worker: usize,
    actions: Vec<Action>,
    marked: usize,
    /// Whether the worker's list goes on before, and after.
    goes_on: (bool, bool),
}

impl Excerpt {
    /// The plan around the `at`-th action of each of some workers.
    pub(crate) fn around(plan: &Plan, places: &[(usize, usize)]) -> Self {
        let row = |&(worker, at): &(usize, usize)| {
            let row = &plan.rows()[worker];
            let (start, end) = (at.saturating_sub(REACH), row.len().min(at + REACH + 1));
            Row { worker, actions: row[start..end].to_vec(), marked: at - start, goes_on: (start > 0, end < row.len()) }
        };
        let rows = places.iter().take(WORKERS).map(row).collect();
        Self { rows, left_out: places.len().saturating_sub(WORKERS) }
    }
}

impl fmt::Display for Excerpt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Row { worker, actions, marked, goes_on: (before, after) } in &self.rows {
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
