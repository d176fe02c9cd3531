//! Chooses the schedule for which a prediction is made from the log of a run: one that the user names, that of the run,
//! or the plan that a search finds.

use anyhow::{Result, ensure};
use stageline_report::{Cut, Measured, RunLog};
use stageline_schedule::{Schedule, schedule_named};

use crate::measured_search::MeasuredSearch;
use crate::shape;

/// The value `search` of the flag `--schedule`, which asks for a search for the best plan with the measured costs.
pub(crate) const SEARCH: &str = "search";

/// The schedule for which a prediction is made, with its name and the partition of the model's layers into the stages
/// of its plan.
pub(crate) struct Chosen {
    pub(crate) schedule: Box<dyn Schedule>,
    pub(crate) name: String,
    pub(crate) cut: Cut,
}

impl Chosen {
    /// Returns the schedule with the name `name`; if `chunks` is given, with this number of chunks (stages) on each
    /// worker.
    pub(crate) fn named(name: &str, chunks: Option<usize>) -> Result<Self> {
        Ok(Self { schedule: shape::schedule(name, chunks)?, name: name.to_owned(), cut: Cut::OfTheRun })
    }

    /// Returns the schedule of the logged run. A known schedule gets `chunks` chunks on each worker, or as many as in
    /// the run if `chunks` is `None`. If the run's plan was searched or read from a file, the result is this plan
    /// itself, which exists only for its own numbers of workers, chunks and micro-batches.
    pub(crate) fn of_run(log: &RunLog, chunks: Option<usize>) -> Result<Self> {
        let (name, own) = (&log.run.schedule, log.plan.chunks());
        if has_generator(log) {
            return Self::named(name, chunks.or(Some(own)));
        }
        ensure!(
            chunks.is_none_or(|chunks| chunks == own),
            "--chunks {}: the plan of the log has {own} stages on a worker, and no schedule generates it for another \
             number; leave --chunks out, or name a schedule with --schedule",
            chunks.unwrap_or(own)
        );
        Ok(Self { schedule: Box::new(log.plan.clone()), name: name.clone(), cut: Cut::OfTheRun })
    }

    /// Returns the chosen schedule unchanged, or an error if it cannot be used for `workers` workers and
    /// `micro_batches` micro-batches. The error occurs if no schedule generates the plan of the logged run, and this
    /// plan has other numbers of workers or micro-batches.
    pub(crate) fn checked(self, log: &RunLog, workers: usize, micro_batches: usize) -> Result<Self> {
        let own = (log.plan.workers(), log.plan.micro_batches());
        ensure!(
            has_generator(log) || own == (workers, micro_batches),
            "the log has a plan for P = {} and M = {}, which no schedule generates for P = {workers} and M = {micro_batches}; \
             give --schedule NAME, or --schedule {SEARCH} to search for a plan with the measured costs",
            own.0,
            own.1
        );
        Ok(self)
    }

    /// Returns the plan with the shortest step for the given numbers of workers and micro-batches by the measured
    /// costs, with the partition of the layers for which the plan was searched.
    pub(crate) fn searched(
        measured: &Measured,
        workers: usize,
        micro_batches: usize,
        chunks: Option<usize>,
    ) -> Result<Self> {
        ensure!(chunks.is_none(), "--chunks: a search chooses the number of stages on a worker; leave --chunks out");
        shape::not_too_large(workers, micro_batches)?;
        let search = MeasuredSearch::new(measured.clone(), workers)?;
        let found = search.best(micro_batches)?;
        let plan = found.checked.plan().clone();
        let (cut, name) = (Cut::Given(search.cut(&plan)?), format!("{SEARCH} ({})", found.schedule));
        Ok(Self { schedule: Box::new(plan), name, cut })
    }
}

/// Whether the schedule of the logged run is a known schedule, which can generate plans for other numbers of workers
/// and micro-batches. False if the run's plan was searched or read from a file.
pub(crate) fn has_generator(log: &RunLog) -> bool {
    schedule_named(&log.run.schedule).is_ok()
}
