//! The memory estimate of a training run, for each stage ([`StageEstimate`]) and the whole pipeline
//! ([`MemoryEstimate`]). It is based on a rehearsal, a step of two micro-batches that only measures memory and is
//! rolled back.
//!
//! A worker's memory consists of a constant part and:
//!
//! - parameters and optimizer states;
//! - from its first backward pass on, the sums of gradients;
//! - the activations of every live micro-batch (between its forward and its backward pass), whose number follows from
//!   the plan;
//! - the temporary memory of the current action;
//! - tensors in flight: sent to another stage, which has not finished using them;
//! - from the optimizer step on, the parameters and optimizer states before that step, for a rollback.
//!
//! Optimizer states that are kept in host memory count there, including those from before the last step.

use stageline_schedule::{Plan, StageMemory};

use crate::memory::independent_of_rows::IndependentOfRows;
use std::sync::Arc;

use burn::tensor::Device;

use crate::device::location::{is_host, share_memory};
use crate::threads::cores::KernelThreads;
use crate::update::optimizer_step::Rollback;

/// The predicted memory that one stage of replica 0 needs in a training step, in bytes by kind.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct StageEstimate {
    /// The device that the stage runs on, in replica 0.
    pub device: Device,
    /// The bytes of the stage's parameters. If the stage computes in a lower precision, they include a copy in this
    /// precision.
    pub parameters: u64,
    /// The bytes of the stage's tensors that a checkpoint holds. These tensors do not count:
    ///
    /// - copies in a lower precision;
    /// - large frozen parameters, if resumed runs take them from the model;
    /// - trained parameters that share the memory of their owner (the stage that steps them).
    pub(crate) parameters_in_checkpoint: u64,
    /// The bytes of the stage's gradient sums: one f32 value for each element of the trained parameters that its own
    /// optimizer steps.
    pub gradients: u64,
    /// The bytes of the state of the stage's optimizer, such as Adam's moments, on the stage's device.
    pub optimizer: u64,
    /// The bytes of the state of the stage's optimizer that is kept in this host's memory
    /// ([`OptimizerState::Host`](crate::OptimizerState)). 0 if the stage's device is the host's CPU.
    pub optimizer_on_host: u64,
    /// The bytes of activations that the stage saves for one micro-batch: `forward` between the forward and the
    /// backward pass; `input_gradient` between the halves of a split backward pass (input gradient, then weight
    /// gradient).
    pub activations: StageMemory,
    /// The temporary memory of the stage's forward pass, in bytes: the peak during the pass minus the allocated memory
    /// after it. It excludes activations that are saved for the backward pass.
    pub forward: u64,
    /// The temporary memory of the stage's backward pass, in bytes: the peak during the pass minus the allocated memory
    /// before it. It includes parameter gradients that layers do not add to the gradient sums immediately. For a split
    /// backward pass, it is the value of the larger half. The bytes that the first half leaves to the second half do
    /// not count, because `activations` includes them.
    pub backward: u64,
    /// The temporary memory of the stage's optimizer step, in bytes: the peak during the step minus the allocated
    /// memory before it. It includes the new parameters and optimizer states, which exist beside the old ones.
    pub flush: u64,
    /// The bytes of the activations that the stage sends to the next stage for one micro-batch; 0 for the last stage.
    pub output: u64,
    /// The bytes of gradients that the stage sends to the previous stage for one micro-batch; 0 for the first stage.
    pub input_gradients: u64,
    /// The tied parameters' gradients that the stage sends for one micro-batch, as pairs of the zero-based index of the
    /// receiving stage (which owns the parameters) and the number of bytes.
    pub tied_gradients: Vec<(usize, u64)>,
    /// The part of the stage's activations and temporary memory, in bytes, that is independent of the micro-batch size.
    pub(crate) independent_of_rows: IndependentOfRows,
    /// The peak bytes of one micro-batch's parameter gradients that are not yet added to the gradient sums; 0 if each
    /// layer adds its gradients immediately.
    pub(crate) gradients_beside: u64,
    /// The size in bytes of the largest trained parameter that the stage owns (steps with its own optimizer), and also
    /// of this parameter's f32 gradient.
    pub(crate) largest: u64,
}

impl StageEstimate {
    /// Returns the extra bytes that a micro-batch occupies between the input gradient and the weight gradient of a
    /// split backward pass, compared with its saved activations. Returns 0 if the measured backward passes were not
    /// split.
    pub(crate) fn left_by_input_gradient(&self) -> u64 {
        (self.activations.input_gradient - self.activations.forward).max(0.0) as u64
    }

