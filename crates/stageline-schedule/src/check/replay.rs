//! Replay: runs a plan on simulated workers, to its end or to a deadlock with its cause.
//!
//! Every worker runs its instructions in order. A receive waits for its message, and a send waits for room in its
//! channel. This is a network of sequential processes on bounded first-in first-out channels (Kahn, 1974). Whether such
//! a network completes does not depend on costs, so one run at any costs decides it for all.
//!
//! A worker is visited only when the message or the room that it waits for is there, so the time of a run is linear in
//! the number of actions. If transfers are serialised on streams, workers are visited in the order of time: first come,
//! first served.

use std::collections::VecDeque;

use super::deadlock::{Blocked, Deadlock};
use super::links::Links;
use super::ready::Ready;
use crate::costs::{Costs, Transfers};
use crate::plan::{Action, Instruction, Placement, Plan, Transfer, around};

/// An action of a worker, such as a forward pass, with its simulated start and end. Times are in the unit of the costs
/// that the simulation was given, such as milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    /// The action that a worker runs in a simulated time span: a forward pass, a backward pass or half of a backward
    /// pass.
    pub action: Action,
    /// The simulated time when a worker begins an action, from the start of the step, in the unit of the costs.
    pub start: f64,
    /// The simulated time when a worker ends an action, from the start of the step, in the unit of the costs.
    pub end: f64,
}

/// An observer of a replay, which is a simulated run of a plan. The replay reports every forward pass, backward pass
/// and send to its observer.
pub(crate) trait Observer {
    /// Receives the report that a simulated worker has run an action, such as a forward pass, with its start and end.
    fn computed(&mut self, _worker: usize, _span: Span) {}
    /// Receives the report that a simulated worker has sent a transfer, with the time of the send. All sends that this
    /// send depends on are reported before it.
    fn sent(&mut self, _transfer: Transfer, _time: f64) {}
}

/// An observer that ignores all reports of a simulated run, for callers that only ask whether a plan completes.
impl Observer for () {}

/// Replays a plan: runs it on simulated workers, and reports every event to the observer. Each channel between two
/// stages stores `capacity` micro-batches. With capacity 0, a sender waits until the receiver takes the message.
/// Returns a deadlock as an error.
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
        links: Links::new(&plan.placement()),
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

/// A simulated channel. It carries messages from a stage to one of its neighbouring stages.
#[derive(Default)]
struct Channel {
    /// The messages in a simulated channel: the index of each micro-batch, and the simulated time from which it can be
    /// received.
    messages: VecDeque<(usize, f64)>,
    /// The number of message slots of a simulated channel that have never been used. Slots that were used and are free
    /// again are listed in `freed`.
    room: usize,
    /// The simulated times at which used message slots of a channel became free again, earliest first.
    freed: VecDeque<f64>,
    /// The index of the simulated worker that waits to send on this channel; `None` if no worker does.
    sender: Option<usize>,
    /// The index of the simulated worker that waits for a message from this channel; `None` if no worker does.
    receiver: Option<usize>,
}

#[derive(Clone, Default)]
struct Worker {
    /// The index of the worker's next action in its list of actions.
    action: usize,
    /// The next part of the worker's current action: 0 is the receive of its input, 1 the computation, 2 the send of
    /// its result.
    phase: usize,
    now: f64,
}

/// The result of a simulated worker's attempt to run an instruction, such as a send.
enum Attempt {
    /// A simulated worker has finished an instruction. The value is the simulated time at which the instruction ended.
    Done(f64),
    /// A simulated worker cannot run an instruction yet. The value is the simulated time from which it can.
    Later(f64),
    /// A simulated worker is blocked: its send finds no room in the channel, or its receive finds no message.
    Blocked,
}

struct Run<'a> {
    plan: &'a Plan,
    placement: Placement,
    capacity: usize,
    costs: &'a Costs,
    workers: Vec<Worker>,
    channels: Vec<Channel>,
    /// The simulated time at which each worker's communication stream (its queue of transfers) becomes free.
    streams: Vec<f64>,
    links: Links,
    ready: Ready,
}

