//! A lower bound on the step time of every plan, from each worker's work and memory, and from the transfers on each
//! link.

use std::collections::HashMap;

use crate::costs::Costs;
use crate::plan::{Carried, Placement, Transfer};
use crate::simulate::Memory;

/// Returns a lower bound on the step time of every plan with this placement, in the time unit of `costs`.
///
/// The bound is the largest of three bounds over all workers and links, plus the longest optimizer step:
///
/// - **Work.** Take all forward and backward passes of a worker that cannot begin before time r, and after which at
///   least time q of other work remains. These passes run one after another, so the flush (the end of all forward and
///   backward passes) is at r + the sum of their times + q or later. The bound is the largest such value over all r and
///   q. It is known as the bound of one machine with heads and tails (Carlier, 1982,
///   [doi:10.1016/S0377-2217(82)80007-6](https://doi.org/10.1016/S0377-2217(82)80007-6)).
/// - **Links.** The same bound holds for the transfers from one worker to another, because each of them occupies the
///   link between the two.
/// - **Memory.** The activations of a micro-batch stay in memory at least while it passes all later stages forward and
///   backward. The sum of bytes x time over all micro-batches must fit under the memory limit, from the worker's first
///   forward pass on.
///
/// All three bounds count each backward pass as whole or split, whichever is shorter. The times r and q, and the times
/// in memory, assume that transfers never wait for each other.
///
/// # Panics
/// Panics if `costs` or `memory` has fewer stages than the placement.
pub fn lower_bound(placement: &Placement, micro_batches: usize, costs: &Costs, memory: &Memory) -> f64 {
    if placement.stages() == 0 || micro_batches == 0 {
        return 0.0;
    }
    let mut stages = vec![Stage::default(); placement.stages()];
    for micro_batch in 0..micro_batches {
        add_micro_batch(&mut stages, placement, costs, memory, micro_batch);
    }
    let flush = |owned: &Vec<usize>| {
        let owned: Vec<_> = owned.iter().map(|&stage| stages[stage]).collect();
        let computes = owned.iter().flat_map(|stage| stage.computes).collect();
        flush_by_work(computes).max(flush_by_memory(&owned, memory.limit))
    };
    let mut transfers: HashMap<_, Vec<_>> = HashMap::new();
    for (from, stage) in stages.iter().enumerate() {
        let to = [(from + 1 < stages.len()).then_some(from + 1), from.checked_sub(1)];
        for (to, sends) in to.into_iter().zip(stage.sends).filter_map(|(to, sends)| Some((to?, sends))) {
            transfers.entry((placement.worker(from), placement.worker(to))).or_default().push(sends);
        }
    }
    // Transfers within a worker take no time, so including them keeps the bound valid.
    let by_links = transfers.into_values().map(flush_by_work).fold(0.0, f64::max);
    let optimizer = |owned: &Vec<usize>| owned.iter().map(|&stage| costs.optimizer(stage)).sum();
    let longest = |time: &dyn Fn(&Vec<usize>) -> f64| placement.stages_of().iter().map(time).fold(0.0, f64::max);
    longest(&flush).max(by_links) + longest(&optimizer)
}

/// The times of one kind of action (forward pass, input gradient or weight gradient) on a stage in a step, or of one
/// kind of transfer that the stage sends. They are the total time of these actions or transfers, the least time before
/// the first of them, and the least time after the last. Their sum is a lower bound on the step time.
#[derive(Clone, Copy)]
struct Work {
    /// Earliest time, over all micro-batches, at which a stage can begin an action of this kind (such as a forward
    /// pass) or a transfer. It counts from the start of the step, in the costs' time unit (such as ms).
    head: f64,
    /// Total time that all actions of this kind (such as forward passes) on a stage, or all its transfers of this kind,
    /// take in a step, in the costs' time unit (such as ms).
    work: f64,
    /// Minimum time, over all micro-batches, from the end of an action of this kind (such as a forward pass) or of a
    /// transfer until the flush, in the costs' time unit (such as ms). The flush is the end of all forward and backward
    /// passes of the step.
    tail: f64,
}

impl Work {
    const NONE: Self = Self { head: f64::INFINITY, work: 0.0, tail: f64::INFINITY };

    fn add(&mut self, head: f64, work: f64, tail: f64) {
        *self = Self { head: self.head.min(head), work: self.work + work, tail: self.tail.min(tail) };
    }
}

#[derive(Clone, Copy)]
struct Stage {
    /// The times of a stage's forward passes, input gradients and weight gradients in a step, in this order. Each entry
    /// has the total time, and the least times before and after.
    computes: [Work; 3],
    /// How long a stage's transfers occupy network links in a step: first its activations, then its gradients. Each
    /// entry has the total time, and the least times before and after.
    sends: [Work; 2],
    /// Lower bound on the stage's memory x time in a step: the sum, over all micro-batches, of the memory that a
    /// micro-batch occupies times how long it occupies it. Its unit is the unit of memory times that of the costs.
    memory_time: f64,
}

