//! Estimates the memory of training steps from a rehearsal, a step that is run to measure its memory, and rolled back.
//! Chooses the least activation recomputation that lets steps fit into memory.

use std::sync::Arc;
use std::time::Duration;

use crate::device::location::is_gpu;
use crate::failure::activity::During;
use crate::failure::step_error::StepError;
use crate::memory::choose_recompute::{Level, in_order, least};
use crate::memory::estimate::MemoryEstimate;
use crate::memory::rehearsal::Rehearsal;
use crate::model::batch::Batch;
use crate::model::micro_batches::MicroBatches;
use crate::model::payload::Payload;
use crate::pipeline::Pipeline;
use crate::pipeline::workers::Ended;
use crate::recording::Clock;
use crate::runner::pass::{Context, Pass};
use crate::threads::cores::KernelThreads;
use crate::transfer::order::Turns;
use crate::update::flush::Verdict;
use crate::worker::messages::Asked;
use stageline_nn::Recompute;

/// The number of micro-batches per replica in a rehearsal (a step that only measures memory and is rolled back). The
/// second one is measured, because kernels allocate lasting buffers during the first.
const MICRO_BATCHES: usize = 2;

/// The largest number of blocks per stage (such as transformer blocks) for which partial recomputation is tried. A
/// stage that would have to recompute more blocks recomputes its whole forward pass.
const MOST_BLOCKS: usize = 64;

impl<In: Payload, Out: Payload, Target: Payload> Pipeline<In, Out, Target> {
    /// Estimates the bytes of device memory that training steps with batches like `batch` need, for each stage and each
    /// worker.
    ///
    /// The estimate comes from a rehearsal: a step that is run to measure its memory, and rolled back. The largest
    /// micro-batch of `batch` passes forward and backward through all stages twice, and every stage makes an optimizer
    /// step. If the caller has split the batch into micro-batches of different shapes, each shape is rehearsed, unless
    /// another shape is at least as large in every dimension. A rehearsal keeps the activations of only one micro-batch
    /// at a time, even if a step has many micro-batches.
    ///
    /// A rehearsal does not count as a step, and the next step has the same bits as without the rehearsal. The
    /// exceptions are burn's own dropout and burn's own batch norm. At every forward pass, the dropout draws random
    /// numbers, and the batch norm updates its statistics.
    ///
    /// The estimate is for steps that follow one another. [`MemoryEstimate::of_overlapping_steps`] converts the
    /// estimate to overlapping steps, and [`MemoryEstimate::with_checkpoints`] adds the copy of the state while a
    /// checkpoint is written. The result is `None` if the devices do not report their allocated memory. CPUs report it
    /// only if the program installs the [`CountingAllocator`](crate::CountingAllocator), and devices of other hosts
    /// never do. It is also `None` if stages of one worker are on different devices.
    ///
    /// On a GPU the estimate counts the bytes that tensors occupy in the GPU's memory pools between two actions,
    /// without the peaks during an action. The pools reserve more memory than these bytes, and no upper bound is known
    /// beforehand: a pool allocates large chunks, keeps each until it is empty, and every thread has separate pools. So
    /// a training run whose estimate is near the size of the GPU's memory may not fit.
    /// [`DeviceMemory::of`](crate::DeviceMemory::of) returns the reserved memory at any time. Programs of the crate
    /// `stageline-train` log it beside the estimate after the first step.
    ///
    /// # Errors
    /// Returns the same errors as [`step`](Self::step).
    pub fn estimate_memory(&mut self, batch: Batch<In, Target>) -> Result<Option<MemoryEstimate>, StepError> {
        Ok(self.rehearse(batch)?.map(|(estimate, _)| estimate))
    }

    /// Sets the activation recomputation of all stages (which part of its forward pass a stage recomputes in its
    /// backward passes), from the next step on. This replaces the setting in each stage's
    /// [`StageConfig`](crate::StageConfig).
    pub fn set_recompute(&mut self, recompute: Recompute) {
        self.stepping.recompute = (0..self.plan().stages()).map(|_| recompute).collect();
    }

