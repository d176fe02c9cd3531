//! Computes each worker's peak memory from its stages' memory figures and the order of its actions.
//!
//! The order of a worker's actions alone determines which micro-batches are live on it (between forward and backward
//! pass). The tensors in flight between workers depend on time: they are taken from a simulation where every stage
//! takes equally long.

use std::collections::{BTreeSet, HashMap};

use burn::tensor::Device;
use stageline_schedule::{Action, Compute, Costs, Span, Timeline, check, simulate};

use crate::device::location::{host, is_host, share_memory};
use crate::memory::estimate::{Copies, MemoryEstimate, StageEstimate, Steps};
use crate::memory::worker_estimate::WorkerEstimate;
use crate::model::replica::Replica;
use crate::update::optimizer_step::Rollback;

/// The duration of every forward pass in the simulation for memory estimates. It is the unit of simulated time.
const FORWARD: f64 = 1.0;
/// The duration of every backward pass in the simulation for memory estimates: twice that of a forward pass.
const BACKWARD: f64 = 2.0;

/// Limits the micro-batches in the simulation for memory estimates to this number per pipeline stage. More
/// micro-batches would only repeat the same pattern.
const SIMULATED: usize = 4;

impl MemoryEstimate {
    /// Returns the memory estimate of every worker, over all replicas, beginning with replica 0.
    pub fn workers(&self) -> Vec<WorkerEstimate> {
        self.placed_workers().into_iter().map(|(_, worker)| worker).collect()
    }

    /// Returns every worker's device and memory estimate, over all replicas, beginning with replica 0.
    pub(crate) fn placed_workers(&self) -> Vec<(Device, WorkerEstimate)> {
        let replicas = 1 + self.leaves.len();
        let buffers = self.threads.buffers_of_one(replicas * self.plan.workers());
        let each = self.by_replica().zip(Replica::all(replicas));
        each.flat_map(|(estimate, replica)| estimate.workers_of(replica, buffers)).collect()
    }

    /// Returns the device and the memory estimate of every worker of one replica. `self` must be the memory estimate of
    /// this replica alone. `buffers` is the size in bytes of each CPU worker's matrix-product buffers.
    fn workers_of(&self, replica: Replica, buffers: u64) -> Vec<(Device, WorkerEstimate)> {
        let rows = self.plan.rows().iter().zip(&self.other).zip(in_flight(self));
        let worker = |((row, &other), transfers): ((&Vec<Action>, &u64), u64)| {
            let device = self.stages[row.first()?.stage].device.clone();
            let buffers = if is_host(&device) { buffers } else { 0 };
            let worker = Row { estimate: self, row, transfers }.held(replica, other + buffers, is_host(&device));
            Some((device, worker))
        };
        rows.filter_map(worker).collect()
    }

    /// Returns the bytes of memory needed on each device: the sum of its workers' peaks. All CPUs count as one device,
    /// whose sum also includes the program's memory outside the workers, and the optimizer states and checkpoint copies
    /// that other devices' workers keep on the host.
    pub fn devices(&self) -> Vec<(Device, u64)> {
        self.devices_by(|_, bytes, more| bytes + more)
    }

    /// Returns the bytes of memory needed on each device, where the callback `both` combines the needs of a device's
    /// workers (for example, by sum or maximum). `both` gets the device, the bytes so far, and the bytes of one more
    /// worker, and returns the new total.
    pub(crate) fn devices_by(&self, both: impl Fn(&Device, u64, u64) -> u64) -> Vec<(Device, u64)> {
        let mut devices: Vec<(Device, u64)> = Vec::new();
        let mut add =
            |device: Device, more: u64| match devices.iter_mut().find(|(other, _)| share_memory(other, &device)) {
                Some((_, bytes)) => *bytes = both(&device, *bytes, more),
                None => devices.push((device, more)),
            };
        for (device, worker) in self.placed_workers() {
            add(device, worker.peak());
            if let Some(host) = host().filter(|_| worker.on_host() > 0) {
                add(host, worker.on_host());
            }
        }
        if let Some(host) = host().filter(|_| self.beside_workers > 0) {
            add(host, self.beside_workers);
        }
        devices
    }

