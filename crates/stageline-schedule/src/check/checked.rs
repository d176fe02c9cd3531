//! A plan that passed validation ([`Checked`]). It provides each worker's instructions, a global order of all
//! transfers, and derived plans, such as one for evaluation.

use super::capacity::{completes, least_safe, run};
use super::error::CheckError;
use super::excerpt::Excerpt;
use super::replay::Observer;
use crate::plan::{Action, Instruction, Placement, Plan, Transfer, live_after, lower};

/// A plan that passed [`check`](crate::check()), and can be simulated or run. It does not deadlock if each channel
/// between two stages can hold [`capacity`](Self::capacity) micro-batches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    plan: Plan,
    capacity: usize,
}

impl Checked {
    /// Wraps a plan without checking it. The caller must have proved that the plan does not deadlock if each channel
    /// between two stages holds `capacity` micro-batches.
    pub(super) fn new(plan: Plan, capacity: usize) -> Self {
        Self { plan, capacity }
    }

    /// Returns the plan that passed the check: each worker's list of forward and backward passes.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Returns the placement of the plan's stages: the index of the worker that runs each stage.
    pub fn placement(&self) -> Placement {
        self.plan.placement()
    }

    /// Returns a worker's instructions in order: its forward and backward passes, with the sends and receives that they
    /// need.
    ///
    /// # Panics
    /// Panics if the plan has no such worker.
    pub fn instructions(&self, worker: usize) -> impl Iterator<Item = Instruction> + '_ {
        lower(&self.plan, worker)
    }

    /// Returns the channel capacity for which the plan was checked: the number of micro-batches that each channel
    /// between two stages can hold. With capacity 0, a sender waits until the receiver takes the message.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns the smallest channel capacity (number of micro-batches that each channel between two stages holds) that
    /// avoids a deadlock.
    pub fn least_capacity(&self) -> usize {
        let safe = |capacity| completes(&self.plan, capacity);
        if safe(0) { 0 } else { least_safe(0, self.capacity, safe).unwrap_or(self.capacity) }
    }

    /// Returns the plan as a CSV string in PyTorch's lowered format (`compute_comms`), with one row per worker. A row
    /// has the worker's forward and backward passes, and its sends to and receives from other workers.
    ///
    /// A wait is added for each send. The wait for an activation comes right after the backward pass (or input
    /// gradient) of the same stage and micro-batch. The wait for a gradient comes at the end of the row.
    pub fn to_lowered_csv(&self) -> String {
        self.plan.to_lowered_csv()
    }

    /// Returns all transfers of the plan in one global order, by the simulated time of their sends. Each worker's sends
    /// stay in the worker's own order.
    ///
    /// If all workers begin their sends one after another in this order, no send waits for a later one.
    pub fn transfers(&self) -> Vec<Transfer> {
        let mut order = Order(Vec::new());
        run(&self.plan, self.capacity, &mut order).expect("a checked plan completes");
        // The replay reports a send after the sends that it depends on. The sort is stable, so sends at equal times
        // keep this order.
        order.0.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        order.0.into_iter().map(|(_, transfer)| transfer).collect()
    }

    /// Returns this plan if no worker ever has more than `limit` live micro-batches, summed over the worker's stages. A
    /// micro-batch is live from its forward pass until its weight gradient is done.
    ///
    /// # Errors
    /// Returns [`CheckError::TooManyLive`] if a worker has more live micro-batches.
    pub fn at_most_live(self, limit: usize) -> Result<Self, CheckError> {
        let peaks = self.plan.peak_live();
        let Some(worker) = peaks.iter().position(|peak| *peak > limit) else { return Ok(self) };
        let row = &self.plan.rows()[worker];
        let mut live = 0;
        let exceeds = |action: &Action| {
            live = live_after(live, action.compute);
            live > limit
        };
        let at = row.iter().position(exceeds).expect("the peak exceeds the limit somewhere");
        let needed = peaks.into_iter().max().unwrap_or(0);
        Err(CheckError::TooManyLive {
            worker,
            action: row[at],
            limit,
            needed,
            excerpt: Excerpt::around(&self.plan, &[(worker, at)]),
        })
    }

    /// Returns a plan for evaluation: the forward passes of the first `micro_batches` micro-batches, in the order of
    /// this plan.
    ///
    /// The result does not deadlock, because this plan does not. Removing the backward passes and the forward passes of
    /// later micro-batches, with their transfers, cannot cause a deadlock.
    pub fn forwards(&self, micro_batches: usize) -> Self {
        Self { plan: self.plan.forward_only(micro_batches), capacity: self.capacity }
    }

    /// Returns the plan of a rehearsal, a step that is run only to measure how much memory one micro-batch needs. Two
    /// micro-batches pass all stages forward and backward, one after the other. Every stage stays on its worker.
    ///
    /// The result does not deadlock, because the second micro-batch is sent only after all transfers of the first.
    pub fn rehearsal(&self) -> Self {
        Self { plan: self.plan.one_by_one(2), capacity: self.capacity }
    }

    /// Returns a plan of two steps that overlap. Each worker begins the second step as soon as it has finished its own
    /// actions of the first step. If a step has M micro-batches, those of the second step have the indices M to 2M-1.
    ///
    /// The result does not deadlock, because the first step never waits for the second.
    pub fn twice(&self) -> Self {
        Self { plan: self.plan.twice(), capacity: self.capacity }
    }
}

/// Observer that collects every transfer of a replay (a simulated run of a plan), with the simulated time of its send.
struct Order(Vec<(f64, Transfer)>);

impl Observer for Order {
    fn sent(&mut self, transfer: Transfer, time: f64) {
        self.0.push((time, transfer));
    }
}

#[cfg(test)]
mod tests {
    use crate::check::check;
    use crate::plan::Plan;

    #[test]
    fn too_many_live_micro_batches_are_rejected_at_the_first_excess() {
        let csv = "0F0,0F1,0F2,0B0,0F3,0B1,0B2,0B3\n1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3\n";
        let checked = check(Plan::from_csv(csv).unwrap(), 3).unwrap();
        let message = checked.clone().at_most_live(2).unwrap_err().to_string();
        let expected = "worker 0 would hold 3 live micro-batches at 0F2, but the limit is 2; raise the limit to 3, or use a \
                        schedule that begins its backwards earlier\n  worker 0: 0F0 0F1 [0F2] 0B0 0F3 0B1 0B2 ...";
        assert_eq!(message, expected);
        assert!(checked.at_most_live(3).is_ok());
    }

    #[test]
    fn chunks_of_one_worker_may_exchange_with_each_other() {
        // Each of two workers has two chunks (stages). The output of stage 1 goes back to worker 0, which has stage 2.
        let plan = Plan::from_csv("0F0,2F0,2B0,0B0\n1F0,3F0,3B0,1B0\n").unwrap();
        assert_eq!(check(plan, 1).unwrap().transfers().len(), 6);
    }
}
