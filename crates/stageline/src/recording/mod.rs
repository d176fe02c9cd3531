//! Recordings: what each worker did in a step, how much memory it had allocated, and the causes of its idle time.
//!
//! Input: the events that workers record during a step, with times, waits, bytes sent and allocated memory. Output: a
//! [`Recording`] with the step's bubble, its measured costs, and an [`Account`] of each worker. The account divides the
//! worker's idle time by cause. To find the causes, the plan is simulated with the measured costs. This folder owns all
//! measuring on worker threads: the recorder of events, the waits for a device's clock, the counts of allocated bytes,
//! and the evaluation of events. It must not change the training, and must not predict memory: it measures all byte
//! counts, and simulates only times. Predictions of memory under a plan are the task of the folder `memory`.
//!
//! The evaluation in this file adds up the events by their `Activity`. The times of computations, sends, receives and
//! the flush are the costs of each stage and micro-batch (`Tally`, `StageCost`), which are simulated with and without
//! transfers (`Counted`). An `Activity` in an error or in the report of a stall is in `failure`.
//!
//! - `events`: the worker's recorder of events (`Diary`). It begins an activity, which it also shows on the watchdog's
//!   board, and ends it with its times, waits, bytes and memory reading (`Reading`).
//! - `gauges`: the time and memory measurements that a worker makes at the end of every activity (`Gauges`; on a GPU,
//!   memory is read from the memory pool). In steps with the device's clock (`Clock`), also the wait for the device.
//! - `memory`: the measured memory of workers, activations and transfers, computed from events.
//! - `allocator`: the global allocator that counts the host memory of each worker (`CountingAllocator`, `Meter`). It
//!   stores the owner of every memory block in front of the block's data.

pub(crate) mod allocator;
pub(crate) mod events;
pub(crate) mod gauges;
pub(crate) mod memory;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use stageline_schedule::{
    Account, Action, Activity, Carried, Checked, Compute, Costs, Event, Idle, Instruction, StageCost, Timeline,
    Transfer, WorkerMemory, simulate,
};

use crate::recording::events::busy;
use crate::recording::memory::{activation, of_worker, output};

/// The clock that measures the times of a step's recorded events. The default is the host's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Clock {
    /// Times events on the host, without waiting for the device. On an asynchronous device, the times show when work
    /// was enqueued, not when it finished.
    #[default]
    Host,
    /// Times events on the host, but waits for the device at the end of every action (such as a forward pass). This
    /// measures the true time of actions on any device, but slows down steps, because the host cannot enqueue work
    /// ahead of the device.
    Synchronised,
}

/// Displays the name of the clock that timed a step: "host clock" or "device clock".
impl fmt::Display for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Host => "host clock",
            Self::Synchronised => "device clock",
        })
    }
}

/// The recording of one training step: the timed events of every worker. Its methods compute from them, for example,
/// the bubble and the causes of idle time.
#[derive(Clone, Debug)]
pub struct Recording {
    plan: Arc<Checked>,
    took: Duration,
    rows: Vec<Vec<Event>>,
    clock: Clock,
}

impl Recording {
    pub(crate) fn new(plan: Arc<Checked>, took: Duration, rows: Vec<Vec<Event>>, clock: Clock) -> Self {
        Self { plan, took, rows, clock }
    }

    /// Returns the clock that timed the events of the recorded step.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Returns the plan that the workers followed in the recorded step: the order of the actions on each worker.
    pub fn plan(&self) -> &Checked {
        &self.plan
    }

    /// Returns the duration of the recorded step, from splitting the batch until the last worker has finished.
    pub fn took(&self) -> Duration {
        self.took
    }

    /// Returns the part of this recording that covers the workers of the data-parallel replica with the index
    /// `replica`, counted from 0.
    ///
    /// # Panics
    /// Panics if the pipeline has no replica with this number.
    #[must_use]
    pub fn of_replica(&self, replica: usize) -> Self {
        let rows = self.by_replica().nth(replica).expect("the pipeline has no such replica").to_vec();
        Self { plan: Arc::clone(&self.plan), took: self.took, rows, clock: self.clock }
    }

    /// Returns the recorded events of each data-parallel replica, in replica order: one list for each of its workers.
    fn by_replica(&self) -> impl Iterator<Item = &[Vec<Event>]> {
        self.rows.chunks(self.plan.plan().workers())
    }