    /// Splits a backward pass's temporary memory (`backward`, in bytes) into two parts: the micro-batch's parameter
    /// gradients that are not in the gradient sums, and the rest.
    pub(crate) fn backward_parts(&self, backward: u64) -> [u64; 2] {
        let of_parameters = self.gradients_beside + self.tied_gradients.iter().map(|(_, bytes)| bytes).sum::<u64>();
        let of_parameters = of_parameters.min(backward);
        [of_parameters, backward - of_parameters]
    }

    /// Returns the temporary memory of the stage's optimizer step, in bytes, without copies for a rollback. It is at
    /// least the size of the largest parameter with its state, because both exist twice while the optimizer steps them,
    /// unless it overwrites them.
    pub(crate) fn flush_in_place(&self) -> u64 {
        let [_, rest] = self.flush_parts();
        rest.max(self.largest + self.largest_state())
    }

    /// Estimates the bytes of optimizer state of the largest parameter that the stage owns, as if state sizes were
    /// proportional to parameter sizes.
    pub(crate) fn largest_state(&self) -> u64 {
        let state = (self.optimizer + self.optimizer_on_host) as f64 / self.gradients.max(1) as f64;
        (self.largest as f64 * state) as u64
    }

    /// Splits the temporary memory of the stage's optimizer step, in bytes, into two parts: the new parameters and
    /// optimizer states, and the rest.
    pub(crate) fn flush_parts(&self) -> [u64; 2] {
        let new = (self.gradients + self.optimizer).min(self.flush);
        [new, self.flush - new]
    }
}

/// A stage in a data-parallel replica other than replica 0, with its device and the bytes of its parameters. Only
/// replica 0 has optimizers. All other memory of the stage is taken from the estimate of the same stage in replica 0.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Leaf {
    pub(crate) device: Device,
    /// The bytes of the stage's parameters in this replica. Trained parameters that share memory with replica 0 count
    /// only with their low-precision copy.
    pub(crate) parameters: u64,
}

/// Whether a memory estimate assumes that training steps run one after another or overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Steps {
    /// Steps do not overlap: a step begins when all workers have finished the previous step.
    Apart,
    /// Steps overlap: a worker begins a step as soon as it has finished its own part of the previous step.
    Overlapping,
}

/// Whether a memory estimate includes the copy of parameters and optimizer states that exists while a checkpoint is
/// written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Copies {
    /// The memory estimate is for steps during which no checkpoint is written.
    None,
    /// The memory estimate includes a second copy of parameters and optimizer states, for a checkpoint that is being
    /// written.
    ForACheckpoint,
}

/// The predicted memory that the training steps of a pipeline need.
/// [`Pipeline::estimate_memory`](crate::Pipeline::estimate_memory) returns it; its methods give the need of each stage,
/// worker and device, and the need under other settings.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryEstimate {
    /// The plan (order of actions on each worker) that every data-parallel replica of the pipeline follows.
    pub(crate) plan: Arc<Plan>,
    pub(crate) steps: Steps,
    pub(crate) copies: Copies,
    /// The predicted memory of each stage of replica 0, in bytes by kind.
    pub(crate) stages: Vec<StageEstimate>,
    /// The stages of each replica except replica 0, each with its device and the bytes of its parameters.
    pub(crate) leaves: Vec<Vec<Leaf>>,
    /// The number of groups of micro-batches whose gradients are summed separately.
    pub(crate) groups: usize,
    /// The bytes that each worker has allocated between steps, without parameters, optimizer states and its CPU
    /// threads' buffers.
    pub(crate) other: Vec<u64>,
    /// The bytes of host memory that the program needs outside its workers, such as for prefetched batches.
    pub(crate) beside_workers: u64,
    pub(crate) threads: KernelThreads,
    pub(crate) rollback: Rollback,
    /// The memory estimate of the same training run with full activation recomputation; `None` if it was not measured.
    pub(crate) recomputed: Option<Box<Self>>,
}

impl MemoryEstimate {
    /// Returns the predicted memory of each stage of replica 0, in stage order, in bytes by kind (such as parameters,
    /// gradients and activations).
    pub fn stages(&self) -> &[StageEstimate] {
        &self.stages
    }

