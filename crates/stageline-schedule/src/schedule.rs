//! What writes plans.

use std::fmt;
use std::ops::Deref;

use crate::costs::StageCost;
use crate::plan::Plan;

/// A generator of plans.
pub trait Schedule {
    /// The name in reports and on command lines, such as `1f1b`.
    fn name(&self) -> &'static str;

    /// The plan for `stages` stages and `micro_batches` micro-batches (M). The stages are those of the whole model, V on
    /// each worker: there are `stages` / V workers (P).
    ///
    /// # Errors
    /// [`ScheduleError`] where there is no such plan.
    fn plan(&self, stages: usize, micro_batches: usize) -> Result<Plan, ScheduleError>;

    /// V: how many stages each worker has, its chunks of the model.
    fn chunks(&self) -> usize {
        1
    }

    /// The same schedule with another number of chunks a worker, where it leaves the choice.
    fn with_chunks(&self, chunks: usize) -> Option<Box<dyn Schedule>> {
        let _ = chunks;
        None
    }

    /// The step in closed form, where every stage takes `cost` for every micro-batch and transfers are asynchronous: what
    /// [`simulate`](crate::simulate()) finds, without writing the plan. `None` where no form is known to hold; each
    /// schedule says where it is.
    fn closed_form(&self, stages: usize, micro_batches: usize, cost: StageCost) -> Option<f64> {
        let _ = (stages, micro_batches, cost);
        None
    }
}

/// What stands for a schedule is one: a reference, a box.
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

    fn with_chunks(&self, chunks: usize) -> Option<Box<dyn Schedule>> {
        (**self).with_chunks(chunks)
    }

    fn closed_form(&self, stages: usize, micro_batches: usize, cost: StageCost) -> Option<f64> {
        (**self).closed_form(stages, micro_batches, cost)
    }
}

/// A plan written by hand or read from a file is the schedule of its own shape only.
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
}

/// Why there is no plan for a number of stages and micro-batches.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScheduleError {
    /// No stages were asked for.
    NoStages,
    /// No micro-batches were asked for.
    NoMicroBatches,
    /// No chunks were asked for.
    NoChunks,
    /// The stages cannot be dealt out evenly in chunks.
    Chunks {
        /// The stages asked for.
        stages: usize,
        /// The chunks a worker.
        chunks: usize,
    },
    /// The schedule is only defined for some numbers of micro-batches.
    MicroBatches {
        /// The micro-batches asked for.
        given: usize,
        /// What they must be a multiple of.
        multiple_of: usize,
    },
    /// A ready-made plan has another shape, as (stages, micro-batches).
    Shape {
        /// What the plan was written for.
        written: (usize, usize),
        /// What it was asked to run.
        asked: (usize, usize),
    },
}

impl fmt::Display for ScheduleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoStages => write!(f, "0 stages: a pipeline needs at least 1 stage"),
            Self::NoMicroBatches => {
                write!(f, "0 micro-batches: cut the batch into at least 1 micro-batch")
            }
            Self::NoChunks => write!(f, "0 chunks a worker: every worker needs at least 1 chunk of the model"),
            Self::Chunks { stages, chunks } => {
                let near = nearest_multiples(*stages, *chunks);
                write!(f, "{stages} stages cannot be dealt out in {chunks} chunks a worker; ask for {near} stages")
            }
            Self::MicroBatches { given, multiple_of } => {
                let near = nearest_multiples(*given, *multiple_of);
                write!(f, "{given} micro-batches are not a multiple of {multiple_of}; ask for {near} micro-batches")
            }
            Self::Shape { written, asked } => write!(
                f,
                "the plan is for {} stages and {} micro-batches, but the pipeline has {} stages and {} micro-batches; \
                 write the plan anew for these, or use a schedule that writes it",
                written.0, written.1, asked.0, asked.1
            ),
        }
    }
}

impl std::error::Error for ScheduleError {}

/// The multiples of `unit` on both sides of `value`, without 0.
fn nearest_multiples(value: usize, unit: usize) -> String {
    let below = value / unit * unit;
    if below == 0 { unit.to_string() } else { format!("{below} or {}", below + unit) }
}