    /// Returns the events of the recorded step: one list for each worker, in order of time, beginning with the workers
    /// of replica 0. All lists are empty if nothing was computed, because the step had no weight.
    pub fn events(&self) -> &[Vec<Event>] {
        &self.rows
    }

    /// Returns the measured bubble of the step: the fraction, from 0 to 1, of the *total* stage time (workers x step
    /// time) that is not spent on forward passes, backward passes, gradient norms or optimizer steps.
    pub fn bubble(&self) -> f64 {
        let total = self.took.as_secs_f64() * self.rows.len() as f64;
        let busy = busy(self.rows.iter().flatten());
        if total > 0.0 { (1.0 - busy.as_secs_f64() / total).max(0.0) } else { 0.0 }
    }

    /// Returns the bubble that the step would have without the runtime's overhead: the fraction, from 0 to 1, of the
    /// total stage time (workers x step time) that is not spent on computation. It is computed by a simulation of the
    /// recorded step's plan (order of actions on each worker) with the measured times of all computations and
    /// transfers.
    pub fn simulated_bubble(&self) -> f64 {
        let step = self.by_replica().map(|rows| self.simulated(rows, Counted::Transfers).step()).fold(0.0, f64::max);
        let busy = self.by_replica().map(|rows| self.simulated(rows, Counted::Computes).busy().iter().sum::<f64>());
        let (total, busy) = (step * self.rows.len() as f64, busy.sum::<f64>());
        if total > 0.0 { (1.0 - busy / total).max(0.0) } else { 0.0 }
    }

    /// Returns the measured times of replica 0 as [`Costs`] for simulations, in seconds. They are the times of every
    /// forward pass, backward pass and send, and each stage's time for gradient norms and optimizer step (the flush).
    ///
    /// A send's latency is the sum of the times that the sending and the receiving worker were busy with it. The
    /// sender's time ends when the tensor is at the receiver. If backward passes were not split, the input gradient and
    /// the weight gradient are each assumed to take half the time of the backward pass. If they were split, the
    /// backward pass takes the sum of both. For another replica, call this method on the recording that
    /// [`of_replica`](Self::of_replica) returns.
    pub fn costs(&self) -> Costs {
        let rows = self.by_replica().next().unwrap_or_default();
        let Tally { mut costs, received, finish, optimizer } = self.tally(rows, Event::worked);
        for (transfer, took) in received {
            *send_of(&mut costs[transfer.from][transfer.micro_batch], transfer.carried) += took;
        }
        let flush = finish.into_iter().zip(optimizer).map(|(finish, optimizer)| finish + optimizer).collect();
        Costs::by_micro_batch(costs).with_optimizer(flush)
    }

    /// Returns each worker's account of the recorded step in seconds: its busy time, and its idle time by cause. The
    /// workers are ordered by replica. The exchange of gradients and parameters between replicas counts as `other`.
    pub fn accounts(&self) -> Vec<Account> {
        self.by_replica().flat_map(|rows| self.accounts_of(rows)).collect()
    }

    fn accounts_of(&self, rows: &[Vec<Event>]) -> Vec<Account> {
        let took = self.took.as_secs_f64();
        let [computes, transfers, asking] =
            [Counted::Computes, Counted::Transfers, Counted::Asking].map(|counted| self.simulated(rows, counted));
        let idle = transfers.idle_besides(&computes);
        let asking = (asking.step() - transfers.step()).max(0.0); // only rounding can make it negative
        let account = |(row, idle): (&Vec<Event>, Idle)| {
            let busy = busy(row).as_secs_f64();
            let Idle { fill, drain, imbalance, transfer, flush } = idle;
            let other = took - busy - idle.total() - asking;
            Account { busy, fill, drain, imbalance, transfer, flush, asking, other }
        };
        rows.iter().zip(idle).map(account).collect()
    }

    /// Returns each worker's allocated memory in bytes, at the start of the step and at its peak. The workers are
    /// ordered by replica. Returns `None` if memory was not measured for a worker. On a CPU, measurements need the
    /// [`CountingAllocator`](crate::CountingAllocator), and on a GPU a synchronised step ([`Clock::Synchronised`]).
    /// Devices of other hosts are not measured.
    pub fn memory(&self) -> Option<Vec<WorkerMemory>> {
        self.rows.iter().map(|row| of_worker(row)).collect()
    }

