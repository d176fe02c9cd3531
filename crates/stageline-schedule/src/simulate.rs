//! A lowered plan and its costs become a timeline, or a deadlock with its reason.
//!
//! Every worker takes its instructions in order; a receive waits for its message, a send for room in its channel. That
//! is a network of sequential processes on bounded first-in first-out channels (Kahn, 1974), so whether it completes
//! does not depend on how long anything takes: one run at any costs decides it for all.

use std::collections::HashMap;
use std::fmt;

use crate::action::{Action, Compute};
use crate::lower::{Carried, Instruction, Lowered, Transfer};

/// What one stage's computes take, in any one unit of time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StageCost {
    /// A forward.
    pub forward: f64,
    /// The input-gradient half of a backward.
    pub input_gradient: f64,
    /// The weight-gradient half of a backward.
    pub weight_gradient: f64,
}

/// What a plan's computes and transfers take, in any one unit of time.
#[derive(Clone, Debug, PartialEq)]
pub struct Costs {
    /// Each stage's computes.
    pub stages: Vec<StageCost>,
    /// From the end of a send to the moment its receiver can take it. It occupies neither worker.
    pub latency: f64,
}

impl Costs {
    /// The same for all stages, a backward made of two equal halves, transfers free.
    pub fn uniform(stages: usize, forward: f64, backward: f64) -> Self {
        let half = backward / 2.0;
        let cost = StageCost { forward, input_gradient: half, weight_gradient: half };
        Self { stages: vec![cost; stages], latency: 0.0 }
    }

    fn of(&self, action: Action) -> f64 {
        let cost = self.stages[action.stage];
        match action.compute {
            Compute::Forward => cost.forward,
            Compute::Backward => cost.input_gradient + cost.weight_gradient,
            Compute::InputGradient => cost.input_gradient,
            Compute::WeightGradient => cost.weight_gradient,
        }
    }
}

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

/// When everything happens in one step.
#[derive(Clone, Debug, PartialEq)]
pub struct Timeline {
    rows: Vec<Vec<Span>>,
    transfers: Vec<Transfer>,
}

impl Timeline {
    /// Each worker's computes, in order.
    pub fn rows(&self) -> &[Vec<Span>] {
        &self.rows
    }

    /// All transfers in the order in which they were sent.
    ///
    /// This is a linear extension of every worker's list and of every wait between workers.
    pub fn transfers(&self) -> &[Transfer] {
        &self.transfers
    }

    /// The length of the step: the end of its last compute.
    pub fn makespan(&self) -> f64 {
        self.rows.iter().flatten().map(|span| span.end).fold(0.0, f64::max)
    }

    /// The bubble: the share of the total stage time (workers x makespan) in which no compute runs.
    pub fn bubble(&self) -> f64 {
        let total = self.rows.len() as f64 * self.makespan();
        let busy: f64 = self.rows.iter().flatten().map(|span| span.end - span.start).sum();
        if total == 0.0 { 0.0 } else { (total - busy) / total }
    }

    /// The longest span of a worker: from the start of its first compute to the end of its last.
    ///
    /// Steps of workers that need not wait for each other at the flush follow at this distance.
    pub fn span(&self) -> f64 {
        let span =
            |row: &Vec<Span>| row.last().map_or(0.0, |last| last.end) - row.first().map_or(0.0, |first| first.start);
        self.rows.iter().map(span).fold(0.0, f64::max)
    }

    /// The bubble by span, as the Zero Bubble paper defines it: the share of the longest span in which the busiest
    /// worker does not compute (Qi et al., 2023, [arXiv:2401.10241](https://arxiv.org/abs/2401.10241)).
    pub fn span_bubble(&self) -> f64 {
        let busy = |row: &Vec<Span>| row.iter().map(|span| span.end - span.start).sum::<f64>();
        let (span, busy) = (self.span(), self.rows.iter().map(busy).fold(0.0, f64::max));
        if span == 0.0 { 0.0 } else { (span - busy) / span }
    }