    /// Returns each stage's activation recomputation, in stage order: which part of its forward pass it recomputes in
    /// its backward passes.
    pub fn recompute(&self) -> &[Recompute] {
        &self.stepping.recompute
    }

    /// Sets, for each stage, the least recomputation (activation checkpointing) that lets training steps fit into
    /// memory. Returns the memory estimate with this recomputation. `batch` is a batch as training uses it. `fits`
    /// returns whether a training run with a given estimate fits. If not even full recomputation fits, all stages
    /// recompute everything.
    ///
    /// The choice is minimal: with less recomputation on any one stage, the estimate would not fit. If several stages
    /// share one device's memory, recomputation is lowered first on the stages that recompute the most, because the
    /// slowest stage limits the pipeline.
    ///
    /// The result is `None`, and no stage recomputes anything, if the allocated memory is unknown
    /// ([`estimate_memory`](Self::estimate_memory)).
    ///
    /// # Errors
    /// Returns the same errors as [`step`](Self::step). On error, all stages keep their previous recomputation
    /// settings.
    pub fn recompute_to_fit(
        &mut self,
        batch: &Batch<In, Target>,
        fits: impl Fn(&MemoryEstimate) -> bool,
    ) -> Result<Option<MemoryEstimate>, StepError> {
        let before = self.stepping.recompute.clone();
        let found = self.least_to_fit(batch, fits);
        self.stepping.recompute = found.as_ref().map_or(before, |(recompute, _)| recompute.clone());
        found.map(|(_, estimate)| estimate)
    }

    /// Returns, for each stage, the least recomputation with which training steps fit into memory, and the memory
    /// estimate with it. `fits` returns whether a training run with a given estimate fits. If not even full
    /// recomputation fits, every stage recomputes everything. If the allocated memory is unknown, the estimate is
    /// `None` and no stage recomputes anything.
    fn least_to_fit(
        &mut self,
        batch: &Batch<In, Target>,
        fits: impl Fn(&MemoryEstimate) -> bool,
    ) -> Result<(Arc<[Recompute]>, Option<MemoryEstimate>), StepError> {
        let stages = self.plan().stages();
        let on_all = |recompute| vec![recompute; stages].into();
        let mut with = |recompute| {
            self.set_recompute(recompute);
            let rehearsed = self.rehearse(batch.clone())?;
            Ok::<_, StepError>(rehearsed.map(|(estimate, backwards)| Level { recompute, estimate, backwards }))
        };
        let Some(nothing) = with(Recompute::Nothing)? else { return Ok((on_all(Recompute::Nothing), None)) };
        if fits(&nothing.estimate) {
            return Ok((on_all(Recompute::Nothing), Some(nothing.estimate)));
        }
        let Some(full) = with(Recompute::Full)? else { return Ok((on_all(Recompute::Nothing), None)) };
        if !fits(&full.estimate) {
            return Ok((on_all(Recompute::Full), Some(full.estimate)));
        }
        let mut blocks = Vec::new();
        while blocks.len() < MOST_BLOCKS
            && let Some(some) = with(Recompute::Blocks(blocks.len() + 1))?
            && !some.estimate.keeps_no_more_than(&full.estimate)
        {
            blocks.push(some);
        }
        let selective = with(Recompute::Selective)?;
        let (recompute, estimate) = least(&in_order(nothing, selective, blocks, full), fits);
        Ok((recompute.into(), Some(estimate)))
    }