    /// Returns, for each stage, the measured bytes of activations that the stage stores for one micro-batch from its
    /// forward pass until its backward pass, as a mean over the micro-batches. Returns `None` if memory was not
    /// measured on a stage (see [`memory`](Self::memory)).
    pub fn activations(&self) -> Option<Vec<f64>> {
        (0..self.plan.plan().stages()).map(|stage| activation(stage, &self.rows)).collect()
    }

    /// Returns, for each stage, the mean number of bytes that the stage sends to the next stage for one micro-batch;
    /// `None` for the last stage.
    pub fn outputs(&self) -> Vec<Option<f64>> {
        (0..self.plan.plan().stages()).map(|stage| output(stage, &self.rows)).collect()
    }

    /// Returns one replica's times of computations, transfers and optimizer steps, by stage and micro-batch. `rows`
    /// lists the recorded events of the replica's workers. `took` returns the part of an event's duration that counts,
    /// such as the duration without waits.
    fn tally(&self, rows: &[Vec<Event>], took: fn(&Event) -> Duration) -> Tally {
        let (stages, micro_batches) = (self.plan.plan().stages(), self.plan.plan().micro_batches());
        let costs = vec![vec![StageCost::new(0.0, 0.0, 0.0); micro_batches]; stages];
        let (finish, optimizer) = (vec![0.0; stages], vec![0.0; stages]);
        let mut tally = Tally { costs, received: Vec::new(), finish, optimizer };
        let receives = rows.iter().flatten().filter_map(|event| match event.activity {
            Activity::Instruction(Instruction::Receive(transfer)) => Some((transfer, event)),
            _ => None,
        });
        let receives: HashMap<Transfer, &Event> = receives.collect();
        for event in rows.iter().flatten() {
            let (stage, took) = (event.stage, took(event).as_secs_f64());
            match event.activity {
                Activity::Instruction(Instruction::Compute(action)) => tally.compute(action, took),
                Activity::Instruction(Instruction::Send(transfer)) => {
                    // The receiver may have the tensor before the send returns. The transfer then ends at the receiver.
                    let there = receives.get(&transfer).map(|receive| receive.end - arriving(receive));
                    let there = there.map(|there| there.saturating_sub(event.start).as_secs_f64());
                    let send = send_of(&mut tally.costs[stage][transfer.micro_batch], transfer.carried);
                    *send = there.map_or(took, |there| took.min(there));
                }
                Activity::Instruction(Instruction::Receive(transfer)) => {
                    tally.received.push((transfer, arriving(event).as_secs_f64()));
                }
                Activity::Finish => tally.finish[stage] += took,
                Activity::OptimizerStep => tally.optimizer[stage] += took,
                _ => {}
            }
        }
        tally
    }

    /// Simulates the recorded step of one replica and returns its timeline. Actions take the measured times of the
    /// recorded events (`rows`), and the runtime has no overhead. `counted` selects which recorded activities
    /// (computations, transfers, synchronisation with devices) take time.
    ///
    /// A send counts as part of the forward or backward pass before it, and a receive as part of the forward or
    /// backward pass that needs the received tensor. The gradient norms at the end prolong a worker's last backward
    /// pass, but delay no other worker, because the worker sends the gradient first.
    fn simulated(&self, rows: &[Vec<Event>], counted: Counted) -> Timeline {
        let mut tally = match counted {
            Counted::Computes | Counted::Transfers => self.tally(rows, Event::worked),
            Counted::Asking => self.tally(rows, |event| event.worked() + event.asked),
        };
        let received = std::mem::take(&mut tally.received);
        for cost in tally.costs.iter_mut().flatten() {
            if counted != Counted::Computes {
                let StageCost { send_activation, send_gradient, .. } = *cost;
                cost.forward += send_activation;
                cost.backward += send_gradient;
                cost.input_gradient += send_gradient;
            }
            *cost = cost.with_latency(0.0);
        }
        for (transfer, took) in received.into_iter().filter(|_| counted != Counted::Computes) {
            let cost = &mut tally.costs[transfer.to()][transfer.micro_batch];
            match transfer.carried {
                Carried::Activation => cost.forward += took,
                Carried::Gradient => {
                    cost.backward += took;
                    cost.input_gradient += took;
                }
            }
        }
        let finish_of = |stages: &Vec<usize>| stages.iter().map(|&stage| tally.finish[stage]).sum();
        let finish: Vec<f64> = self.plan.placement().stages_of().iter().map(finish_of).collect();
        let costs = Costs::by_micro_batch(tally.costs).with_optimizer(tally.optimizer);
        simulate(&self.plan, &costs).with_longer_ends(&finish)
    }
}

