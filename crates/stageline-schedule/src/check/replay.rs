//! Replays a plan: runs it on simulated workers until it ends or deadlocks. A deadlock is reported with the blocked
//! workers.
//!
//! Every worker runs its instructions in order. A receive waits for its message, and a send waits for room in its
//! channel. Workers and channels form a network of sequential processes on bounded first-in first-out channels (Kahn,
//! 1974). Whether such a network deadlocks does not depend on timing, so one run with any costs shows whether the plan
//! deadlocks.
//!
//! A blocked worker is visited again only when its message has been sent or its channel has a free slot, so a replay
//! takes time linear in the number of actions. If transfers are serialised on communication streams, workers are
//! visited in the order of their simulated time: first come, first served.

use std::collections::VecDeque;

use super::deadlock::{Blocked, Deadlock};
use super::links::Links;
use super::ready::Ready;
use crate::costs::{Costs, Transfers};
use crate::plan::{Action, Instruction, Placement, Plan, Transfer, around};

/// An action of a worker, such as a forward pass, with its simulated start and end. Times are in the time unit of the
/// simulation's costs, such as milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    /// The action that the worker runs: a forward or backward pass, or the input or weight gradient of a split backward
    /// pass.
    pub action: Action,
    /// The simulated time when the action begins, counted from the start of the step, in the costs' time unit (such as
    /// ms).
    pub start: f64,
    /// The simulated time when the action ends, counted from the start of the step, in the costs' time unit (such as
    /// ms).
    pub end: f64,
}

/// Callbacks for a replay (a simulated run of a plan), which reports every forward pass, backward pass and send.
pub(crate) trait Observer {
    /// Receives each action, such as a forward pass, that the simulated worker `_worker` runs. `_span` has the action,
    /// its start and its end.
    fn computed(&mut self, _worker: usize, _span: Span) {}
    /// Receives each send by a simulated worker, with its simulated time `_time`. All sends on which this send depends
    /// are reported first.
    fn sent(&mut self, _transfer: Transfer, _time: f64) {}
}

/// Ignores everything that a replay reports, for callers that only test whether a plan deadlocks.
impl Observer for () {}

/// Runs a plan on simulated workers, and reports every action and send to `observer`. Each channel between two stages
/// holds `capacity` micro-batches. With capacity 0, a sender waits until the receiver takes the message. Returns a
/// deadlock as an error.
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

/// A simulated FIFO channel, which carries messages from a stage to one of its neighbouring stages.
#[derive(Default)]
struct Channel {
    /// Messages in this simulated channel: the index of each micro-batch, and the simulated time of its arrival.
    messages: VecDeque<(usize, f64)>,
    /// Number of message slots in this simulated channel that have never been used. Slots that were used and are free
    /// again are listed in `freed`.
    room: usize,
    /// Simulated times at which used message slots of this channel became free again, earliest first.
    freed: VecDeque<f64>,
    /// Index of the simulated worker that waits to send on this channel; `None` if no worker does.
    sender: Option<usize>,
    /// Index of the simulated worker that waits for a message from this channel; `None` if no worker does.
    receiver: Option<usize>,
}

#[derive(Clone, Default)]
struct Worker {
    /// Zero-based index of the current action in the simulated worker's list of actions.
    action: usize,
    /// Next phase of the simulated worker's current action: 0 receives its input, 1 computes, 2 sends its result.
    phase: usize,
    now: f64,
}

/// The result of a simulated worker's attempt to run an instruction, such as a send.
enum Attempt {
    /// The instruction has finished. The value is its simulated end time.
    Done(f64),
    /// The instruction waits for a message in flight. The worker tries again at this simulated time, when the message
    /// arrives.
    Later(f64),
    /// The worker is blocked until another worker acts: its send finds the channel full, or its receive finds no
    /// message.
    Blocked,
}

struct Run<'a> {
    plan: &'a Plan,
    placement: Placement,
    capacity: usize,
    costs: &'a Costs,
    workers: Vec<Worker>,
    channels: Vec<Channel>,
    /// For each worker, the simulated time at which its communication stream (queue of transfers) is free. Only
    /// serialised transfers use it.
    streams: Vec<f64>,
    links: Links,
    ready: Ready,
}

impl Run<'_> {
    /// Runs a simulated worker's instructions until one of them blocks, the list ends, or another worker has an earlier
    /// simulated time and must advance first.
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

    /// Simulates a send: puts the message into the channel if the channel has a free slot. Without a free slot, the
    /// sender is blocked.
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

    /// Returns the simulated arrival time of the message of `transfer`, if `worker` sends it at the simulated time
    /// `sent`.
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

    /// Reserves a message slot in the channel of `transfer`, and returns the simulated time from which the slot is
    /// free. Returns `None` if the channel is full.
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

    /// Simulates a receive: takes the message out of the channel if the message is at the head and has arrived. A
    /// message at the head that is still in flight makes the worker wait until it arrives. If the head has another
    /// message, or the channel is empty, the worker is blocked.
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

    /// Ends the simulated run of a plan. Returns a deadlock as an error if a worker has not run all its actions.
    fn finish(self) -> Result<(), Deadlock> {
        let blocked = |worker| {
            let at = self.instruction(worker)?;
            Some(Blocked { worker, action: self.workers[worker].action, at, found: self.head(at) })
        };
        let blocked: Vec<_> = (0..self.workers.len()).filter_map(blocked).collect();
        if blocked.is_empty() { Ok(()) } else { Err(Deadlock { blocked }) }
    }

    /// Returns the index of the micro-batch at the head of the channel that the receive `at` reads. `None` if the
    /// channel is empty, or `at` is not a receive.
    fn head(&self, at: Instruction) -> Option<usize> {
        let Instruction::Receive(transfer) = at else { return None };
        Some(self.channels[transfer.channel()].messages.front()?.0)
    }
}
