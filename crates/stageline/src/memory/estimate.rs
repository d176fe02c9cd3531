//! What steps will hold, from what two micro-batches held.
//!
//! A worker holds, beside what is always there, parameters and optimizer states; from its first backward on the sums of
//! gradients; the activations of every live micro-batch, of which the plan says how many there are; what the action at hand
//! needs for itself; what it has sent to other stages, and they have not used up; and from the optimizer step on parameters and
//! optimizer states once more, as they were before it.

use std::sync::Arc;

use burn::tensor::Device;
use stageline_schedule::{Plan, StageMemory};

use crate::device::location::{is_host, share_memory};
use crate::model::replica::Replica;
use crate::threads::cores::KernelThreads;
use crate::update::flush::Rollback;

/// What one stage holds in a step, in bytes.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct StageEstimate {
    /// Where it is.
    pub device: Device,
    /// Parameters, and their copy in a lower precision, if it computes in one.
    pub parameters: u64,
    /// The sums of gradients over the micro-batches.
    pub gradients: u64,
    /// What the optimizer remembers.
    pub optimizer: u64,
    /// What a live micro-batch holds.
    pub activations: StageMemory,
    /// What a forward needs besides, while it runs.
    pub forward: u64,
    /// What a backward, or the half of it that needs more, needs besides, a micro-batch's gradients included.
    pub backward: u64,
    /// What the flush needs besides, while it runs: what was before the optimizer step included.
    pub flush: u64,
    /// What a micro-batch hands on to the next stage.
    pub output: u64,
    /// The gradients that a micro-batch hands back to the stage before.
    pub input_gradients: u64,
    /// Those of copies of other stages' parameters, and whose they are: a micro-batch hands them to their owners.
    pub tied_gradients: Vec<(usize, u64)>,
    /// The parts of the figures above that stay as they are when a micro-batch has other rows.
    pub(crate) whatever_rows: WhateverRows,
    /// The bytes of its largest parameter that is trained.
    pub(crate) largest: u64,
}

/// What a stage holds for a micro-batch whatever its rows are, in bytes: for example copies of weights that a product packs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct WhateverRows {
    pub(crate) activations: StageMemory,
    pub(crate) forward: u64,
    pub(crate) backward: u64,
}

impl WhateverRows {
    /// Takes only a micro-batch's gradients of parameters as constant, which is certain without a second measurement.
    pub(crate) fn gradients(bytes: u64) -> Self {
        Self { activations: StageMemory::whole(0.0), forward: 0, backward: bytes }
    }

    /// The constant parts of what a stage holds with all rows, where it is known for a share of them, too.
    pub(crate) fn between(one: &StageEstimate, all: &StageEstimate, share: f64) -> Self {
        let part = |few: f64, all: f64| (all - (all - few) / (1.0 - share)).clamp(0.0, few.min(all).max(0.0));
        Self {
            activations: StageMemory {
                forward: part(one.activations.forward, all.activations.forward),
                input_gradient: part(one.activations.input_gradient, all.activations.input_gradient),
            },
            forward: part(one.forward as f64, all.forward as f64) as u64,
            backward: part(one.backward as f64, all.backward as f64) as u64,
        }
    }
}

impl StageEstimate {
    /// The bytes that the first half of a split backward adds to a live micro-batch; 0 if backwards were measured whole.
    pub(crate) fn left_by_input_gradient(&self) -> u64 {
        (self.activations.input_gradient - self.activations.forward).max(0.0) as u64
    }

    /// The bytes of a micro-batch's gradients of parameters in what a backward needs, and those of everything else in it.
    pub(crate) fn backward_parts(&self, backward: u64) -> [u64; 2] {
        let of_parameters = self.gradients + self.tied_gradients.iter().map(|(_, bytes)| bytes).sum::<u64>();
        let of_parameters = of_parameters.min(backward);
        [of_parameters, backward - of_parameters]
    }

    /// The bytes that one parameter needs at most while it is stepped in place: itself and its optimizer state anew.
    pub(crate) fn flush_in_place(&self) -> u64 {
        let state = self.optimizer as f64 / self.gradients.max(1) as f64;
        let [_, rest] = self.flush_parts();
        rest.max((self.largest as f64 * (1.0 + state)) as u64)
    }

    /// The bytes of new parameters and optimizer states in what the flush needs, and those of everything else in it.
    pub(crate) fn flush_parts(&self) -> [u64; 2] {
        let new = (self.gradients + self.optimizer).min(self.flush);
        [new, self.flush - new]
    }
}

/// What is different on a stage whose optimizer is in another replica.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Leaf {
    pub(crate) device: Device,
    /// In bytes: none where they are in the memory of that replica, but for a copy in a lower precision.
    pub(crate) parameters: u64,
}