    /// Returns the workers that need memory on a device, each with its bytes there. For a worker on this device, they
    /// are its peak memory. On the host's CPU, other devices' workers need memory for the optimizer states and
    /// checkpoint copies that they keep on the host.
    pub(crate) fn needs_on(&self, device: &Device) -> Vec<(u64, WorkerEstimate)> {
        let needs = |(own, worker): (Device, WorkerEstimate)| {
            let bytes = match share_memory(&own, device) {
                true => worker.peak(),
                false if is_host(device) => worker.on_host(),
                false => 0,
            };
            (bytes > 0).then_some((bytes, worker))
        };
        self.placed_workers().into_iter().filter_map(needs).collect()
    }

    /// Returns the bytes that the program needs outside its workers, such as for prefetched batches, if `device` is the
    /// host's CPU; otherwise 0.
    pub(crate) fn beside_workers_on(&self, device: &Device) -> u64 {
        if is_host(device) { self.beside_workers } else { 0 }
    }
}

/// Returns each worker's peak bytes of tensors in flight (sent, and not yet used by the receiver), over its actions
/// such as forward passes. All are 0 if the plan (the order of actions) cannot run.
fn in_flight(estimate: &MemoryEstimate) -> Vec<u64> {
    let micro_batches = estimate.plan.micro_batches().min(SIMULATED * estimate.plan.stages());
    // A plan that cannot run cannot be simulated either.
    let Ok(plan) = check(estimate.plan.first(micro_batches), micro_batches) else {
        return vec![0; estimate.plan.workers()];
    };
    let costs = Costs::uniform(estimate.plan.stages(), FORWARD, BACKWARD);
    let timeline = match estimate.steps {
        Steps::Apart => simulate(&plan, &costs),
        Steps::Overlapping => simulate(&plan.twice(), &costs),
    };
    let held = Transfers::of(&timeline).held(&estimate.stages, timeline.rows().len());
    let most = |(row, held): (&Vec<Span>, Held)| row.iter().map(|span| held.during(span)).max().unwrap_or(0);
    timeline.rows().iter().zip(held).map(most).collect()
}

/// A tensor in flight in one worker's memory.
struct InFlight {
    /// The simulated time at which the tensor is sent.
    sent: f64,
    /// The simulated time at which the receiver uses the tensor, so that it can be freed soon after.
    used: f64,
    bytes: u64,
}

/// The bytes of tensors in flight in one worker's memory over simulated time, stored as two running totals: bytes
/// allocated and bytes freed.
struct Held {
    /// The running total of bytes allocated for tensors in flight, as `(simulated time, total bytes)` in order of time.
    begun: Vec<(f64, u64)>,
    /// The running total of bytes freed by tensors in flight, as `(simulated time, total bytes)` in order of time.
    over: Vec<(f64, u64)>,
}

impl Held {
    /// Computes the running totals of bytes of tensors in flight. A tensor counts as freed one forward and one backward
    /// pass after its simulated use, because real receivers may be one micro-batch late.
    fn new(tensors: Vec<InFlight>) -> Self {
        let summed = |time: fn(&InFlight) -> f64| {
            let mut changes: Vec<_> = tensors.iter().map(|tensor| (time(tensor), tensor.bytes)).collect();
            changes.sort_by(|a, b| a.0.total_cmp(&b.0));
            let mut all = 0;
            changes.iter_mut().for_each(|(_, bytes)| {
                all += *bytes;
                *bytes = all;
            });
            changes
        };
        Self { begun: summed(|tensor| tensor.sent), over: summed(|tensor| tensor.used + FORWARD + BACKWARD) }
    }

    /// Returns the total bytes of the tensors in flight during one simulated action (such as a forward pass), whose
    /// start and end are in `span`.
    fn during(&self, span: &Span) -> u64 {
        let until = |changes: &[(f64, u64)], so_many: usize| so_many.checked_sub(1).map_or(0, |last| changes[last].1);
        let begun = self.begun.partition_point(|(from, _)| *from < span.end);
        let over = self.over.partition_point(|(to, _)| *to <= span.start);
        until(&self.begun, begun) - until(&self.over, over)
    }
}

