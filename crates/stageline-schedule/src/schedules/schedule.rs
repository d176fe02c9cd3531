//! The trait of all schedules, which generate plans for given numbers of stages and micro-batches.

use std::ops::Deref;

use super::error::ScheduleError;
use crate::costs::StageCost;
use crate::plan::Plan;

/// A schedule, such as 1F1B: it generates plans for given numbers of stages and micro-batches.
pub trait Schedule {
    /// Returns the name of the schedule for reports and command lines, such as `1f1b`.
    fn name(&self) -> &'static str;

    /// Returns the schedule's plan for `stages` stages and `micro_batches` micro-batches (M) per step.
    ///
    /// `stages` counts the stages of the whole model. Each worker has V stages ([`chunks`](Self::chunks)), so there are
    /// P = `stages` / V workers.
    ///
    /// # Errors
    /// Returns a [`ScheduleError`] if the schedule has no plan for these numbers.
    fn plan(&self, stages: usize, micro_batches: usize) -> Result<Plan, ScheduleError>;

    /// Returns the number of stages (chunks of the model) that the schedule places on each worker (V); 1 by default.
    fn chunks(&self) -> usize {
        1
    }

    /// Returns the number of stages of the schedule's plans for `workers` workers. The result is `workers` x V for a
    /// schedule with V stages per worker. A schedule that is a single plan (such as one from a file) may have unequal
    /// numbers of stages on its workers. For its own number of workers, the result is then the plan's number of stages.
    fn stages_on(&self, workers: usize) -> usize {
        workers.saturating_mul(self.chunks())
    }

    /// Returns this schedule with `chunks` chunks (stages) per worker; `None` if its number of chunks is fixed.
    fn with_chunks(&self, chunks: usize) -> Option<Box<dyn Schedule>> {
        let _ = chunks;
        None
    }

    /// Computes the step time of the schedule's plan by a formula, without generating the plan. `cost` has the times of
    /// one stage, and the result is in the same time unit. Returns `None` where no formula is known.
    ///
    /// The result equals the step time from [`simulate`](crate::simulate()) if every stage has these costs for every
    /// micro-batch and transfers are asynchronous. Each schedule documents its formula and its conditions.
    fn closed_form(&self, stages: usize, micro_batches: usize, cost: StageCost) -> Option<f64> {
        let _ = (stages, micro_batches, cost);
        None
    }
}

/// Lets a reference to a schedule, or a boxed schedule, be used as a schedule itself.
impl<S: Deref<Target: Schedule>> Schedule for S {
    fn name(&self) -> &'static str {
        (**self).name()
    }

    fn plan(&self, stages: usize, micro_batches: usize) -> Result<Plan, ScheduleError> {
        (**self).plan(stages, micro_batches)
    }

    fn chunks(&self) -> usize {
        (**self).chunks()
    }

    fn stages_on(&self, workers: usize) -> usize {
        (**self).stages_on(workers)
    }

    fn with_chunks(&self, chunks: usize) -> Option<Box<dyn Schedule>> {
        (**self).with_chunks(chunks)
    }

    fn closed_form(&self, stages: usize, micro_batches: usize, cost: StageCost) -> Option<f64> {
        (**self).closed_form(stages, micro_batches, cost)
    }
}

/// Lets a plan, such as one that was read from a file, be used as a schedule. This schedule has a plan only for the
/// plan's own numbers of stages and micro-batches.
impl Schedule for Plan {
    fn name(&self) -> &'static str {
        "plan"
    }

    fn plan(&self, stages: usize, micro_batches: usize) -> Result<Plan, ScheduleError> {
        let (written, asked) = ((self.stages(), self.micro_batches()), (stages, micro_batches));
        if written == asked { Ok(self.clone()) } else { Err(ScheduleError::Shape { written, asked }) }
    }

    fn chunks(&self) -> usize {
        self.stages().checked_div(self.workers()).unwrap_or(1)
    }

    fn stages_on(&self, workers: usize) -> usize {
        // The workers of a plan may have unequal numbers of stages.
        if workers == self.workers() { self.stages() } else { workers.saturating_mul(self.chunks()) }
    }
}
