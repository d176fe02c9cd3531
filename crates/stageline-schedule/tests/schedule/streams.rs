//! Tests a model of hosts that run ahead of their GPUs, to show why transfers between GPUs are issued in the plan's
//! order.
//!
//! - A worker's host thread submits work and does not wait for the device. It waits only for other hosts, through
//!   channels.
//! - A device has one compute stream per worker and one communication stream.
//! - A transfer is submitted as two operations, a send on one stream and a receive on the other, which meet (NCCL).
//!   Each stream runs its operations in order. A transfer runs when it is at the head of both streams and its tensor is
//!   computed.
//! - With ordered issue, the sender's compute stream first waits for all earlier transfers, because the memory of sent
//!   tensors is released then.
//!
//! Hosts never wait for devices, so a deadlock of the devices is visible when all hosts have finished.

use std::collections::{HashSet, VecDeque};

use proptest::prelude::*;
use proptest::test_runner::TestRng;
use stageline_schedule::{
    Action, Carried, Checked, Compute, GPipe, Instruction, Interleaved, OneFOneB, SCHEDULES, Schedule, Transfer, check,
};

use crate::checked;

/// The rule by which the host threads of the modelled GPUs issue transfers to communication streams.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Issue {
    /// A rule for issuing transfers: each host thread issues a transfer as soon as the transfer is its next
    /// instruction.
    Freely,
    /// A rule for issuing transfers: the send and the receive of a transfer are submitted together, with no other
    /// operation in between.
    Paired,
    /// A rule for issuing transfers: every communication stream (queue of transfers) issues its transfers in one order
    /// that is fixed for the whole plan.
    InOrder,
}

/// A model of several GPUs that run a plan. It has the parts that do not change during the run.
struct Machine {
    plan: Checked,
    issue: Issue,
    rows: Vec<Vec<Instruction>>,
    of_stage: Vec<Option<usize>>,
    turns: Vec<Vec<Transfer>>,
}

/// The state of the modelled GPUs and of their host threads at one moment of a run.
#[derive(Clone, PartialEq, Eq, Hash)]
struct State {
    /// The progress of each modelled host thread: the index of its current instruction. During a send, it also tells
    /// which of the transfer's two operations (send and receive) are submitted.
    hosts: Vec<(usize, Sending)>,
    /// The work that is submitted to each modelled GPU's compute stream and not yet done.
    computes: Vec<VecDeque<Work>>,
    /// The transfers that are submitted to each modelled communication stream and not yet done.
    streams: Vec<VecDeque<Transfer>>,
    /// The number of transfers that have been issued on each modelled communication stream, in the plan's order.
    turns: Vec<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Work {
    Action(Action),
    /// Work on a modelled GPU's compute stream: the stream waits until the communication stream `stream` has finished
    /// `transfers` transfers.
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
    /// Makes a model of GPUs that run a plan, with one GPU per worker.
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

    /// Returns the two communication streams (queues of transfers) of a transfer between two modelled GPUs. Returns
    /// `None` for a transfer within one GPU.
    fn streams_of(&self, transfer: Transfer) -> Option<[usize; 2]> {
        let (from, to) = (self.of_stage[transfer.from]?, self.of_stage[transfer.to()]?);
        (from != to).then_some([from, to])
    }

    /// Returns the number of messages that have been sent so far through the channel of a transfer, if `sends` is true.
    /// Otherwise returns the number of messages that have been received from it.
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

    /// Returns the state of the modelled GPUs after the next move of a host thread and all GPU work that is then
    /// possible. Returns `None` if the host thread must wait or has finished its list.
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

    /// Runs all work that the modelled GPUs can do now. Running the work immediately hides no deadlock, because the
    /// work of a GPU never prevents other work.
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

    /// Whether the modelled GPUs have not yet computed the activation or gradient that a transfer sends.
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

    /// Whether the modelled GPUs have finished all work. If work remains and no host thread can move, the state is a
    /// deadlock.
    fn completed(&self, state: &State) -> bool {
        let hosts = state.hosts.iter().zip(&self.rows).all(|((at, _), row)| *at == row.len());
        hosts && state.streams.iter().all(VecDeque::is_empty) && state.computes.iter().all(VecDeque::is_empty)
    }

    /// Explores all interleavings of the modelled host threads. Returns the number of states of the modelled GPUs, and
    /// the number of deadlocks among them.
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

    /// Whether the modelled GPUs finish all work in one random interleaving of the host threads.
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

/// Tests small models of GPUs in all interleavings of their host threads. If host threads issue transfers without an
/// order, some interleavings deadlock (except under GPipe). No interleaving deadlocks if transfers are issued in the
/// plan's order, or if the send and the receive of each transfer are submitted together.
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
            "{}, {stages} stages, M = {micro_batches}: {free} states, {deadlocks} deadlocks; in order {ordered}, {none}",
            schedule.name()
        );
        // Under GPipe, all activations have arrived before the first gradient is sent.
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