    /// Returns each data-parallel replica's own memory estimate, as if the replica were a separate pipeline.
    pub(crate) fn by_replica(&self) -> impl Iterator<Item = Self> {
        // In the flush, replica 0 also has the gradient sums that it received from the other replicas. A sum in shared
        // memory counts for its sender.
        let root = |(index, stage): (usize, &StageEstimate)| {
            let apart = |leaves: &&Vec<Leaf>| !share_memory(&leaves[index].device, &stage.device);
            let received = self.leaves.iter().filter(apart).count() as u64 * stage.gradients;
            StageEstimate { flush: stage.flush + received, ..stage.clone() }
        };
        // The other replicas have no optimizer. In the flush, their new parameters exist in addition to the old ones.
        let leaf = |(stage, leaf): (&StageEstimate, &Leaf)| StageEstimate {
            device: leaf.device.clone(),
            parameters: leaf.parameters,
            optimizer: 0,
            optimizer_on_host: 0,
            flush: leaf.parameters,
            ..stage.clone()
        };
        let roots = self.stages.iter().enumerate().map(root).collect();
        let leaves = self.leaves.iter().map(move |leaves| self.stages.iter().zip(leaves).map(leaf).collect());
        let groups = if self.leaves.is_empty() { self.groups } else { 1 };
        let alone = move |stages| Self { stages, leaves: Vec::new(), groups, ..self.clone() };
        [roots].into_iter().chain(leaves).map(alone)
    }

    /// Whether each stage's saved activations are at most 1% larger than in the memory estimate `other`. The search for
    /// a recomputation level adds one block at a time, and stops when activations are about as small as with full
    /// recomputation (`other`).
    pub(crate) fn keeps_no_more_than(&self, other: &Self) -> bool {
        let mut stages = self.stages.iter().zip(&other.stages);
        stages.all(|(stage, other)| stage.activations.forward <= 1.01 * other.activations.forward)
    }

    /// Whether every stage of every replica runs on a device that no other stage uses and that is not the host's CPU.
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
    use crate::memory::lever::Lever;
    use crate::memory::worker_estimate::WorkerEstimate;
    use crate::threads::cores::Cores;

    /// Returns a memory estimate for tests: a 1F1B pipeline that needs memory only for activations. `activations` has
    /// the bytes of one micro-batch's activations on each stage.
    pub(crate) fn of_activations(activations: &[f64], micro_batches: usize) -> MemoryEstimate {
        let stage = |&bytes: &f64| StageEstimate {
            device: Device::flex(),
            parameters: 0,
            parameters_in_checkpoint: 0,
            gradients: 0,
            optimizer: 0,
            optimizer_on_host: 0,
            activations: StageMemory::whole(bytes),
            forward: 0,
            backward: 0,
            flush: 0,
            output: 0,
            input_gradients: 0,
            gradients_beside: 0,
            tied_gradients: Vec::new(),
            independent_of_rows: IndependentOfRows::gradients(0, 0),
            largest: 0,
        };
        let plan = OneFOneB.plan(activations.len(), micro_batches).unwrap();
        MemoryEstimate {
            plan: Arc::new(plan),
            stages: activations.iter().map(stage).collect(),
            other: vec![0; activations.len()],
            beside_workers: 0,
            threads: KernelThreads { cores: Cores::Each(1), buffer: 0 },
            rollback: Rollback::Kept,
            recomputed: None,
            steps: Steps::Apart,
            copies: Copies::None,
            leaves: Vec::new(),
            groups: 1,
        }
    }

    /// Tests the memory estimate of a second data-parallel replica on the same host. It shares the parameters and has
    /// no optimizer state, but has gradients and activations of its own.
    #[test]
    fn a_second_replica_adds_gradients_and_activations_but_no_optimizer_state() {
        let mut estimate = of_activations(&[100.0, 100.0], 8);
        for stage in &mut estimate.stages {
            (stage.parameters, stage.gradients, stage.optimizer, stage.flush) = (1000, 1000, 2000, 3000);
        }
        let figures = |estimate: &MemoryEstimate| {
            let parts = |worker: WorkerEstimate| (worker.parameters, worker.optimizer, worker.gradients, worker.peak());
            estimate.workers().into_iter().map(parts).collect::<Vec<_>>()
        };
        let alone = figures(&estimate);
        assert_eq!(alone, [(1000, 2000, 1000, 7000); 2]);
        let leaf = || Leaf { device: Device::flex(), parameters: 0 };
        let twice = MemoryEstimate { leaves: vec![vec![leaf(), leaf()]], groups: 2, ..estimate.clone() };
        assert_eq!(figures(&twice), [alone.clone(), vec![(0, 0, 1000, 1200), (0, 0, 1000, 1100)]].concat());
        let [all, of_replicas] = [&estimate, &twice].map(|estimate| estimate.devices()[0].1);
        assert_eq!(of_replicas, all + 1200 + 1100, "all workers are on one host");
        assert_eq!(figures(&twice.in_one_stage().unwrap()).len(), 2);
        assert_eq!(figures(&twice.cut_in_two().under(OneFOneB.plan(4, 8).unwrap())).len(), 8);
        // A single replica that sums in two groups has two sums until the flush.
        let groups = MemoryEstimate { groups: 2, ..estimate };
        assert_eq!(figures(&groups), [(1000, 2000, 2000, 7000); 2]);
        assert_eq!(groups.workers()[0].compute_peak, twice.workers()[0].compute_peak + 1000);
    }

