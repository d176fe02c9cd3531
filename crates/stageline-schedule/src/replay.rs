//! One run of a plan: to its end, or to a deadlock with its reason.
//!
//! Every worker takes its instructions in order; a receive waits for its message, a send for room in its channel. That
//! is a network of sequential processes on bounded first-in first-out channels (Kahn, 1974), so whether it completes
//! does not depend on how long anything takes: one run at any costs decides it for all. A worker is looked at only when
//! what it waits for has come, so a run takes time linear in the number of actions. Where transfers take turns on
//! streams, workers are looked at in the order of time, so that the first to come is the first served.

use std::collections::VecDeque;

use crate::action::Action;
use crate::costs::{Costs, Transfers};
use crate::deadlock::{Blocked, Deadlock};
use crate::lower::{Carried, Instruction, Transfer, around};
use crate::placement::Placement;
use crate::plan::Plan;
use crate::ready::Ready;

/// One compute's place in time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    /// The compute.
    pub action: Action,
    /// When it begins, from the start of the step.
    pub start: f64,
    /// When it ends.
    pub end: f64,
}

/// Who wants to know what happens in a run.
pub(crate) trait Observer {
    /// A worker has computed.
    fn computed(&mut self, _worker: usize, _span: Span) {}
    /// A transfer was sent, at this time. Causes are told before their effects.
    fn sent(&mut self, _transfer: Transfer, _time: f64) {}
}

/// Nobody: whether the run completes is enough.
impl Observer for () {}

/// Runs a plan at a channel capacity (0 is a rendezvous).
pub(crate) fn replay(
    plan: &Plan,
    capacity: usize,
    costs: &Costs,
    observer: &mut impl Observer,
) -> Result<(), Deadlock> {
    let channel = || Channel { room: capacity, ..Channel::default() };
    let mut run = Run {
        plan,
        placement: plan.placement(),
        capacity,
        costs,
        workers: vec![Worker::default(); plan.workers()],
        channels: (0..2 * plan.stages()).map(|_| channel()).collect(),
        streams: vec![0.0; plan.workers()],
        links: vec![0.0; 2 * plan.stages()],
        ready: Ready::new(costs.transfers()),
    };
    for worker in (0..plan.workers()).rev() {
        run.ready.push(worker, 0.0);
    }
    while let Some(worker) = run.ready.pop() {
        run.advance(worker, observer);
    }
    run.finish()
}

/// One direction of one boundary.
#[derive(Default)]
struct Channel {
    /// What is in it, with the time at which it can be taken.
    messages: VecDeque<(usize, f64)>,
    /// Room that was never used.
    room: usize,
    /// Since when there is room again, for every message that was taken and not yet replaced.
    freed: VecDeque<f64>,
    /// The worker that waits for room.
    sender: Option<usize>,
    /// The worker that waits for a message.
    receiver: Option<usize>,
}

#[derive(Clone, Default)]
struct Worker {
    /// Its next action, and which of the three instructions around it comes next.
    action: usize,
    phase: usize,
    now: f64,
}

/// How far a worker came with an instruction.
enum Progress {
    /// It is done, at this time.
    Done(f64),
    /// It can be done at this later time.
    Later(f64),
    /// It waits for another worker.
    Blocked,
}

struct Run<'a> {
    plan: &'a Plan,
    placement: Placement,
    capacity: usize,
    costs: &'a Costs,
    workers: Vec<Worker>,
    channels: Vec<Channel>,
    /// When each worker's communication stream is free.
    streams: Vec<f64>,
    /// When each direction of each boundary's link is free.
    links: Vec<f64>,
    ready: Ready,
}

