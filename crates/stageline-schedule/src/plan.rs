//! Each worker's list of actions.

use std::fmt;

use crate::action::{Action, Compute, ParseActionError};

/// What every worker does in one step, in order.
///
/// A row is one worker (one device); a worker may own several stages. A plan is only data: [`check`](crate::check())
/// says whether it can run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    rows: Vec<Vec<Action>>,
    stages: usize,
    micro_batches: usize,
}

impl Plan {
    /// A plan from each worker's list. Stages and micro-batches are counted from the actions.
    pub fn new(rows: Vec<Vec<Action>>) -> Self {
        let count = |number: fn(&Action) -> usize| {
            rows.iter().flatten().map(|action| number(action).saturating_add(1)).max().unwrap_or(0)
        };
        let stages = count(|action| action.stage);
        let micro_batches = count(|action| action.micro_batch);
        Self { rows, stages, micro_batches }
    }

    /// Each worker's list of actions.
    pub fn rows(&self) -> &[Vec<Action>] {
        &self.rows
    }

    /// The number of workers.
    pub fn workers(&self) -> usize {
        self.rows.len()
    }

    /// The number of stages, over all workers.
    pub fn stages(&self) -> usize {
        self.stages
    }

    /// The number of micro-batches, M.
    pub fn micro_batches(&self) -> usize {
        self.micro_batches
    }

    /// The forwards of this plan for its first `micro_batches` micro-batches: a plan for evaluation.
    pub fn forward_only(&self, micro_batches: usize) -> Self {
        let wanted = |action: &&Action| action.compute == Compute::Forward && action.micro_batch < micro_batches;
        let rows = self.rows.iter();
        Self::new(rows.map(|row| row.iter().filter(wanted).copied().collect()).collect())
    }

    /// Comma-separated actions, one row a worker, as PyTorch's `torch.distributed.pipelining` writes them.
    pub fn to_csv(&self) -> String {
        self.rows.iter().map(|row| row.iter().map(Action::to_string).collect::<Vec<_>>().join(",") + "\n").collect()
    }

    /// Reads what [`to_csv`](Self::to_csv) or PyTorch wrote. Empty cells, PyTorch's idle slots, are skipped.
    ///
    /// # Errors
    /// The first cell that is not an action, with its row and column from 1.
    pub fn from_csv(csv: &str) -> Result<Self, ParsePlanError> {
        let cell = |row: usize, column: usize, text: &str| {
            text.trim().parse().map_err(|cause| ParsePlanError { row: row + 1, column: column + 1, cause })
        };
        let row = |(row, line): (usize, &str)| {
            line.split(',')
                .enumerate()
                .filter(|(_, text)| !text.trim().is_empty())
                .map(|(column, text)| cell(row, column, text))
                .collect()
        };
        Ok(Self::new(csv.lines().enumerate().map(row).collect::<Result<_, _>>()?))
    }
}

/// The rows in text, one line a worker.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (worker, row) in self.rows.iter().enumerate() {
            let actions: Vec<_> = row.iter().map(Action::to_string).collect();
            writeln!(f, "worker {worker}: {}", actions.join(" "))?;
        }
        Ok(())
    }
}

/// A cell of a CSV plan that is not an action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParsePlanError {
    /// The row, from 1.
    pub row: usize,
    /// The column, from 1.
    pub column: usize,
    /// What is wrong with the cell.
    pub cause: ParseActionError,
}

impl fmt::Display for ParsePlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "row {}, column {}: {}", self.row, self.column, self.cause)
    }
}

impl std::error::Error for ParsePlanError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.cause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{OneFOneB, Schedule};
    use proptest::prelude::*;

    #[test]
    fn csv_round_trips() {
        let plan = OneFOneB.plan(3, 5).unwrap();
        assert_eq!(Plan::from_csv(&plan.to_csv()), Ok(plan));
    }

    #[test]
    fn csv_skips_idle_slots() {
        let plan = Plan::from_csv("0F0,,0B0\n,1F0, 1B0 ,\n").unwrap();
        assert_eq!(plan.to_csv(), "0F0,0B0\n1F0,1B0\n");
    }

    #[test]
    fn damaged_csv_is_placed() {
        let error = Plan::from_csv("0F0,0B0\n1F0,1Q0\n").unwrap_err();
        assert_eq!((error.row, error.column), (2, 2));
        assert!(error.to_string().contains("`1Q0`"), "{error}");
    }

    #[test]
    fn forward_only_keeps_the_order_of_forwards() {
        let plan = OneFOneB.plan(2, 4).unwrap().forward_only(3);
        assert_eq!(plan.to_csv(), "0F0,0F1,0F2\n1F0,1F1,1F2\n");
    }

    proptest! {
        #[test]
        fn no_csv_panics(csv in "[0-9FBIW,\\n ]{0,80}") {
            let _ = Plan::from_csv(&csv);
        }
    }
}