    /// Tests that the memory of the program besides its workers counts as host memory, before and after a change of
    /// settings.
    #[test]
    fn memory_besides_the_workers_counts_for_the_host() {
        let estimate = of_activations(&[100.0, 100.0], 8);
        let batches = estimate.with_host_memory(40);
        let [alone, all] = [&estimate, &batches].map(|estimate| estimate.devices()[0].1);
        assert_eq!((alone, all), (300, 340));
        assert!(batches.fits(|_| Some(340)));
        let refused = batches.check(|_| Some(339), &OneFOneB, 1, |_| true).unwrap_err();
        assert_eq!((refused.needs, refused.beside_workers), (340, 40));
        let one_stage = refused.remedies.iter().find(|remedy| remedy.levers == [Lever::OneStage]).unwrap();
        assert_eq!(one_stage.needs, 200 + 40);
        assert!(refused.to_string().contains("batches and other memory of the program 0.0 kB"), "{refused}");
    }

    /// Tests the memory estimate for twice as many stages of half the size. Under 1F1B, the first worker keeps the
    /// activations of as many micro-batches as there are stages. So its activations still need the same memory.
    #[test]
    fn twice_as_many_stages_halve_all_but_activations() {
        let mut whole = of_activations(&[100.0, 100.0], 8);
        for stage in &mut whole.stages {
            (stage.parameters, stage.gradients, stage.optimizer, stage.flush) = (1000, 1000, 2000, 3000);
        }
        let plan = OneFOneB.plan(4, 8).unwrap();
        let figures = |estimate: &MemoryEstimate| {
            let parts =
                |worker: WorkerEstimate| (worker.parameters, worker.gradients, worker.optimizer, worker.activations);
            estimate.workers().into_iter().map(parts).collect::<Vec<_>>()
        };
        assert_eq!(figures(&whole), [(1000, 1000, 2000, 200), (1000, 1000, 2000, 100)]);
        let halves = [200, 150, 100, 50].map(|activations| (500, 500, 1000, activations));
        assert_eq!(figures(&whole.cut_in_two().under(plan)), halves);
        assert!(!whole.have_devices_to_themselves(), "all CPUs share one memory");
    }

    #[test]
    fn steps_without_rollback_do_not_overlap() {
        let mut estimate = of_activations(&[0.0; 3], 8);
        assert!(matches!(estimate.of_overlapping_steps().steps, Steps::Overlapping));
        estimate.rollback = Rollback::Off;
        assert!(matches!(estimate.of_overlapping_steps().steps, Steps::Apart));
    }

    /// Tests that gradients in flight count for the sending stage if both stages share one memory. Under 1F1B, two
    /// gradients are in flight at a time: a stage sends one while the previous stage still uses the one before.
    #[test]
    fn tensors_in_flight_count_for_the_sender_if_memory_is_shared() {
        let mut estimate = of_activations(&[0.0; 3], 8);
        for stage in estimate.stages.iter_mut().skip(1) {
            (stage.output, stage.input_gradients) = (7, 10);
        }
        let transfers = |estimate: &MemoryEstimate| {
            estimate.workers().into_iter().map(|worker| worker.transfers).collect::<Vec<_>>()
        };
        assert_eq!(transfers(&estimate), [0, 20, 20]);
        assert_eq!(transfers(&estimate.of_overlapping_steps()), [0, 20, 20]);
        // Gradients of parameters do not become smaller with smaller micro-batches.
        estimate.stages[2].tied_gradients = vec![(0, 1000)];
        let [whole, half] = [1.0, 0.5].map(|share| transfers(&estimate.with_rows_times(share)));
        assert_eq!([whole[1], half[1]], [20, 10]);
        assert!(whole[2] - half[2] == 10 && half[2].is_multiple_of(10) && half[2] >= 1000, "{whole:?} {half:?}");
    }
}