/// The simulated forward and backward passes of every stage and micro-batch, each with its worker and its times. A
/// tensor is in flight between the pass that computes it and the pass that uses it.
struct Transfers {
    forwards: HashMap<(usize, usize), (usize, Span)>,
    backwards: HashMap<(usize, usize), (usize, Span)>,
}

impl Transfers {
    fn of(timeline: &Timeline) -> Self {
        let select = |which: fn(Compute) -> bool| {
            let rows = timeline.rows().iter().enumerate();
            let spans = rows.flat_map(|(worker, row)| row.iter().map(move |span| (worker, *span)));
            let of_kind = spans.filter(|(_, span)| which(span.action.compute));
            of_kind.map(|(worker, span)| ((span.action.stage, span.action.micro_batch), (worker, span))).collect()
        };
        Self {
            forwards: select(|compute| compute == Compute::Forward),
            backwards: select(|compute| matches!(compute, Compute::Backward | Compute::InputGradient)),
        }
    }

    /// Computes the bytes of tensors in flight in each worker's memory over simulated time. A tensor between stages
    /// with separate memories counts for its receiver. Between stages that share a memory, a gradient counts for its
    /// sender. An activation between such stages is left out, because the sender's activations already include it.
    fn held(&self, stages: &[StageEstimate], workers: usize) -> Vec<Held> {
        let mut held: Vec<Vec<InFlight>> = (0..workers).map(|_| Vec::new()).collect();
        let shared = |one: usize, other: usize| share_memory(&stages[one].device, &stages[other].device);
        for (&(stage, micro_batch), (_, span)) in &self.forwards {
            if let Some((receiver, to)) = self.forwards.get(&(stage + 1, micro_batch))
                && !shared(stage, stage + 1)
            {
                held[*receiver].push(InFlight { sent: span.end, used: to.start, bytes: stages[stage].output });
            }
        }
        for (&(stage, micro_batch), (sender, span)) in &self.backwards {
            let to_previous = stage.checked_sub(1).map(|previous| (previous, stages[stage].input_gradients));
            for (owner, bytes) in to_previous.into_iter().chain(stages[stage].tied_gradients.iter().copied()) {
                if let Some((receiver, to)) = self.backwards.get(&(owner, micro_batch)) {
                    let worker = if shared(stage, owner) { *sender } else { *receiver };
                    held[worker].push(InFlight { sent: span.end, used: to.end, bytes });
                }
            }
        }
        held.into_iter().map(Held::new).collect()
    }
}

/// Computes one worker's peak memory from its planned actions (`row`) and the pipeline's memory estimate.
struct Row<'a> {
    estimate: &'a MemoryEstimate,
    row: &'a [Action],
    /// The peak bytes of tensors in flight on this worker during any one of its actions, such as a forward pass.
    transfers: u64,
}