    /// Runs a rehearsal (a training step that only measures memory and is rolled back) for each shape of the batch's
    /// micro-batches. Returns the element-wise maximum of the rehearsals' memory estimates, and the longest total time
    /// of one micro-batch's backward passes through all stages. Returns `None` if the allocated memory is unknown.
    fn rehearse(&mut self, batch: Batch<In, Target>) -> Result<Option<(MemoryEstimate, Duration)>, StepError> {
        self.running()?;
        // Only the shapes matter. A loss weight of 1 lets micro-batches whose targets are all masked run like any
        // others.
        let weight = |target: &Target| {
            let weight = (self.scoring.weight)(target);
            if weight.is_zero() { weight.ones() } else { weight }
        };
        let batches = self.micro_batches_with(batch, &weight)?.largest(MICRO_BATCHES * self.replicas());
        let mut largest: Option<(MemoryEstimate, Duration)> = None;
        for repeated in batches {
            let Some((estimate, backwards)) = self.rehearsed(repeated).map_err(|ended| self.end(ended))? else {
                return Ok(None);
            };
            largest = Some(match largest {
                Some((before, longest)) => (before.or_larger(&estimate), longest.max(backwards)),
                None => (estimate, backwards),
            });
        }
        Ok(largest)
    }

    /// Runs one rehearsal (a training step that is rolled back) with micro-batches of one shape. Returns the resulting
    /// memory estimate, and the total time of one micro-batch's backward passes through all stages. Returns `None` if
    /// the allocated memory is unknown.
    fn rehearsed(&mut self, batch: MicroBatches<In, Target>) -> Result<Option<(MemoryEstimate, Duration)>, Ended> {
        self.workers.begin(During::Rehearsal { steps: self.done.steps });
        let plan = Arc::new(self.plan.rehearsal());
        let turns = Turns::of_replicas(self.transfers.streams.iter().map(|streams| (&*plan, streams)));
        let contexts = self.contexts_in_turns(batch.weights.divided(MICRO_BATCHES), &batch.weights.total, &turns);
        // A step that measures the gradient noise needs more memory, because layers do not add their gradients to the
        // gradient sums in place.
        let measures_noise = self.stepping.flush.noise_every > 0;
        let measuring = |context| {
            let context = Arc::into_inner(context).expect("a new context has one owner");
            Arc::new(Context { measures_noise, ..context })
        };
        let contexts: Vec<_> = contexts.into_iter().map(measuring).collect();
        let asked = self.asked(&contexts, Pass::Train).into_iter();
        let synchronised = |asked| Asked { plan: Arc::clone(&plan), clock: Clock::Synchronised, ..asked };
        self.workers.run(&batch, asked.map(synchronised).collect())?;
        let verdict = Verdict::Rehearse { examine: self.stepping.flush.health_every > 0 };
        let concluded = if self.sizes.stages.iter().flatten().any(|(device, _)| is_gpu(device)) {
            let stages: Vec<_> = plan.placement().stages_of().iter().map(Vec::len).collect();
            self.workers.conclude_in_turn(verdict, &stages)?
        } else {
            self.workers.conclude(verdict)?
        };
        let of_stages = concluded.into_iter().take(self.plan().stages()).map(|stage| stage.conclusion);
        let (states_on_host, gradients_beside) =
            of_stages.map(|conclusion| (conclusion.states_on_host, conclusion.gradients_beside)).unzip();
        let mut rows = self.workers.recorded()?;
        rows.truncate(self.plan().workers());
        let (stepped, groups) = (self.done.optimizer_steps > 0, self.sizes.groups);
        let buffer = self.workers.product_buffers();
        let (threads, rollback) = (KernelThreads { cores: self.sizes.cores, buffer }, self.stepping.rollback);
        let (stages, elsewhere) = (&self.sizes.stages[0], &self.sizes.stages[1..]);
        let plan = self.plan().clone();
        let rehearsal = Rehearsal {
            plan,
            stages,
            elsewhere,
            groups,
            threads,
            rollback,
            stepped,
            states_on_host,
            gradients_beside,
            rows,
        };
        let backwards = rehearsal.backwards();
        Ok(rehearsal.estimate().map(|estimate| (estimate, backwards)))
    }
}
