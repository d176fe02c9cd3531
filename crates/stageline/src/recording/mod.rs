//! A step as it was, and why its workers idled.

pub(crate) mod allocator;
pub(crate) mod events;
pub(crate) mod gauges;
pub(crate) mod memory;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use stageline_schedule::{
    Action, Carried, Checked, Compute, Costs, Idle, Instruction, StageCost, Timeline, Transfer, simulate,
};

use crate::failure::activity::Activity;
use crate::recording::events::{Event, busy};
use crate::recording::memory::{WorkerMemory, activation, output};

/// Whose time events are taken in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Clock {
    /// The host's. On an asynchronous device it shows when work was enqueued, not when it was done.
    #[default]
    Host,
    /// The host's, with a wait for the device at the end of every action. It measures what actions take on any device, and slows
    /// steps down where the device would have gone on meanwhile.
    Synchronised,
}

/// Names the clock, beside a time or a bubble.
impl fmt::Display for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Host => "host clock",
            Self::Synchronised => "device clock",
        })
    }
}

/// What the workers of a pipeline did in one step, and when.
#[derive(Clone, Debug)]
pub struct Recording {
    plan: Arc<Checked>,
    took: Duration,
    rows: Vec<Vec<Event>>,
    clock: Clock,
}

/// Where one worker's part of a step went, in seconds: what it computed, and why it idled. It adds up to the step.
///
/// The causes are found by simulation, with what every action and transfer of the step took: each is what would be gained on
/// that worker if it were gone. What a simulation of the same costs cannot explain is `other`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Account {
    /// Forwards, backwards, norms and optimizer steps.
    pub busy: f64,
    /// The pipeline was not yet full.
    pub fill: f64,
    /// The pipeline ran empty.
    pub drain: f64,
    /// Another worker has more to compute.
    pub imbalance: f64,
    /// Transfers took their time.
    pub transfer: f64,
    /// Another worker's part of the flush is longer.
    pub flush: f64,
    /// Devices were asked whether they are done ([`Clock::Synchronised`]).
    pub asking: f64,
    /// The cut of the batch, threads that wake late, channels, the exchange between replicas, and what else is neither computed nor waited for.
    pub other: f64,
}

impl Account {
    /// All causes of idleness together.
    pub fn idle(&self) -> f64 {
        self.fill + self.drain + self.imbalance + self.transfer + self.flush + self.asking + self.other
    }
}

impl Recording {
    pub(crate) fn new(plan: Arc<Checked>, took: Duration, rows: Vec<Vec<Event>>, clock: Clock) -> Self {
        Self { plan, took, rows, clock }
    }

    /// Whose time it is in.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// The plan that was run.
    pub fn plan(&self) -> &Checked {
        &self.plan
    }

    /// How long the step took, from the cut of the batch to the last worker's end.
    pub fn took(&self) -> Duration {
        self.took
    }

    /// What the workers of one replica did.
    ///
    /// # Panics
    /// If there is no such replica.
    #[must_use]
    pub fn of_replica(&self, replica: usize) -> Self {
        let rows = self.by_replica().nth(replica).expect("a replica of the pipeline").to_vec();
        Self { plan: Arc::clone(&self.plan), took: self.took, rows, clock: self.clock }
    }

    /// The rows of each replica.
    fn by_replica(&self) -> impl Iterator<Item = &[Vec<Event>]> {
        self.rows.chunks(self.plan.plan().workers())
    }

    /// Each worker's events, in order, those of one replica after those of another; none where nothing was computed.
    pub fn events(&self) -> &[Vec<Event>] {
        &self.rows
    }

    /// The bubble: the share of the *total* stage time (workers x step) in which nothing is computed.
    pub fn bubble(&self) -> f64 {
        let total = self.took.as_secs_f64() * self.rows.len() as f64;
        let busy = busy(self.rows.iter().flatten());
        if total > 0.0 { (1.0 - busy.as_secs_f64() / total).max(0.0) } else { 0.0 }
    }

    /// The bubble of the same plan with what every compute and transfer took, simulated: without what a runtime adds.
    pub fn simulated_bubble(&self) -> f64 {
        let step = self.by_replica().map(|rows| self.simulated(rows, Counted::Transfers).step()).fold(0.0, f64::max);
        let busy = self.by_replica().map(|rows| self.simulated(rows, Counted::Computes).busy().iter().sum::<f64>());
        let (total, busy) = (step * self.rows.len() as f64, busy.sum::<f64>());
        if total > 0.0 { (1.0 - busy / total).max(0.0) } else { 0.0 }
    }