impl Row<'_> {
    /// Computes the worker's memory estimate. `other` is the number of bytes that the worker allocates in addition to
    /// those of its stages. `on_host` is true if the worker's device is the host's CPU.
    fn held(&self, replica: Replica, other: u64, on_host: bool) -> WorkerEstimate {
        let mut stages: Vec<_> = self.row.iter().map(|action| action.stage).collect();
        stages.sort_unstable();
        stages.dedup();
        let sum =
            |of: fn(&StageEstimate) -> u64| stages.iter().map(|&stage| of(&self.estimate.stages[stage])).sum::<u64>();
        let (parameters, optimizer) = (sum(|stage| stage.parameters), sum(|stage| stage.optimizer));
        let gradients = sum(|stage| stage.gradients);
        let checkpoints = u64::from(self.estimate.copies == Copies::ForACheckpoint);
        let rollbacks = u64::from(self.estimate.rollback == Rollback::Kept);
        // Replica 0 alone writes a checkpoint, without the copies of its parameters in a lower precision.
        let saved = sum(|stage| stage.parameters_in_checkpoint);
        let copies = if replica.is_first() { checkpoints * (saved + optimizer) } else { 0 };
        let (other, checkpoint_on_host) = if on_host { (other + copies, 0) } else { (other, copies) };
        let resident = other + parameters + optimizer;
        // With overlapping steps, a worker keeps three things until the verdict on the previous step. They are the
        // optimizer states and the parameters (as large as the gradients) from before that step, and its gradient sums.
        // The verdict may arrive late: a worker waits for it only before its own flush.
        let kept = if self.estimate.steps == Steps::Overlapping { optimizer + 2 * gradients } else { 0 };
        let [activations, compute_peak] = self.compute(resident + kept);
        WorkerEstimate {
            replica,
            other,
            parameters,
            optimizer,
            optimizer_on_host: (1 + rollbacks + checkpoints) * sum(|stage| stage.optimizer_on_host),
            checkpoint_on_host,
            gradients: if self.estimate.groups > 1 { 2 * gradients } else { gradients },
            activations,
            transfers: self.transfers,
            kept,
            compute_peak,
            flush_peak: self.flush(&stages, resident + gradients),
            stages,
        }
    }

    /// Returns `[activations, all]`: the peak bytes of the worker's activations, and of all its memory, during its
    /// forward and backward passes. `resident` bytes are allocated all the time.
    fn compute(&self, resident: u64) -> [u64; 2] {
        let stages = self.estimate.stages.len();
        let (mut activations, mut sums, mut summed) = (0.0, 0, vec![0_u64; stages]);
        let (mut held, mut next, mut early) = (0, vec![0; stages], vec![BTreeSet::new(); stages]);
        let per_group = self.estimate.plan.micro_batches() / self.estimate.groups;
        let (mut most_activations, mut peak) = (0.0_f64, resident);
        for Action { stage, compute, micro_batch } in self.row {
            let estimate = &self.estimate.stages[*stage];
            let [start, end] = estimate.activations.changes(*compute);
            activations += start;
            most_activations = most_activations.max(activations);
            let work = match compute {
                Compute::Forward => estimate.forward,
                // If the measured backward pass was split, its first half leaves memory to the second half. An unsplit
                // backward pass needs this memory as well.
                Compute::Backward => estimate.backward + estimate.left_by_input_gradient(),
                Compute::InputGradient | Compute::WeightGradient => estimate.backward,
            };
            peak = peak.max(resident + activations as u64 + sums + held + work + self.transfers);
            activations += end;
            if matches!(compute, Compute::Backward | Compute::WeightGradient) {
                early[*stage].insert(*micro_batch);
                while early[*stage].remove(&next[*stage]) {
                    next[*stage] += 1;
                }
                // Gradients that are computed before those of an earlier micro-batch are kept in addition to the sum
                // until it is their turn.
                let waiting = early.iter().zip(&self.estimate.stages);
                held = waiting.map(|(early, stage)| early.len() as u64 * stage.gradients).sum();
            }
            // From the second group on, there are two sums: of the current group, and of the groups before it. The
            // first half of a split backward pass also computes gradients that cannot be deferred.
            let begun = next[*stage] + usize::from(*compute == Compute::InputGradient);
            let needed = u64::from(begun > 0) + u64::from(begun > per_group);
            if summed[*stage] < needed {
                sums += (needed - std::mem::replace(&mut summed[*stage], needed)) * estimate.gradients;
            }
        }
        [most_activations as u64, peak]
    }

    /// Returns the worker's peak memory, in bytes, in the flush (the optimizer steps of `stages`, one stage after
    /// another). `held` bytes are allocated before the flush.
    fn flush(&self, stages: &[usize], mut held: u64) -> u64 {
        let mut peak = held;
        for stage in stages.iter().map(|&stage| &self.estimate.stages[stage]) {
            // With overlapping steps the gradient sums are kept for a rollback.
            let sums = if self.estimate.steps == Steps::Overlapping { stage.gradients } else { 0 };
            if self.estimate.rollback == Rollback::Off {
                peak = peak.max(held + stage.flush_in_place());
                continue;
            }
            peak = peak.max(held + stage.flush + sums);
            held += stage.optimizer + sums;
        }
        peak
    }
}