    /// The most live micro-batches (forwarded and not yet backwarded) that each worker holds at once.
    pub fn peak_live(&self) -> Vec<usize> {
        let peak = |row: &Vec<Span>| {
            let mut live = 0_usize;
            let counts = row.iter().map(|span| {
                match span.action.compute {
                    Compute::Forward => live += 1,
                    Compute::Backward | Compute::WeightGradient => live = live.saturating_sub(1),
                    Compute::InputGradient => {}
                }
                live
            });
            counts.max().unwrap_or(0)
        };
        self.rows.iter().map(peak).collect()
    }

    /// A picture for people: a line a worker, a column every `slot` units of time; idle is `..`.
    ///
    /// Where every worker has one stage, the stage is said once, at the start of its line.
    ///
    /// # Panics
    /// If `slot` is not positive.
    pub fn grid(&self, slot: f64) -> String {
        assert!(slot > 0.0, "a column of the grid takes {slot} units of time; give more than 0");
        let one_stage = |row: &Vec<Span>| row.iter().all(|span| span.action.stage == row[0].action.stage);
        let short = self.rows.iter().all(one_stage);
        let text = |Action { stage, compute, micro_batch }: Action| match short {
            true => format!("{}{micro_batch}", compute.letter()),
            false => format!("{stage}{}{micro_batch}", compute.letter()),
        };
        let width = self.rows.iter().flatten().map(|span| text(span.action).len()).max().unwrap_or(2);
        let columns = (self.makespan() / slot).round() as usize;
        let mut picture = String::new();
        for (worker, row) in self.rows.iter().enumerate() {
            picture += if short { "stage" } else { "worker" };
            picture += &format!(" {worker}");
            for column in 0..columns {
                let middle = (column as f64 + 0.5) * slot;
                let running = row.iter().find(|span| span.start <= middle && middle < span.end);
                let cell = running.map_or_else(|| ".".repeat(width), |span| text(span.action));
                picture += &format!(" {cell:<width$}");
            }
            picture.truncate(picture.trim_end().len());
            picture.push('\n');
        }
        picture
    }
}

/// What one worker waits for when nothing can go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// The worker.
    pub worker: usize,
    /// The instruction that it cannot finish.
    pub at: Instruction,
    /// The message at the head of the channel it receives from, where that is not the one it wants.
    pub found: Option<usize>,
}

impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "worker {} at {} waits for ", self.worker, self.at)?;
        match (self.at, self.found) {
            (Instruction::Compute(_), _) => write!(f, "nothing"),
            (Instruction::Send(transfer), _) => write!(f, "room in the channel to stage {}", transfer.to()),
            (Instruction::Receive(transfer), None) => write!(f, "stage {} to send it", transfer.from),
            (Instruction::Receive(transfer), Some(found)) => {
                write!(f, "stage {} to send it, but micro-batch {found} came first", transfer.from)
            }
        }
    }
}

/// No worker can go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deadlock {
    /// Every worker that has not finished.
    pub blocked: Vec<Blocked>,
}

impl fmt::Display for Deadlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waits: Vec<_> = self.blocked.iter().map(Blocked::to_string).collect();
        write!(f, "{}", waits.join("; "))
    }
}

impl std::error::Error for Deadlock {}

/// Runs a lowered plan at a channel capacity (0 is a rendezvous) and gives its timeline.
///
/// # Errors
/// [`Deadlock`] where some workers can never finish.
///
/// # Panics
/// If `costs` has fewer stages than the plan.
pub fn simulate(lowered: &Lowered, capacity: usize, costs: &Costs) -> Result<Timeline, Deadlock> {
    let mut run = Run::new(lowered, capacity, costs);
    while (0..run.workers.len()).any(|worker| run.advance(worker)) {}
    run.finish()
}

/// One direction of one boundary.
#[derive(Default)]
struct Channel {
    /// What was sent, with the time at which it can be taken.
    sent: Vec<(usize, f64)>,
    /// When each was taken.
    taken: Vec<f64>,
}

#[derive(Default)]
struct Worker {
    next: usize,
    now: f64,
    spans: Vec<Span>,
}

struct Run<'a> {
    lowered: &'a Lowered,
    capacity: usize,
    costs: &'a Costs,
    workers: Vec<Worker>,
    channels: HashMap<(usize, Carried), Channel>,
    transfers: Vec<(f64, Transfer)>,
}

