//! What no plan can beat.

use crate::costs::Costs;
use crate::lower::{Carried, Transfer};
use crate::memory::Memory;
use crate::placement::Placement;

/// A lower bound on the step of every plan that puts the stages on these workers, for given costs and memory.
///
/// Two reasons, of which the stronger counts, on the worker where it is strongest:
///
/// - **Work.** Take all computes of a worker that cannot begin before time r, because a micro-batch has to come through
///   the stages before, and that leave at least q to be done elsewhere. The worker does them one after the other, so the
///   flush is at r + their sum + q or later. Over all r and q this is the bound of one machine with heads and tails (Carlier,
///   1982, [doi:10.1016/S0377-2217(82)80007-6](https://doi.org/10.1016/S0377-2217(82)80007-6)).
/// - **Memory.** A micro-batch holds its activations at least as long as it takes from its forward through all later
///   stages and back. The sum of bytes x time of all micro-batches must fit under the limit, from the worker's first
///   forward on.
///
/// The backward counts as whole or as split, whichever is less; transfers as if they were alone. The longest optimizer step
/// comes after the flush.
///
/// # Panics
/// If `costs` or `memory` has fewer stages than the placement.
pub fn lower_bound(placement: &Placement, micro_batches: usize, costs: &Costs, memory: &Memory) -> f64 {
    if placement.stages() == 0 || micro_batches == 0 {
        return 0.0;
    }
    let mut stages = vec![Stage::default(); placement.stages()];
    for micro_batch in 0..micro_batches {
        add_micro_batch(&mut stages, placement, costs, memory, micro_batch);
    }
    let flush = |of_worker: &Vec<usize>| {
        let of_worker: Vec<_> = of_worker.iter().map(|&stage| stages[stage]).collect();
        work(of_worker.iter().flat_map(|stage| stage.computes).collect()).max(held(&of_worker, memory.limit))
    };
    let optimizer = |of_worker: &Vec<usize>| of_worker.iter().map(|&stage| costs.optimizer(stage)).sum();
    let longest = |of: &dyn Fn(&Vec<usize>) -> f64| placement.stages_of().iter().map(of).fold(0.0, f64::max);
    longest(&flush) + longest(&optimizer)
}

/// All micro-batches' computes of one kind on one stage.
#[derive(Clone, Copy)]
struct Computes {
    /// The earliest that one of them can begin.
    head: f64,
    /// What they take together.
    work: f64,
    /// The least that has to follow one of them, on whatever worker.
    tail: f64,
}

impl Computes {
    const NONE: Self = Self { head: f64::INFINITY, work: 0.0, tail: f64::INFINITY };

    fn add(&mut self, head: f64, work: f64, tail: f64) {
        *self = Self { head: self.head.min(head), work: self.work + work, tail: self.tail.min(tail) };
    }
}

#[derive(Clone, Copy)]
struct Stage {
    /// F, I and W.
    computes: [Computes; 3],
    /// Bytes x time that its micro-batches hold at least.
    held: f64,
}

impl Default for Stage {
    fn default() -> Self {
        Self { computes: [Computes::NONE; 3], held: 0.0 }
    }
}

/// Adds the computes of one micro-batch, which goes through all stages and back.
fn add_micro_batch(stages: &mut [Stage], placement: &Placement, costs: &Costs, memory: &Memory, micro_batch: usize) {
    let last = stages.len() - 1;
    let cost = |stage| costs.stage(stage, micro_batch);
    // The shares of a whole or a split backward, whichever takes less, that must lie before and may lie after its gradient leaves.
    let input_gradient = |stage| cost(stage).input_gradient.min(cost(stage).backward);
    let weight_gradient = |stage| {
        let split = cost(stage).input_gradient + cost(stage).weight_gradient;
        split.min(cost(stage).backward) - input_gradient(stage)
    };
    let transfer = |from, carried| {
        let transfer = Transfer { from, carried, micro_batch };
        let local = placement.worker(from) == placement.worker(transfer.to());
        if local { 0.0 } else { costs.latency(transfer) }
    };
    let activation = |from| transfer(from, Carried::Activation);
    let gradient = |from| transfer(from, Carried::Gradient);

    // What is left to do once a stage has the input gradient, and once it has forwarded.
    let mut after_gradient = vec![weight_gradient(0)];
    for stage in 1..=last {
        let down = gradient(stage) + input_gradient(stage - 1) + after_gradient[stage - 1];
        after_gradient.push(down.max(weight_gradient(stage)));
    }
    let mut after_forward = vec![input_gradient(last) + after_gradient[last]; last + 1];
    for stage in (0..last).rev() {
        after_forward[stage] = activation(stage) + cost(stage + 1).forward + after_forward[stage + 1];
    }

    let mut forwarded = Vec::with_capacity(last + 1);
    let mut now = 0.0;
    for stage in 0..=last {
        forwarded.push(now);
        stages[stage].computes[0].add(now, cost(stage).forward, after_forward[stage]);
        now += cost(stage).forward + if stage < last { activation(stage) } else { 0.0 };
    }
    for stage in (0..=last).rev() {
        let (input, weight) = (input_gradient(stage), weight_gradient(stage));
        stages[stage].computes[1].add(now, input, after_gradient[stage]);
        now += input;
        stages[stage].computes[2].add(now, weight, 0.0);
        let bytes = memory.stages[stage];
        stages[stage].held +=
            bytes.forward * (now - forwarded[stage]) + bytes.forward.min(bytes.input_gradient) * weight;
        now += if stage > 0 { gradient(stage) } else { 0.0 };
    }
}

/// The flush as the work of one worker alone allows it.
fn work(mut computes: Vec<Computes>) -> f64 {
    computes.sort_by(|a, b| b.tail.total_cmp(&a.tail));
    let mut bound = 0.0_f64;
    for head in computes.iter().map(|computes| computes.head) {
        let mut work = 0.0;
        for inside in computes.iter().filter(|computes| computes.head >= head) {
            work += inside.work;
            bound = bound.max(head + work + inside.tail);
        }
    }
    bound
}

/// The flush as the memory of one worker alone allows it.
fn held(stages: &[Stage], limit: f64) -> f64 {
    let first = stages.iter().map(|stage| stage.computes[0].head).fold(f64::INFINITY, f64::min);
    let held: f64 = stages.iter().map(|stage| stage.held).sum();
    if held > 0.0 { first + held / limit } else { 0.0 }
}
