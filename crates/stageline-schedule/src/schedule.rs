//! What writes plans.

use std::fmt;

use crate::plan::Plan;

/// A generator of plans.
pub trait Schedule {
    /// The name in reports and on command lines, such as `1f1b`.
    fn name(&self) -> &'static str;

    /// The plan for `stages` stages (P) and `micro_batches` micro-batches (M).
    ///
    /// # Errors
    /// [`ScheduleError`] where there is no such plan.
    fn plan(&self, stages: usize, micro_batches: usize) -> Result<Plan, ScheduleError>;
}

impl<S: Schedule + ?Sized> Schedule for Box<S> {
    fn name(&self) -> &'static str {
        (**self).name()
    }

    fn plan(&self, stages: usize, micro_batches: usize) -> Result<Plan, ScheduleError> {
        (**self).plan(stages, micro_batches)
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
}

/// Why there is no plan for a number of stages and micro-batches.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScheduleError {
    /// No stages were asked for.
    NoStages,
    /// No micro-batches were asked for.
    NoMicroBatches,
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

/// One worker a stage, each with the list that `row` gives it.
pub(crate) fn one_worker_a_stage(
    stages: usize,
    micro_batches: usize,
    row: impl Fn(usize) -> Vec<crate::Action>,
) -> Result<Plan, ScheduleError> {
    match (stages, micro_batches) {
        (0, _) => Err(ScheduleError::NoStages),
        (_, 0) => Err(ScheduleError::NoMicroBatches),
        _ => Ok(Plan::new((0..stages).map(row).collect())),
    }
}