impl Run<'_> {
    /// Runs the instructions of a simulated worker, until one of them blocks or the list ends. It also stops if another
    /// worker has an earlier simulated time, because that worker must advance first.
    fn advance(&mut self, worker: usize, observer: &mut impl Observer) {
        while let Some(&action) = self.plan.rows()[worker].get(self.workers[worker].action) {
            let instructions = around(action, self.plan.stages());
            while let Some(&instruction) = instructions.get(self.workers[worker].phase) {
                let start = self.workers[worker].now;
                if self.ready.has_earlier_than(start) {
                    return self.ready.push(worker, start);
                }
                let attempt = match instruction {
                    None => Attempt::Done(start),
                    Some(Instruction::Compute(action)) => {
                        let end = start + self.costs.action(action);
                        observer.computed(worker, Span { action, start, end });
                        Attempt::Done(end)
                    }
                    Some(Instruction::Send(transfer)) => self.send(worker, transfer, observer),
                    Some(Instruction::Receive(transfer)) => self.receive(worker, transfer),
                };
                match attempt {
                    Attempt::Done(end) => {
                        self.workers[worker].now = end;
                        self.workers[worker].phase += 1;
                    }
                    Attempt::Later(time) => self.workers[worker].now = time,
                    Attempt::Blocked => return,
                }
            }
            self.workers[worker].phase = 0;
            self.workers[worker].action += 1;
        }
    }

    fn channel(&mut self, transfer: Transfer) -> &mut Channel {
        &mut self.channels[transfer.channel()]
    }

    fn wake(&mut self, worker: Option<usize>) {
        if let Some(worker) = worker {
            self.ready.push(worker, self.workers[worker].now);
        }
    }

    /// Simulates a send: puts the message into the channel if it has room. Otherwise the sending worker is blocked.
    fn send(&mut self, worker: usize, transfer: Transfer, observer: &mut impl Observer) -> Attempt {
        let Some(room) = self.room(transfer) else {
            self.channel(transfer).sender = Some(worker);
            return Attempt::Blocked;
        };
        let done = self.workers[worker].now.max(room);
        let arrival = self.arrival(worker, transfer, done);
        let channel = self.channel(transfer);
        channel.messages.push_back((transfer.micro_batch, arrival));
        let receiver = channel.receiver.take();
        self.wake(receiver);
        observer.sent(transfer, done);
        Attempt::Done(done)
    }

    /// Returns the simulated time from which a message can be received. `worker` sends it at the simulated time `sent`.
    fn arrival(&mut self, worker: usize, transfer: Transfer, sent: f64) -> f64 {
        let receiver = self.placement.worker(transfer.to());
        if receiver == worker {
            return sent;
        }
        match self.costs.transfers() {
            Transfers::Asynchronous => self.links.arrival(self.costs, transfer, sent),
            Transfers::Serialised => {
                let takes = self.costs.occupies(transfer) + self.costs.latency(transfer);
                let end = sent.max(self.streams[worker]).max(self.streams[receiver]) + takes;
                (self.streams[worker], self.streams[receiver]) = (end, end);
                end
            }
        }
    }

    /// Reserves a slot for a message in a channel. Returns the simulated time from which the slot is free; `None` if
    /// the channel is full.
    fn room(&mut self, transfer: Transfer) -> Option<f64> {
        if self.capacity == 0 {
            // With capacity 0 (rendezvous), the receiver must already wait at the matching receive.
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

    /// Simulates a receive: takes the message out of the channel if it is at the head and has arrived. If it is at the
    /// head but still in flight, the worker waits for its arrival. Otherwise the worker is blocked.
    fn receive(&mut self, worker: usize, transfer: Transfer) -> Attempt {
        let now = self.workers[worker].now;
        let rendezvous = self.capacity == 0;
        let channel = self.channel(transfer);
        match channel.messages.front() {
            Some(&(micro_batch, _)) if micro_batch != transfer.micro_batch => Attempt::Blocked,
            Some(&(_, arrival)) if arrival > now => Attempt::Later(arrival),
            Some(_) => {
                channel.messages.pop_front();
                if !rendezvous {
                    channel.freed.push_back(now);
                }
                let sender = channel.sender.take();
                self.wake(sender);
                Attempt::Done(now)
            }
            None => {
                channel.receiver = Some(worker);
                let sender = if rendezvous { channel.sender.take() } else { None };
                self.wake(sender);
                Attempt::Blocked
            }
        }
    }

    /// Returns the instruction that a simulated worker runs next: a forward or backward pass, a send, or a receive.
    /// Returns `None` if the worker has run all its instructions.
    fn instruction(&self, worker: usize) -> Option<Instruction> {
        let Worker { action, phase, .. } = self.workers[worker];
        let &action = self.plan.rows()[worker].get(action)?;
        around(action, self.plan.stages())[phase..].iter().flatten().next().copied()
    }

    /// Ends a replay of a plan. Returns a deadlock as an error if a worker has not run all its actions.
    fn finish(self) -> Result<(), Deadlock> {
        let blocked = |worker| {
            let at = self.instruction(worker)?;
            Some(Blocked { worker, action: self.workers[worker].action, at, found: self.head(at) })
        };
        let blocked: Vec<_> = (0..self.workers.len()).filter_map(blocked).collect();
        if blocked.is_empty() { Ok(()) } else { Err(Deadlock { blocked }) }
    }

    /// Returns the micro-batch at the head of the channel from which the instruction `at` receives. `None` if the
    /// channel is empty or `at` is not a receive.
    fn head(&self, at: Instruction) -> Option<usize> {
        let Instruction::Receive(transfer) = at else { return None };
        Some(self.channels[transfer.channel()].messages.front()?.0)
    }
}
