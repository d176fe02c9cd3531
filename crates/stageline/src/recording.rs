//! A step as it was, and why its workers idled.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use stageline_schedule::{
    Action, Carried, Checked, Compute, Costs, Idle, Instruction, StageCost, Timeline, Transfer, simulate,
};

use crate::events::Event;
use crate::failure::Activity;

/// Whose time events are taken in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Clock {
    /// The host's. On an asynchronous device it shows when work was enqueued, not when it was done.
    #[default]
    Host,
    /// The host's, with a wait for the device at the end of every compute. It measures what computes take on any device, and
    /// slows steps down where the device would have gone on meanwhile: compare the throughput of a run without it.
    Synchronised,
}

impl fmt::Display for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Host => "the host's",
            Self::Synchronised => "the host's, synchronised with the device at every compute",
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
    /// The cut of the batch, threads that wake late, channels, and what else is neither computed nor waited for.
    pub other: f64,
}

impl Account {
    /// All causes of idleness together.
    pub fn idle(&self) -> f64 {
        self.fill + self.drain + self.imbalance + self.transfer + self.flush + self.other
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

    /// Each worker's events, in order; none where nothing was computed.
    pub fn events(&self) -> &[Vec<Event>] {
        &self.rows
    }

    /// The bubble: the share of the *total* stage time (workers x step) in which nothing is computed.
    pub fn bubble(&self) -> f64 {
        let total = self.took.as_secs_f64() * self.plan.plan().workers() as f64;
        let busy: Duration = self.rows.iter().flatten().filter(|event| event.computes()).map(Event::worked).sum();
        if total > 0.0 { (1.0 - busy.as_secs_f64() / total).max(0.0) } else { 0.0 }
    }

    /// The bubble of the same plan with what every compute and transfer took, simulated: without what a runtime adds.
    pub fn simulated_bubble(&self) -> f64 {
        let costs = self.costs();
        let total = self.simulated(&costs).step() * self.plan.plan().workers() as f64;
        let busy: f64 = simulate(&self.plan, &costs.without_latency()).busy().iter().sum();
        if total > 0.0 { (1.0 - busy / total).max(0.0) } else { 0.0 }
    }

    /// What everything took, in seconds: every micro-batch on every stage, each stage's part of the flush, and as latency
    /// how long its sends kept it. Of a whole backward each half is taken to be the half.
    pub fn costs(&self) -> Costs {
        let (stages, micro_batches) = (self.plan.plan().stages(), self.plan.plan().micro_batches());
        let mut costs = vec![vec![StageCost::new(0.0, 0.0, 0.0); micro_batches]; stages];
        let mut flush = vec![0.0; stages];
        for event in self.rows.iter().flatten() {
            let (stage, worked) = (event.stage, event.worked().as_secs_f64());
            match event.activity {
                Activity::Instruction(Instruction::Compute(Action { compute, micro_batch, .. })) => {
                    let cost = &mut costs[stage][micro_batch];
                    match compute {
                        Compute::Forward => cost.forward = worked,
                        Compute::InputGradient => cost.input_gradient = worked,
                        Compute::WeightGradient => cost.weight_gradient = worked,
                        Compute::Backward => {
                            *cost = StageCost {
                                backward: worked,
                                input_gradient: worked / 2.0,
                                weight_gradient: worked / 2.0,
                                ..*cost
                            };
                        }
                    }
                }
                Activity::Instruction(Instruction::Send(Transfer { carried, micro_batch, .. })) => match carried {
                    Carried::Activation => costs[stage][micro_batch].send_activation = worked,
                    Carried::Gradient => costs[stage][micro_batch].send_gradient = worked,
                },
                Activity::Finish | Activity::OptimizerStep => flush[stage] += worked,
                _ => {}
            }
        }
        Costs::by_micro_batch(costs).with_optimizer(flush)
    }

    /// Each worker's account.
    pub fn accounts(&self) -> Vec<Account> {
        let (took, costs) = (self.took.as_secs_f64(), self.costs());
        let untransferred = simulate(&self.plan, &costs.without_latency());
        let idle = self.simulated(&costs).idle_besides(&untransferred);
        let account = |(row, idle): (&Vec<Event>, Idle)| {
            let busy = row.iter().filter(|event| event.computes()).map(Event::worked).sum::<Duration>().as_secs_f64();
            let Idle { fill, drain, imbalance, transfer, flush } = idle;
            Account { busy, fill, drain, imbalance, transfer, flush, other: took - busy - idle.total() }
        };
        self.rows.iter().zip(idle).map(account).collect()
    }

    /// The step with nothing but these costs. A send keeps its worker, so it counts as the end of its compute.
    fn simulated(&self, costs: &Costs) -> Timeline {
        let plan = self.plan.plan();
        let occupying = |stage: usize, micro_batch: usize| {
            let cost = costs.stage(stage, micro_batch);
            let (forward, backward) = (cost.forward + cost.send_activation, cost.backward + cost.send_gradient);
            let input_gradient = cost.input_gradient + cost.send_gradient;
            StageCost { forward, backward, input_gradient, ..cost }.with_latency(0.0)
        };
        let of_stage = |stage| (0..plan.micro_batches()).map(|micro_batch| occupying(stage, micro_batch)).collect();
        let occupying = Costs::by_micro_batch((0..plan.stages()).map(of_stage).collect());
        let flush = (0..plan.stages()).map(|stage| costs.optimizer(stage)).collect();
        simulate(&self.plan, &occupying.with_optimizer(flush))
    }
}