/// Selects the work that takes its measured time when a recorded step is simulated; all other work takes no time. Each
/// variant includes the variants before it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Counted {
    /// Only forward passes, backward passes and the flush (gradient norms and optimizer step) take time in the
    /// simulation.
    Computes,
    /// Sends and receives take time in the simulation, in addition to forward passes, backward passes and the flush
    /// (gradient norms and optimizer step).
    Transfers,
    /// Synchronising with devices (the measurement overhead) takes time in the simulation, in addition to computations
    /// and transfers.
    Asking,
}

/// Returns how long a receive kept its worker busy, without the wait for the sender. Includes the synchronisation with
/// the device, which a receiver always needs.
fn arriving(receive: &Event) -> Duration {
    receive.worked() + receive.asked
}

/// The measured times of one data-parallel replica in a step, in seconds.
struct Tally {
    /// The times of forward passes, backward passes and sends in seconds, by stage and then by micro-batch.
    costs: Vec<Vec<StageCost>>,
    /// For each transfer, how many seconds its receive kept the worker busy, without the wait for the sender.
    received: Vec<(Transfer, f64)>,
    /// The time in seconds that each stage took for gradient norms and losses at the end of the step.
    finish: Vec<f64>,
    /// The time in seconds that each stage took for its optimizer step.
    optimizer: Vec<f64>,
}

fn send_of(cost: &mut StageCost, carried: Carried) -> &mut f64 {
    match carried {
        Carried::Activation => &mut cost.send_activation,
        Carried::Gradient => &mut cost.send_gradient,
    }
}

impl Tally {
    fn compute(&mut self, action: Action, worked: f64) {
        *self.cost(action) = worked;
        let cost = &mut self.costs[action.stage][action.micro_batch];
        match action.compute {
            Compute::Forward => {}
            Compute::Backward => (cost.input_gradient, cost.weight_gradient) = (worked / 2.0, worked / 2.0),
            Compute::InputGradient | Compute::WeightGradient => {
                cost.backward = cost.input_gradient + cost.weight_gradient;
            }
        }
    }

    fn cost(&mut self, Action { stage, compute, micro_batch }: Action) -> &mut f64 {
        let cost = &mut self.costs[stage][micro_batch];
        match compute {
            Compute::Forward => &mut cost.forward,
            Compute::Backward => &mut cost.backward,
            Compute::InputGradient => &mut cost.input_gradient,
            Compute::WeightGradient => &mut cost.weight_gradient,
        }
    }
}

#[cfg(test)]
mod tests {
    use stageline_schedule::{OneFOneB, Schedule, check};

    use super::*;

    /// Tests a recorded step of 1F1B on 2 stages with one micro-batch. Forward and backward passes take 1 ms, transfers
    /// no time, and the gradient norms of each stage 10 ms. The second stage computes its norms while the first stage
    /// runs its backward pass.
    #[test]
    fn gradient_norms_delay_no_other_stage() {
        let plan = OneFOneB.plan(2, 1).unwrap();
        let mut rows = vec![Vec::new(); 2];
        let mut record = |stage: usize, activity: Activity, [start, end]: [u64; 2], waited: u64| {
            let [start, end, waited] = [start, end, waited].map(Duration::from_millis);
            let event = Event { stage, activity, start, end, waited, asked: Duration::ZERO, held: None, sent: 0 };
            rows[stage].push(event);
        };
        for (stage, forward, backward) in [(0, 0, 3), (1, 1, 2)] {
            let actions =
                plan.rows()[stage].iter().map(|action| Instruction::Compute(*action)).map(Activity::Instruction);
            let mut now = 0;
            for (activity, start) in actions.zip([forward, backward]) {
                record(stage, activity, [now, start + 1], start - now);
                now = start + 1;
            }
            record(stage, Activity::Finish, [now, now + 10], 0);
        }
        let checked = Arc::new(check(plan, 1).unwrap());
        let recording = Recording::new(checked, Duration::from_millis(14), rows, Clock::Host);
        let bubble = 1.0 - 24.0 / 28.0;
        assert!((recording.bubble() - bubble).abs() < 1e-9);
        assert!((recording.simulated_bubble() - bubble).abs() < 1e-9, "{}", recording.simulated_bubble());
        for account in recording.accounts() {
            let Account { busy, other, .. } = account;
            assert!((busy - 0.012).abs() < 1e-9 && other.abs() < 1e-9, "{account:?}");
        }
    }
}
