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
use crate::recording::Clock;
use crate::rehearsal::Rehearsal;
use crate::turns::Turns;

impl<In: Payload, Target: Payload> Pipeline<In, Target> {
    /// What steps with such batches will hold, in bytes, by stage and by worker.
    ///
    /// The largest micro-batch of this one goes through all stages and back twice, by itself, and every stage makes an optimizer
    /// step that is then undone: nothing is counted, and the next step is the same to the bit. So this needs the memory of one
    /// live micro-batch, whatever M is. `None` where nothing counts what is held: on CPUs that is what the
    /// [`CountingAllocator`](crate::CountingAllocator) does.
    ///
    /// # Errors
    /// As for [`step`](Self::step).
    pub fn estimate_memory(&mut self, batch: Batch<In, Target>) -> Result<Option<MemoryEstimate>, StepError> {
        self.running()?;
        let twice = batch.cut(self.plan().micro_batches(), self.door.weight)?.largest_twice();
        self.rehearsed(twice).map_err(|ended| self.end(ended))
    }

    fn rehearsed(&mut self, batch: MicroBatches<In, Target>) -> Result<Option<MemoryEstimate>, Ended> {
        self.begin(During::Rehearsal { steps: self.steps });
        let total = batch.weights.total.clone();
        let plan = Arc::new(self.plan.rehearsal());
        let turns = Arc::new(Turns::new(&plan, &self.streams));
        let context = self.context_in_turns(batch.weights, total, turns);
        let pass = Pass::Train(context);
        self.run_by((batch.inputs, batch.targets), plan, pass, Clock::Synchronised)?;
        self.conclude(Verdict::Rehearse)?;
        let rows = self.recorded()?;
        let stepped = self.optimizer_steps > 0;
        Ok(Rehearsal { plan: self.plan().clone(), stages: &self.stages, stepped, rows }.estimate())
    }
}
