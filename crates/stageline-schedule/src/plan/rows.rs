//! The plan of a pipeline (each worker's list of actions), and plans derived from it, such as one with forward passes
//! only.

use std::fmt;

use super::action::{Action, Compute};

/// A plan for a pipeline: each worker's actions in one training step, in execution order.
///
/// A row of the plan is one worker's (one device's) list of actions. A worker may have several stages. A plan is only
/// data: [`check`](crate::check()) decides whether it can run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    rows: Vec<Vec<Action>>,
    stages: usize,
    micro_batches: usize,
}

impl Plan {
    /// Makes a plan from each worker's list of actions. The number of stages is the largest stage index in the lists,
    /// plus 1. The number of micro-batches is the largest micro-batch index, plus 1.
    pub fn new(rows: Vec<Vec<Action>>) -> Self {
        let count = |number: fn(&Action) -> usize| {
            rows.iter().flatten().map(|action| number(action).saturating_add(1)).max().unwrap_or(0)
        };
        let stages = count(|action| action.stage);
        let micro_batches = count(|action| action.micro_batch);
        Self { rows, stages, micro_batches }
    }

    /// Returns each worker's list of actions (forward and backward passes) in a step.
    pub fn rows(&self) -> &[Vec<Action>] {
        &self.rows
    }

    /// Returns the number of workers in the plan.
    pub fn workers(&self) -> usize {
        self.rows.len()
    }

    /// Returns the number of stages in the plan, over all workers.
    pub fn stages(&self) -> usize {
        self.stages
    }

    /// Returns the number of micro-batches (M) in a step of the plan.
    pub fn micro_batches(&self) -> usize {
        self.micro_batches
    }

    /// Returns a plan for evaluation: the forward passes of the first `micro_batches` micro-batches of this plan, in
    /// the same order.
    pub fn forward_only(&self, micro_batches: usize) -> Self {
        let forwards =
            |row: &Vec<Action>| row.iter().filter(|action| action.compute == Compute::Forward).copied().collect();
        Self::new(self.first(micro_batches).rows.iter().map(forwards).collect())
    }

    /// Returns a plan with only the actions on the first `micro_batches` micro-batches of this plan, in the same order.
    pub fn first(&self, micro_batches: usize) -> Self {
        let wanted = |action: &&Action| action.micro_batch < micro_batches;
        Self::new(self.rows.iter().map(|row| row.iter().filter(wanted).copied().collect()).collect())
    }

    /// Returns a plan for two training steps. Each worker runs its list of actions twice. If a step has M
    /// micro-batches, those of the second step have the indices M to 2M-1.
    pub(crate) fn twice(&self) -> Self {
        let again = |action: &Action| Action { micro_batch: self.micro_batches + action.micro_batch, ..*action };
        let twice = |row: &Vec<Action>| row.iter().copied().chain(row.iter().map(again)).collect();
        Self::new(self.rows.iter().map(twice).collect())
    }

    /// Returns a plan in which `micro_batches` micro-batches run one after another: each passes all stages forward and
    /// backward before the next one begins. Every stage stays on its worker. A stage's backward passes are split if
    /// this plan splits the stage's backward pass on micro-batch 0, otherwise whole.
    pub(crate) fn one_by_one(&self, micro_batches: usize) -> Self {
        let repeated = |row: &Vec<Action>| {
            let mut first: Vec<_> = row.iter().filter(|action| action.micro_batch == 0).copied().collect();
            // Forward passes visit the worker's stages in ascending order, backward passes in descending order.
            first.sort_by_key(|action| match action.compute {
                Compute::Forward => (0, action.stage),
                Compute::Backward | Compute::InputGradient => (1, usize::MAX - action.stage),
                Compute::WeightGradient => (2, usize::MAX - action.stage),
            });
            (0..micro_batches)
                .flat_map(|micro_batch| first.iter().map(move |action| Action { micro_batch, ..*action }))
                .collect()
        };
        Self::new(self.rows.iter().map(repeated).collect())
    }
}

/// Writes the plan as human-readable text, with one line of actions per worker.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (worker, row) in self.rows.iter().enumerate() {
            let actions: Vec<_> = row.iter().map(Action::to_string).collect();
            writeln!(f, "worker {worker}: {}", actions.join(" "))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::{OneFOneB, Schedule};

    #[test]
    fn forward_only_keeps_the_order_of_forwards() {
        let plan = OneFOneB.plan(2, 4).unwrap().forward_only(3);
        assert_eq!(plan.to_csv(), "0F0,0F1,0F2\n1F0,1F1,1F2\n");
    }

    #[test]
    fn one_by_one_passes_all_stages_forward_and_then_backward() {
        let plan = crate::ZbV.plan(4, 4).unwrap().one_by_one(2);
        assert_eq!(
            plan.to_csv(),
            "0F0,3F0,3I0,0I0,3W0,0W0,0F1,3F1,3I1,0I1,3W1,0W1\n1F0,2F0,2I0,1I0,2W0,1W0,1F1,2F1,2I1,1I1,2W1,1W1\n"
        );
        let interleaved = crate::Interleaved { chunks: 2 };
        for (schedule, capacity) in
            [(&OneFOneB as &dyn Schedule, 0), (&crate::ZbH2, 0), (&interleaved, 0), (&crate::ZbV, 1)]
        {
            let rehearsal = schedule.plan(4, 4).unwrap().one_by_one(2);
            assert!(rehearsal.peak_live().into_iter().all(|live| live <= rehearsal.stages() / rehearsal.workers()));
            crate::check(rehearsal, capacity).unwrap();
        }
    }
}