/// What one worker holds in a step, in bytes.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct WorkerEstimate {
    /// Its replica,
    pub replica: Replica,
    /// and its stages there.
    pub stages: Vec<usize>,
    /// What it holds between steps besides parameters and optimizer states: on CPUs mostly the buffers in which each of its kernel
    /// threads packs products, which are as large as the processor's L2 cache, whatever the model and the batch.
    pub other: u64,
    /// Those of its stages.
    pub parameters: u64,
    /// Those of its stages.
    pub optimizer: u64,
    /// Those of its stages; where these are summed in several groups, of a group and of those before it.
    pub gradients: u64,
    /// The most that its live micro-batches hold at once.
    pub activations: u64,
    /// The most that is on its way between it and others at once: what the receiver has not used up. It is the sender's memory where
    /// they share it (an activation is then one of the sender's), and the receiver's elsewhere.
    pub transfers: u64,
    /// What it keeps of the step before until all agree on that, where steps overlap: parameters and optimizer states as they were,
    /// and the sums of gradients.
    pub kept: u64,
    /// The most before the flush.
    pub compute_peak: u64,
    /// The most in the flush.
    pub flush_peak: u64,
}

impl WorkerEstimate {
    /// The most at any time in a step.
    pub fn peak(&self) -> u64 {
        self.compute_peak.max(self.flush_peak)
    }
}

/// When a step begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Steps {
    /// When all workers are done with the one before.
    Apart,
    /// When a worker is done with its own part of the one before.
    Overlapping,
}

/// What there is of parameters and optimizer states besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Copies {
    None,
    ForACheckpoint,
}

/// What steps will hold: made by [`Pipeline::estimate_memory`](crate::Pipeline::estimate_memory).
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryEstimate {
    pub(crate) plan: Arc<Plan>,
    pub(crate) steps: Steps,
    pub(crate) copies: Copies,
    /// Of the first replica.
    pub(crate) stages: Vec<StageEstimate>,
    /// The stages of the other replicas.
    pub(crate) leaves: Vec<Vec<Leaf>>,
    /// In how many groups gradients are summed.
    pub(crate) groups: usize,
    /// What each worker holds between steps besides parameters, optimizer states and the buffers of its threads.
    pub(crate) other: Vec<u64>,
    pub(crate) threads: KernelThreads,
    pub(crate) rollback: Rollback,
    /// With full recomputation, where that is known.
    pub(crate) recomputed: Option<Box<Self>>,
}

impl MemoryEstimate {
    /// Each stage's, in the first replica.
    pub fn stages(&self) -> &[StageEstimate] {
        &self.stages
    }

    /// What each replica holds, as a pipeline of its own.
    pub(crate) fn by_replica(&self) -> impl Iterator<Item = Self> {
        // In the flush the first one has the sums of others besides, which are the senders' where they share a memory.
        let root = |(index, stage): (usize, &StageEstimate)| {
            let apart = |leaves: &&Vec<Leaf>| !share_memory(&leaves[index].device, &stage.device);
            let received = self.leaves.iter().filter(apart).count() as u64 * stage.gradients;
            StageEstimate { flush: stage.flush + received, ..stage.clone() }
        };
        // In the others there is no optimizer, and new parameters come beside the old ones.
        let leaf = |(stage, leaf): (&StageEstimate, &Leaf)| StageEstimate {
            device: leaf.device.clone(),
            parameters: leaf.parameters,
            optimizer: 0,
            flush: leaf.parameters,
            ..stage.clone()
        };
        let roots = self.stages.iter().enumerate().map(root).collect();
        let leaves = self.leaves.iter().map(move |leaves| self.stages.iter().zip(leaves).map(leaf).collect());
        let groups = if self.leaves.is_empty() { self.groups } else { 1 };
        let alone = move |stages| Self { stages, leaves: Vec::new(), groups, ..self.clone() };
        [roots].into_iter().chain(leaves).map(alone)
    }

    /// Whether a live micro-batch holds about as little on every stage.
    pub(crate) fn keeps_no_more_than(&self, other: &Self) -> bool {
        let mut stages = self.stages.iter().zip(&other.stages);
        stages.all(|(stage, other)| stage.activations.forward <= 1.01 * other.activations.forward)
    }

    /// Whether every stage has a device to itself, on which there is no room for others.
    pub(crate) fn have_devices_to_themselves(&self) -> bool {
        let all: Vec<_> = self.by_replica().flat_map(|replica| replica.stages).collect();
        let alone = |(index, stage): (usize, &StageEstimate)| {
            !is_host(&stage.device) && all[..index].iter().all(|other| other.device != stage.device)
        };
        all.iter().enumerate().all(alone)
    }
}

#[cfg(test)]
#[cfg(feature = "flex")]
pub(crate) mod tests {
    use stageline_schedule::{OneFOneB, Schedule};

    use super::*;
    use crate::threads::cores::Cores;

