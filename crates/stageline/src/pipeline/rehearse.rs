//! What a step will hold.

use std::sync::Arc;

use super::Pipeline;
use super::pass::Ended;
use crate::batch::{Batch, MicroBatches};
use crate::context::Pass;
use crate::error::StepError;
use crate::estimate::MemoryEstimate;
use crate::failure::During;
use crate::flush::Verdict;
use crate::payload::Payload;
use crate::recompute::Recompute;
use crate::recording::Clock;
use crate::rehearsal::Rehearsal;
use crate::turns::Turns;

/// How many blocks of a stage are tried to be computed again before all are.
const MOST_BLOCKS: usize = 64;

impl<In: Payload, Target: Payload> Pipeline<In, Target> {
    /// What steps with such batches will hold, in bytes, by stage and by worker.
    ///
    /// The largest micro-batch of this one goes through all stages and back twice, by itself, and every stage makes an optimizer
    /// step that is then undone: nothing is counted, and the next step is the same to the bit (but for what burn's own dropout
    /// draws, and its own batch norm counts, at every forward). So this needs the memory of one live micro-batch, whatever M is.
    /// What stages with the same parameters send each other is not in it, nor what is held while a checkpoint is written, which
    /// [`MemoryEstimate::with_checkpoints`] adds. `None` where nothing counts what is held: on CPUs that is what the
    /// [`CountingAllocator`](crate::CountingAllocator) does.
    ///
    /// # Errors
    /// As for [`step`](Self::step).
    pub fn estimate_memory(&mut self, batch: Batch<In, Target>) -> Result<Option<MemoryEstimate>, StepError> {
        self.running()?;
        let twice = batch.cut(self.plan().micro_batches(), self.door.weight)?.largest_twice();
        self.rehearsed(twice).map_err(|ended| self.end(ended))
    }

    /// What all stages compute again in their backwards from now on, in place of what their configurations say.
    pub fn set_recompute(&mut self, recompute: Recompute) {
        self.stepping.recompute = (0..self.plan().stages()).map(|_| recompute).collect();
    }

    /// Lets all stages compute again as little as makes an estimate fit; all of it, where not even that does. Gives the estimate
    /// that it comes to, or `None` where nothing counts what is held: then nothing is computed again.
    ///
    /// # Errors
    /// As for [`step`](Self::step).
    pub fn recompute_to_fit(
        &mut self,
        batch: &Batch<In, Target>,
        fits: impl Fn(&MemoryEstimate) -> bool,
    ) -> Result<Option<MemoryEstimate>, StepError> {
        let mut with = |recompute| {
            self.set_recompute(recompute);
            self.estimate_memory(batch.clone())
        };
        let Some(all_kept) = with(Recompute::Nothing)? else { return Ok(None) };
        if fits(&all_kept) {
            return Ok(Some(all_kept));
        }
        if let Some(selective) = with(Recompute::Selective)?.filter(&fits) {
            return Ok(Some(selective));
        }
        let full = with(Recompute::Full)?;
        if !full.as_ref().is_some_and(&fits) {
            return Ok(full);
        }
        // It ends at as many blocks as there are, but two estimates are not the same to the byte.
        for blocks in 1..MOST_BLOCKS {
            if let Some(some) = with(Recompute::Blocks(blocks))?.filter(&fits) {
                return Ok(Some(some));
            }
        }
        self.set_recompute(Recompute::Full);
        Ok(full)
    }

    fn rehearsed(&mut self, batch: MicroBatches<In, Target>) -> Result<Option<MemoryEstimate>, Ended> {
        self.begin(During::Rehearsal { steps: self.steps });
        let total = batch.weights.total.clone();
        let plan = Arc::new(self.plan.rehearsal());
        let turns = Arc::new(Turns::new(&plan, &self.streams));
        let context = self.context_in_turns(batch.weights, total, turns);
        let pass = Pass::Train(context);
        self.run_by((batch.inputs, batch.targets), plan, pass, Clock::Synchronised)?;
        self.conclude(Verdict::Rehearse { examine: self.stepping.flush.health_every > 0 })?;
        let rows = self.recorded()?;
        let stepped = self.optimizer_steps > 0;
        Ok(Rehearsal { plan: Arc::clone(&self.plan), stages: &self.stages, stepped, rows }.estimate())
    }
}
