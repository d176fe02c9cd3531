//! Why transfers between GPUs are issued in the plan's order: a model of hosts that run ahead of their devices.
//!
//! A worker's host thread submits and does not wait for the device; it waits for other hosts only, through channels. A device
//! has a compute stream for each worker, and one communication stream. A transfer is submitted as two operations, a send on
//! one stream and a receive on the other, which meet (NCCL): each stream does its operations in order, and a transfer is done
//! when it is at the head of both and what it carries is computed. In order, the compute stream of who sends is made to wait for
//! all transfers before it, because what it sent last is let go of then. Hosts never wait for devices, so a deadlock of the
//! devices shows when all hosts are done.

use std::collections::{HashSet, VecDeque};

use proptest::prelude::*;
use proptest::test_runner::TestRng;
use stageline_schedule::{
    Action, Carried, Checked, Compute, GPipe, Instruction, Interleaved, OneFOneB, SCHEDULES, Schedule, Transfer, check,
};

use crate::checked;

/// How hosts issue transfers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Issue {
    /// As they come to them.
    Freely,
    /// One at a time: nobody comes between a transfer's two operations.
    Paired,
    /// By turns on every stream.
    InOrder,
}

/// What does not change.
struct Machine {
    plan: Checked,
    issue: Issue,
    rows: Vec<Vec<Instruction>>,
    of_stage: Vec<Option<usize>>,
    turns: Vec<Vec<Transfer>>,
}