    /// Of stages under 1F1B whose live micro-batches hold so much, and nothing else.
    pub(crate) fn of_activations(activations: &[f64], micro_batches: usize) -> MemoryEstimate {
        let stage = |&bytes: &f64| StageEstimate {
            device: Device::flex(),
            parameters: 0,
            gradients: 0,
            optimizer: 0,
            activations: StageMemory::whole(bytes),
            forward: 0,
            backward: 0,
            flush: 0,
            output: 0,
            input_gradients: 0,
            tied_gradients: Vec::new(),
            whatever_rows: WhateverRows::gradients(0),
            largest: 0,
        };
        let plan = OneFOneB.plan(activations.len(), micro_batches).unwrap();
        MemoryEstimate {
            plan: Arc::new(plan),
            stages: activations.iter().map(stage).collect(),
            other: vec![0; activations.len()],
            threads: KernelThreads { cores: Cores::Each(1), buffer: 0 },
            rollback: Rollback::Kept,
            recomputed: None,
            steps: Steps::Apart,
            copies: Copies::None,
            leaves: Vec::new(),
            groups: 1,
        }
    }

    /// A second replica holds what the first does, but for what belongs to optimizers.
    #[test]
    fn replicas_hold_parameters_and_gradients_once_more_and_optimizers_never() {
        let mut estimate = of_activations(&[100.0, 100.0], 8);
        for stage in &mut estimate.stages {
            (stage.parameters, stage.gradients, stage.optimizer, stage.flush) = (1000, 1000, 2000, 3000);
        }
        let held = |estimate: &MemoryEstimate| {
            let of = |worker: WorkerEstimate| (worker.parameters, worker.optimizer, worker.gradients, worker.peak());
            estimate.workers().into_iter().map(of).collect::<Vec<_>>()
        };
        let alone = held(&estimate);
        assert_eq!(alone, [(1000, 2000, 1000, 7000); 2]);
        let leaf = || Leaf { device: Device::flex(), parameters: 0 };
        let twice = MemoryEstimate { leaves: vec![vec![leaf(), leaf()]], groups: 2, ..estimate.clone() };
        assert_eq!(held(&twice), [alone.clone(), vec![(0, 0, 1000, 1200), (0, 0, 1000, 1100)]].concat());
        let [all, of_replicas] = [&estimate, &twice].map(|estimate| estimate.devices()[0].1);
        assert_eq!(of_replicas, all + 1200 + 1100, "one host has all of them");
        assert_eq!(held(&twice.in_one_stage().unwrap()).len(), 2);
        assert_eq!(held(&twice.cut_in_two().under(OneFOneB.plan(4, 8).unwrap())).len(), 8);
        // One replica that sums in two groups has two sums, until the flush.
        let groups = MemoryEstimate { groups: 2, ..estimate };
        assert_eq!(held(&groups), [(1000, 2000, 2000, 7000); 2]);
        assert_eq!(groups.workers()[0].compute_peak, twice.workers()[0].compute_peak + 1000);
    }

    /// 1F1B has P live micro-batches on its first worker, so halves of stages hold as much of them as whole ones do.
    #[test]
    fn twice_as_many_stages_halve_all_but_activations() {
        let mut whole = of_activations(&[100.0, 100.0], 8);
        for stage in &mut whole.stages {
            (stage.parameters, stage.gradients, stage.optimizer, stage.flush) = (1000, 1000, 2000, 3000);
        }
        let plan = OneFOneB.plan(4, 8).unwrap();
        let held = |estimate: &MemoryEstimate| {
            let of =
                |worker: WorkerEstimate| (worker.parameters, worker.gradients, worker.optimizer, worker.activations);
            estimate.workers().into_iter().map(of).collect::<Vec<_>>()
        };
        assert_eq!(held(&whole), [(1000, 1000, 2000, 200), (1000, 1000, 2000, 100)]);
        let halves = [200, 150, 100, 50].map(|activations| (500, 500, 1000, activations));
        assert_eq!(held(&whole.cut_in_two().under(plan)), halves);
        assert!(!whole.have_devices_to_themselves(), "all CPUs have one memory");
    }

    /// In 1F1B a stage sends a gradient of a micro-batch when the stage before has yet to use that of one before it.
    #[test]
    fn what_is_on_its_way_is_its_senders_where_memory_is_shared() {
        let mut estimate = of_activations(&[0.0; 3], 8);
        for held in estimate.stages.iter_mut().skip(1) {
            (held.output, held.input_gradients) = (7, 10);
        }
        let transfers = |estimate: &MemoryEstimate| {
            estimate.workers().into_iter().map(|worker| worker.transfers).collect::<Vec<_>>()
        };
        assert_eq!(transfers(&estimate), [0, 20, 20]);
        assert_eq!(transfers(&estimate.of_overlapping_steps()), [0, 20, 20]);
        // Gradients of parameters do not get smaller with micro-batches.
        estimate.stages[2].tied_gradients = vec![(0, 1000)];
        let [whole, half] = [1.0, 0.5].map(|share| transfers(&estimate.with_rows_times(share)));
        assert_eq!([whole[1], half[1]], [20, 10]);
        assert!(whole[2] - half[2] == 10 && half[2].is_multiple_of(10) && half[2] >= 1000, "{whole:?} {half:?}");
    }
}
