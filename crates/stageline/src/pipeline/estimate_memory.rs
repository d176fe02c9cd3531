//! What a step will hold.

use std::sync::Arc;
use std::time::Duration;

use crate::failure::activity::During;
use crate::failure::step_error::StepError;
use crate::memory::choose_recompute::{Level, in_order, least};
use crate::memory::estimate::MemoryEstimate;
use crate::memory::rehearsal::Rehearsal;
use crate::model::batch::{Batch, MicroBatches};
use crate::model::payload::Payload;
use crate::pipeline::Pipeline;
use crate::pipeline::workers::Ended;
use crate::recording::Clock;
use crate::runner::pass::Pass;
use crate::threads::cores::KernelThreads;
use crate::transfer::order::Turns;
use crate::update::flush::Verdict;
use crate::worker::messages::Asked;
use stageline_nn::autograd::recompute::Recompute;

/// How many micro-batches of each replica are run.
const MICRO_BATCHES: usize = 2;

/// How many blocks of a stage are tried to be computed again before all are.
const MOST_BLOCKS: usize = 64;

impl<In: Payload, Target: Payload> Pipeline<In, Target> {
    /// What steps with such batches will hold, in bytes, by stage and by worker.
    ///
    /// The largest micro-batch of this one goes through all stages and back twice, by itself (where micro-batches that were cut by
    /// hand differ in shape, each that no other one contains), and every stage makes an optimizer step that is then undone: nothing is counted, and the next step is the same to the bit (but for what burn's own dropout
    /// draws, and its own batch norm counts, at every forward). So this needs the memory of one live micro-batch, whatever M is.
    /// It is of steps one after the other: [`MemoryEstimate::of_overlapping_steps`] is of others, and what is held while a checkpoint
    /// is written is added by [`MemoryEstimate::with_checkpoints`]. `None` where nothing counts what is held: on CPUs that is what
    /// the [`CountingAllocator`](crate::CountingAllocator) does.
    ///
    /// # Errors
    /// As for [`step`](Self::step).
    pub fn estimate_memory(&mut self, batch: Batch<In, Target>) -> Result<Option<MemoryEstimate>, StepError> {
        Ok(self.rehearse(batch)?.map(|(estimate, _)| estimate))
    }

    /// What all stages compute again in their backwards from now on, in place of what their configurations say.
    pub fn set_recompute(&mut self, recompute: Recompute) {
        self.stepping.recompute = (0..self.plan().stages()).map(|_| recompute).collect();
    }

    /// What each stage computes again in its backwards.
    pub fn recompute(&self) -> &[Recompute] {
        &self.stepping.recompute
    }

    /// Lets every stage compute again as little as makes an estimate fit; all of it, where not even that does. Gives the estimate
    /// that it comes to, or `None` where nothing counts what is held: then nothing is computed again.
    ///
    /// No stage could compute less again and it would still fit. Where stages share a memory, and one has to compute more again for
    /// another to compute less, those that compute the most again come first: the slowest stage is that of the pipeline.
    ///
    /// # Errors
    /// As for [`step`](Self::step).
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

    /// What is held, and how long backwards take.
    fn rehearse(&mut self, batch: Batch<In, Target>) -> Result<Option<(MemoryEstimate, Duration)>, StepError> {
        self.running()?;
        let batches = self.micro_batches(batch)?.largest(MICRO_BATCHES * self.replicas());
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

    fn rehearsed(&mut self, batch: MicroBatches<In, Target>) -> Result<Option<(MemoryEstimate, Duration)>, Ended> {
        self.workers.begin(During::Rehearsal { steps: self.done.steps });
        let plan = Arc::new(self.plan.rehearsal());
        let turns = Turns::of_replicas(self.transfers.streams.iter().map(|streams| (&*plan, streams)));
        let contexts = self.contexts_in_turns(batch.weights.divided(MICRO_BATCHES), &batch.weights.total, &turns);
        let asked = self.asked(&contexts, Pass::Train).into_iter();
        let synchronised = |asked| Asked { plan: Arc::clone(&plan), clock: Clock::Synchronised, ..asked };
        self.workers.run(&batch, asked.map(synchronised).collect())?;
        self.workers.conclude(Verdict::Rehearse { examine: self.stepping.flush.health_every > 0 })?;
        let mut rows = self.workers.recorded()?;
        rows.truncate(self.plan().workers());
        let (stepped, groups) = (self.done.optimizer_steps > 0, self.sizes.groups);
        let buffer = self.workers.packing_buffer();
        let (threads, rollback) = (KernelThreads { cores: self.sizes.cores, buffer }, self.stepping.rollback);
        let (stages, elsewhere) = (&self.sizes.stages[0], &self.sizes.stages[1..]);
        let rehearsal =
            Rehearsal { plan: self.plan().clone(), stages, elsewhere, groups, threads, rollback, stepped, rows };
        let backwards = rehearsal.backwards();
        Ok(rehearsal.estimate().map(|estimate| (estimate, backwards)))
    }
}