/// A moment.
#[derive(Clone, PartialEq, Eq, Hash)]
struct State {
    /// Where each host is in its row, and how far with a send.
    hosts: Vec<(usize, Sending)>,
    /// What each compute stream has yet to do.
    computes: Vec<VecDeque<Work>>,
    /// What each communication stream has yet to do.
    streams: Vec<VecDeque<Transfer>>,
    /// How many transfers each stream has had its turn for.
    turns: Vec<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Work {
    Action(Action),
    /// Until this communication stream has done so many transfers.
    Settle {
        stream: usize,
        transfers: usize,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Sending {
    Begins,
    SendSubmitted,
    ReceiveSubmitted,
}

impl Machine {
    /// A device a worker.
    fn new(plan: Checked, issue: Issue) -> Self {
        let placement = plan.placement();
        let of_stage: Vec<_> = (0..plan.plan().stages()).map(|stage| Some(placement.worker(stage))).collect();
        let rows = (0..plan.plan().workers()).map(|worker| plan.instructions(worker).collect()).collect();
        Self { turns: plan.streams(&of_stage), rows, of_stage, issue, plan }
    }

    fn begin(&self) -> State {
        State {
            hosts: vec![(0, Sending::Begins); self.rows.len()],
            computes: vec![VecDeque::new(); self.rows.len()],
            streams: vec![VecDeque::new(); self.turns.len()],
            turns: vec![0; self.turns.len()],
        }
    }

    /// The two streams of a transfer, if it has some.
    fn streams_of(&self, transfer: Transfer) -> Option<[usize; 2]> {
        let (from, to) = (self.of_stage[transfer.from]?, self.of_stage[transfer.to()]?);
        (from != to).then_some([from, to])
    }

    /// How many messages one end of a transfer's channel has handled.
    fn handled(&self, state: &State, transfer: Transfer, sends: bool) -> usize {
        let along = |other: &Transfer| (other.from, other.carried) == (transfer.from, transfer.carried);
        let worker = self.plan.placement().worker(if sends { transfer.from } else { transfer.to() });
        let done = &self.rows[worker][..state.hosts[worker].0];
        let ours = |instruction: &&Instruction| match instruction {
            Instruction::Send(other) => sends && along(other),
            Instruction::Receive(other) => !sends && along(other),
            Instruction::Compute(_) => false,
        };
        done.iter().filter(ours).count()
    }

    /// The moment after a host's next move; `None` where it has to wait, or is done.
    fn after(&self, state: &State, host: usize) -> Option<State> {
        let (at, sending) = state.hosts[host];
        let mut next = state.clone();
        let mut sent = Sending::Begins;
        match *self.rows[host].get(at)? {
            Instruction::Compute(action) => next.computes[host].push_back(Work::Action(action)),
            Instruction::Receive(transfer) => {
                let come = self.handled(state, transfer, true) > self.handled(state, transfer, false);
                come.then_some(())?;
            }
            Instruction::Send(transfer) => match (self.streams_of(transfer), sending) {
                (Some([from, to]), Sending::Begins) => {
                    let turn = |stream: usize| self.turns[stream][state.turns[stream]] == transfer;
                    (self.issue != Issue::InOrder || turn(from) && turn(to)).then_some(())?;
                    if self.issue == Issue::InOrder {
                        let transfers = state.turns[from];
                        next.computes[host].push_back(Work::Settle { stream: from, transfers });
                    }
                    next.streams[from].push_back(transfer);
                    sent = Sending::SendSubmitted;
                    if self.issue == Issue::Paired {
                        next.streams[to].push_back(transfer);
                        sent = Sending::ReceiveSubmitted;
                    }
                }
                (Some([from, to]), Sending::SendSubmitted) => {
                    next.streams[to].push_back(transfer);
                    next.turns[from] += 1;
                    next.turns[to] += 1;
                    sent = Sending::ReceiveSubmitted;
                }
                _ => {
                    let full = self.handled(state, transfer, true) - self.handled(state, transfer, false);
                    (full < self.plan.capacity()).then_some(())?;
                }
            },
        }
        next.hosts[host] = if sent == Sending::Begins { (at + 1, sent) } else { (at, sent) };
        self.run_devices(&mut next);
        Some(next)
    }

    /// As far as devices come. What can be done may as well be done at once: it never keeps anything else from being done.
    fn run_devices(&self, state: &mut State) {
        loop {
            let transfer = state.streams.iter().filter_map(|stream| stream.front()).copied().find(|&transfer| {
                let meets = |stream: usize| state.streams[stream].front() == Some(&transfer);
                self.streams_of(transfer).is_some_and(|streams| streams.into_iter().all(meets))
                    && !self.computing(state, transfer)
            });
            if let Some(transfer) = transfer {
                for stream in self.streams_of(transfer).into_iter().flatten() {
                    state.streams[stream].pop_front();
                }
                continue;
            }
            let waits = |work: Work| {
                let action = match work {
                    Work::Action(action) => action,
                    Work::Settle { stream, transfers } => {
                        return state.turns[stream].saturating_sub(state.streams[stream].len()) < transfers;
                    }
                };
                let needed = match action.compute {
                    Compute::Forward => action.stage.checked_sub(1).map(|from| (from, Carried::Activation)),
                    Compute::Backward | Compute::InputGradient => Some((action.stage + 1, Carried::Gradient)),
                    Compute::WeightGradient => None,
                };
                needed.is_some_and(|(from, carried)| {
                    let needed = Transfer { from, carried, micro_batch: action.micro_batch };
                    state.streams.iter().any(|stream| stream.contains(&needed))
                })
            };
            let worker = (0..state.computes.len())
                .find(|&worker| state.computes[worker].front().is_some_and(|work| !waits(*work)));
            match worker {
                Some(worker) => drop(state.computes[worker].pop_front()),
                None => return,
            }
        }
    }

    /// Whether what a transfer carries is not yet computed.
    fn computing(&self, state: &State, Transfer { from, carried, micro_batch }: Transfer) -> bool {
        let makes = |action: &Action| {
            let made = match action.compute {
                Compute::Forward => carried == Carried::Activation,
                Compute::Backward | Compute::InputGradient => carried == Carried::Gradient,
                Compute::WeightGradient => false,
            };
            made && (action.stage, action.micro_batch) == (from, micro_batch)
        };
        state.computes.iter().flatten().any(|work| matches!(work, Work::Action(action) if makes(action)))
    }

    /// Whether everything is done where no host can move.
    fn completed(&self, state: &State) -> bool {
        let hosts = state.hosts.iter().zip(&self.rows).all(|((at, _), row)| *at == row.len());
        hosts && state.streams.iter().all(VecDeque::is_empty) && state.computes.iter().all(VecDeque::is_empty)
    }

    /// All interleavings of the hosts: how many moments there are, and how many of them are deadlocks.
    fn explored(&self) -> (usize, usize) {
        let (mut seen, mut open, mut deadlocks) = (HashSet::new(), vec![self.begin()], 0);
        while let Some(state) = open.pop() {
            if !seen.insert(state.clone()) {
                continue;
            }
            let nexts: Vec<_> = (0..self.rows.len()).filter_map(|host| self.after(&state, host)).collect();
            deadlocks += usize::from(nexts.is_empty() && !self.completed(&state));
            open.extend(nexts);
        }
        (seen.len(), deadlocks)
    }

    /// One interleaving by chance: whether it completes.
    fn completes(&self, chance: &mut TestRng) -> bool {
        let mut state = self.begin();
        loop {
            let nexts: Vec<_> = (0..self.rows.len()).filter_map(|host| self.after(&state, host)).collect();
            if nexts.is_empty() {
                return self.completed(&state);
            }
            state = nexts[chance.random_range(0..nexts.len())].clone();
        }
    }
}

/// All interleavings of small machines.
#[test]
fn unordered_transfers_deadlock_in_some_interleavings_and_ordered_ones_in_none() {
    for (schedule, stages, micro_batches) in [
        (&OneFOneB as &dyn Schedule, 2, 3),
        (&OneFOneB, 3, 3),
        (&GPipe, 2, 3),
        (&GPipe, 3, 3),
        (&Interleaved { chunks: 2 }, 4, 2),
    ] {
        let explore = |issue| Machine::new(checked(schedule, stages, micro_batches), issue).explored();
        let [(free, deadlocks), (_, paired), (ordered, none)] =
            [Issue::Freely, Issue::Paired, Issue::InOrder].map(explore);
        println!(
            "{}, {stages} stages, M = {micro_batches}: {free} moments, {deadlocks} deadlocks; in order {ordered}, {none}",
            schedule.name()
        );
        // GPipe's activations are across before a gradient comes back.
        assert_eq!(deadlocks > 0, schedule.name() != "gpipe", "{}", schedule.name());
        assert_eq!((paired, none), (0, 0), "{}", schedule.name());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn ordered_transfers_never_deadlock(
        schedule in 0..SCHEDULES.len(),
        stages in 2_usize..7,
        micro_batches in 1_usize..9,
        tight: bool,
        chance in any::<u64>().prop_perturb(|_, chance| chance),
    ) {
        let schedule = SCHEDULES[schedule];
        let Ok(plan) = schedule.plan(stages, micro_batches) else { return Ok(()) };
        let Ok(roomy) = check(plan.clone(), micro_batches) else { return Ok(()) };
        let capacity = if tight { roomy.least_capacity().max(1) } else { micro_batches };
        let machine = Machine::new(check(plan, capacity).unwrap(), Issue::InOrder);
        let mut chance = chance;
        for _ in 0..5 {
            prop_assert!(machine.completes(&mut chance), "{} P={stages} M={micro_batches} at {capacity}", schedule.name());
        }
    }
}