impl Default for Stage {
    fn default() -> Self {
        Self { computes: [Work::NONE; 3], sends: [Work::NONE; 2], memory_time: 0.0 }
    }
}

/// Adds one micro-batch to each stage's sums for the lower bound on the step time: times of forward and backward passes
/// and of transfers on links, and memory x time. The micro-batch is assumed to pass all stages without waits.
fn add_micro_batch(stages: &mut [Stage], placement: &Placement, costs: &Costs, memory: &Memory, micro_batch: usize) {
    let last = stages.len() - 1;
    let cost = |stage| costs.stage(stage, micro_batch);
    // A backward pass counts as whole or split, whichever is shorter. The code divides it into the part before the
    // gradient is sent, and the rest.
    let input_gradient = |stage| cost(stage).input_gradient.min(cost(stage).backward);
    let weight_gradient = |stage| {
        let split = cost(stage).input_gradient + cost(stage).weight_gradient;
        split.min(cost(stage).backward) - input_gradient(stage)
    };
    let transfer = |from, carried| {
        let transfer = Transfer { from, carried, micro_batch };
        let local = placement.worker(from) == placement.worker(transfer.to());
        if local { (0.0, 0.0) } else { (costs.occupies(transfer), costs.latency(transfer)) }
    };
    let activation = |from| transfer(from, Carried::Activation);
    let gradient = |from| transfer(from, Carried::Gradient);

    // The least times that must follow each stage's input gradient, its forward pass, and their transfers on links.
    let mut after_gradient = vec![weight_gradient(0)];
    let mut after_sends = vec![[0.0; 2]; last + 1];
    for stage in 1..=last {
        let (occupies, latency) = gradient(stage);
        after_sends[stage][1] = latency + input_gradient(stage - 1) + after_gradient[stage - 1];
        after_gradient.push(weight_gradient(stage).max(occupies + after_sends[stage][1]));
    }
    let mut after_forward = vec![input_gradient(last) + after_gradient[last]; last + 1];
    for stage in (0..last).rev() {
        let (occupies, latency) = activation(stage);
        after_sends[stage][0] = latency + cost(stage + 1).forward + after_forward[stage + 1];
        after_forward[stage] = occupies + after_sends[stage][0];
    }

    let mut forwarded = Vec::with_capacity(last + 1);
    let mut now = 0.0;
    for stage in 0..=last {
        forwarded.push(now);
        stages[stage].computes[0].add(now, cost(stage).forward, after_forward[stage]);
        now += cost(stage).forward;
        if stage < last {
            let (occupies, latency) = activation(stage);
            stages[stage].sends[0].add(now, occupies, after_sends[stage][0]);
            now += occupies + latency;
        }
    }
    for stage in (0..=last).rev() {
        let (input, weight) = (input_gradient(stage), weight_gradient(stage));
        stages[stage].computes[1].add(now, input, after_gradient[stage]);
        now += input;
        stages[stage].computes[2].add(now, weight, 0.0);
        let bytes = memory.stages[stage];
        stages[stage].memory_time +=
            bytes.forward * (now - forwarded[stage]) + bytes.forward.min(bytes.input_gradient) * weight;
        if stage > 0 {
            let (occupies, latency) = gradient(stage);
            stages[stage].sends[1].add(now, occupies, after_sends[stage][1]);
            now += occupies + latency;
        }
    }
}

/// Returns a lower bound on the time of the flush (the end of all forward and backward passes), in the costs' time unit
/// (such as ms). `parts` has the compute times of one worker, or the times of the transfers in one direction between
/// two workers.
fn flush_by_work(mut parts: Vec<Work>) -> f64 {
    parts.sort_by(|a, b| b.tail.total_cmp(&a.tail));
    let mut bound = 0.0_f64;
    for head in parts.iter().map(|part| part.head) {
        let mut work = 0.0;
        for inside in parts.iter().filter(|part| part.head >= head) {
            work += inside.work;
            bound = bound.max(head + work + inside.tail);
        }
    }
    bound
}

/// Returns a lower bound on the time of the flush (the end of all forward and backward passes), in the costs' time unit
/// (such as ms). The bound follows from the memory limit `limit` of one worker with the stages `stages`.
fn flush_by_memory(stages: &[Stage], limit: f64) -> f64 {
    let first = stages.iter().map(|stage| stage.computes[0].head).fold(f64::INFINITY, f64::min);
    let memory_time: f64 = stages.iter().map(|stage| stage.memory_time).sum();
    if memory_time > 0.0 { first + memory_time / limit } else { 0.0 }
}