impl Run<'_> {
    /// Takes one worker as far as it gets.
    fn advance(&mut self, worker: usize, observer: &mut impl Observer) {
        while let Some(&action) = self.plan.rows()[worker].get(self.workers[worker].action) {
            let instructions = around(action, self.plan.stages());
            while let Some(&instruction) = instructions.get(self.workers[worker].phase) {
                let start = self.workers[worker].now;
                if self.ready.another_first(start) {
                    return self.ready.push(worker, start);
                }
                let progress = match instruction {
                    None => Progress::Done(start),
                    Some(Instruction::Compute(action)) => {
                        let end = start + self.costs.of(action);
                        observer.computed(worker, Span { action, start, end });
                        Progress::Done(end)
                    }
                    Some(Instruction::Send(transfer)) => self.send(worker, transfer, observer),
                    Some(Instruction::Receive(transfer)) => self.receive(worker, transfer),
                };
                match progress {
                    Progress::Done(end) => {
                        self.workers[worker].now = end;
                        self.workers[worker].phase += 1;
                    }
                    Progress::Later(time) => self.workers[worker].now = time,
                    Progress::Blocked => return,
                }
            }
            self.workers[worker].phase = 0;
            self.workers[worker].action += 1;
        }
    }

    fn channel(&mut self, transfer: Transfer) -> &mut Channel {
        &mut self.channels[channel_of(transfer)]
    }

    fn wake(&mut self, worker: Option<usize>) {
        if let Some(worker) = worker {
            self.ready.push(worker, self.workers[worker].now);
        }
    }

    /// Puts the message into the channel, if there is room for it.
    fn send(&mut self, worker: usize, transfer: Transfer, observer: &mut impl Observer) -> Progress {
        let Some(room) = self.room(transfer) else {
            self.channel(transfer).sender = Some(worker);
            return Progress::Blocked;
        };
        let done = self.workers[worker].now.max(room);
        let arrival = self.arrival(worker, transfer, done);
        let channel = self.channel(transfer);
        channel.messages.push_back((transfer.micro_batch, arrival));
        let receiver = channel.receiver.take();
        self.wake(receiver);
        observer.sent(transfer, done);
        Progress::Done(done)
    }

    /// When a message that is sent at `sent` can be taken.
    fn arrival(&mut self, worker: usize, transfer: Transfer, sent: f64) -> f64 {
        let receiver = self.placement.worker(transfer.to());
        if receiver == worker {
            return sent;
        }
        let (latency, occupies) = (self.costs.latency(transfer), self.costs.occupies(transfer));
        match self.costs.transfers() {
            Transfers::Asynchronous => {
                let link = &mut self.links[channel_of(transfer)];
                *link = sent.max(*link) + occupies;
                *link + latency
            }
            Transfers::Serialised => {
                let end = sent.max(self.streams[worker]).max(self.streams[receiver]) + occupies + latency;
                (self.streams[worker], self.streams[receiver]) = (end, end);
                end
            }
        }
    }

    /// Since when there is room for a message; taken, if there is.
    fn room(&mut self, transfer: Transfer) -> Option<f64> {
        if self.capacity == 0 {
            // A rendezvous: the receiver must stand at the matching receive.
            let receiver = self.channel(transfer).receiver?;
            let waits = self.instruction(receiver) == Some(Instruction::Receive(transfer));
            return waits.then(|| self.workers[receiver].now);
        }
        let channel = self.channel(transfer);
        if channel.room > 0 {
            channel.room -= 1;
            return Some(0.0);
        }
        channel.freed.pop_front()
    }

    /// Takes the message, if it is the next one in its channel.
    fn receive(&mut self, worker: usize, transfer: Transfer) -> Progress {
        let now = self.workers[worker].now;
        let rendezvous = self.capacity == 0;
        let channel = self.channel(transfer);
        match channel.messages.front() {
            Some(&(micro_batch, _)) if micro_batch != transfer.micro_batch => Progress::Blocked,
            Some(&(_, arrival)) if arrival > now => Progress::Later(arrival),
            Some(_) => {
                channel.messages.pop_front();
                if !rendezvous {
                    channel.freed.push_back(now);
                }
                let sender = channel.sender.take();
                self.wake(sender);
                Progress::Done(now)
            }
            None => {
                channel.receiver = Some(worker);
                let sender = if rendezvous { channel.sender.take() } else { None };
                self.wake(sender);
                Progress::Blocked
            }
        }
    }

    /// Where a worker stands, if it has not finished.
    fn instruction(&self, worker: usize) -> Option<Instruction> {
        let Worker { action, phase, .. } = self.workers[worker];
        let &action = self.plan.rows()[worker].get(action)?;
        around(action, self.plan.stages())[phase..].iter().flatten().next().copied()
    }

    fn finish(self) -> Result<(), Deadlock> {
        let stuck = |worker| {
            let at = self.instruction(worker)?;
            Some(Blocked { worker, action: self.workers[worker].action, at, found: self.head(at) })
        };
        let blocked: Vec<_> = (0..self.workers.len()).filter_map(stuck).collect();
        if blocked.is_empty() { Ok(()) } else { Err(Deadlock { blocked }) }
    }

    fn head(&self, at: Instruction) -> Option<usize> {
        let Instruction::Receive(transfer) = at else { return None };
        Some(self.channels[channel_of(transfer)].messages.front()?.0)
    }
}

/// Where a transfer's channel stands among all: two a stage, by what it sends.
fn channel_of(transfer: Transfer) -> usize {
    2 * transfer.from + usize::from(transfer.carried == Carried::Gradient)
}