    /// What everything took, in seconds: every micro-batch on every stage, each stage's part of the flush, and as latency
    /// how long its sends kept it and their receivers. Of a whole backward each half is taken to be the half. It is what the first replica took; of
    /// another, [`of_replica`](Self::of_replica) has it.
    pub fn costs(&self) -> Costs {
        let rows = self.by_replica().next().unwrap_or_default();
        let Tally { mut costs, received, finish, optimizer } = self.tally(rows, Event::worked);
        for (transfer, took) in received {
            *send_of(&mut costs[transfer.from][transfer.micro_batch], transfer.carried) += took;
        }
        let flush = finish.into_iter().zip(optimizer).map(|(finish, optimizer)| finish + optimizer).collect();
        Costs::by_micro_batch(costs).with_optimizer(flush)
    }

    /// Each worker's account, those of one replica after those of another. What replicas exchange is in `other`.
    pub fn accounts(&self) -> Vec<Account> {
        self.by_replica().flat_map(|rows| self.accounts_of(rows)).collect()
    }

    fn accounts_of(&self, rows: &[Vec<Event>]) -> Vec<Account> {
        let took = self.took.as_secs_f64();
        let [computes, transfers, asking] =
            [Counted::Computes, Counted::Transfers, Counted::Asking].map(|counted| self.simulated(rows, counted));
        let idle = transfers.idle_besides(&computes);
        let asking = (asking.step() - transfers.step()).max(0.0); // but for rounding, it is never less
        let account = |(row, idle): (&Vec<Event>, Idle)| {
            let busy = busy(row).as_secs_f64();
            let Idle { fill, drain, imbalance, transfer, flush } = idle;
            let other = took - busy - idle.total() - asking;
            Account { busy, fill, drain, imbalance, transfer, flush, asking, other }
        };
        rows.iter().zip(idle).map(account).collect()
    }

    /// What each worker held; none where nothing counts that (see [`Held`](crate::Held)).
    pub fn memory(&self) -> Option<Vec<WorkerMemory>> {
        self.rows.iter().map(|row| WorkerMemory::of(row)).collect()
    }

    /// What each stage keeps of one micro-batch from its forward until its backward, in bytes, on average.
    pub fn activations(&self) -> Option<Vec<f64>> {
        (0..self.plan.plan().stages()).map(|stage| activation(stage, &self.rows)).collect()
    }

    /// What each stage hands to the next of one micro-batch, in bytes, on average; none of the last.
    pub fn outputs(&self) -> Vec<Option<f64>> {
        (0..self.plan.plan().stages()).map(|stage| output(stage, &self.rows)).collect()
    }

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
                    // The receiver may have it before the sender is done with sending.
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

    /// The step with nothing but what everything took. What keeps a worker besides its computes is counted to the compute
    /// before it: sends, and behind the last one the norms, which need not wait for other workers. Receives, over a network most of
    /// all, are counted to the compute that they are for.
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
        for (row, stages) in self.plan.plan().rows().iter().zip(self.plan.placement().stages_of()) {
            let Some(last) = row.last() else { continue };
            let finish: f64 = stages.iter().map(|&stage| tally.finish[stage]).sum();
            *tally.cost(*last) += finish;
        }
        simulate(&self.plan, &Costs::by_micro_batch(tally.costs).with_optimizer(tally.optimizer))
    }
}

/// What takes time in a simulation, each with what is before it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Counted {
    Computes,
    /// Sends and receives keep their workers.
    Transfers,
    /// So do questions to devices.
    Asking,
}

/// How long a receive kept its worker. Asked or not, it would have to wait until the tensors are there.
fn arriving(receive: &Event) -> Duration {
    receive.worked() + receive.asked
}

/// What everything took in one step, in seconds.
struct Tally {
    costs: Vec<Vec<StageCost>>,
    /// How long transfers kept their receivers.
    received: Vec<(Transfer, f64)>,
    finish: Vec<f64>,
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
        if action.compute == Compute::Backward {
            let cost = &mut self.costs[action.stage][action.micro_batch];
            (cost.input_gradient, cost.weight_gradient) = (worked / 2.0, worked / 2.0);
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