impl<'a> Run<'a> {
    fn new(lowered: &'a Lowered, capacity: usize, costs: &'a Costs) -> Self {
        let workers = lowered.rows().iter().map(|_| Worker::default()).collect();
        Self { lowered, capacity, costs, workers, channels: HashMap::new(), transfers: Vec::new() }
    }

    fn instruction(&self, worker: usize) -> Option<Instruction> {
        self.lowered.rows()[worker].get(self.workers[worker].next).copied()
    }

    /// Takes one worker as far as it gets; whether it moved at all.
    fn advance(&mut self, worker: usize) -> bool {
        let before = self.workers[worker].next;
        while let Some(instruction) = self.instruction(worker) {
            let now = self.workers[worker].now;
            let done = match instruction {
                Instruction::Compute(action) => {
                    let end = now + self.costs.of(action);
                    self.workers[worker].spans.push(Span { action, start: now, end });
                    Some(end)
                }
                Instruction::Send(transfer) => self.send(now, transfer),
                Instruction::Receive(transfer) => self.receive(now, transfer),
            };
            let Some(done) = done else { break };
            self.workers[worker].now = done;
            self.workers[worker].next += 1;
        }
        self.workers[worker].next > before
    }

    /// When the message is in the channel, if there is room for it.
    fn send(&mut self, now: f64, transfer: Transfer) -> Option<f64> {
        let full = self.capacity;
        let ready = if full == 0 { Some(self.waiting_receiver(transfer)?) } else { None };
        let channel = self.channels.entry((transfer.from, transfer.carried)).or_default();
        let room = match (ready, channel.sent.len().checked_sub(full)) {
            (Some(receiver), _) => receiver,
            (None, Some(oldest)) => *channel.taken.get(oldest)?,
            (None, None) => 0.0,
        };
        let done = now.max(room);
        channel.sent.push((transfer.micro_batch, done + self.costs.latency));
        self.transfers.push((done, transfer));
        Some(done)
    }

    /// For a rendezvous: since when the receiver has stood at the matching receive.
    fn waiting_receiver(&self, transfer: Transfer) -> Option<f64> {
        let wanted = Some(Instruction::Receive(transfer));
        let receiver = (0..self.workers.len()).find(|&worker| self.instruction(worker) == wanted)?;
        Some(self.workers[receiver].now)
    }

    /// When the message is taken, if it is the next one in its channel.
    fn receive(&mut self, now: f64, transfer: Transfer) -> Option<f64> {
        let channel = self.channels.get_mut(&(transfer.from, transfer.carried))?;
        let &(micro_batch, arrival) = channel.sent.get(channel.taken.len())?;
        if micro_batch != transfer.micro_batch {
            return None;
        }
        let done = now.max(arrival);
        channel.taken.push(done);
        Some(done)
    }

    fn finish(mut self) -> Result<Timeline, Deadlock> {
        let stuck = (0..self.workers.len()).filter_map(|worker| Some((worker, self.instruction(worker)?)));
        let blocked: Vec<_> = stuck.map(|(worker, at)| Blocked { worker, at, found: self.head(at) }).collect();
        if !blocked.is_empty() {
            return Err(Deadlock { blocked });
        }
        // Stable, and every send comes after its causes in the list, so causes stay first at equal times.
        self.transfers.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        Ok(Timeline {
            rows: self.workers.into_iter().map(|worker| worker.spans).collect(),
            transfers: self.transfers.into_iter().map(|(_, transfer)| transfer).collect(),
        })
    }

    fn head(&self, at: Instruction) -> Option<usize> {
        let Instruction::Receive(transfer) = at else { return None };
        let channel = self.channels.get(&(transfer.from, transfer.carried))?;
        Some(channel.sent.get(channel.taken.len())?.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lower::lower;
    use crate::plan::Plan;

    #[test]
    fn the_grid_names_stages_where_a_worker_has_several() {
        let plan = Plan::from_csv("0F0,2F0,2B0,0B0\n1F0,3F0,3B0,1B0\n").unwrap();
        let timeline = simulate(&lower(&plan), 1, &Costs::uniform(4, 1.0, 1.0)).unwrap();
        let picture = "\
worker 0 0F0 ... 2F0 ... ... 2B0 ... 0B0
worker 1 ... 1F0 ... 3F0 3B0 ... 1B0 ...
";
        assert_eq!(timeline.grid(1.0), picture);
    }
}
