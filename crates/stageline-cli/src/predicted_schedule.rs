//! Chooses the schedule for a prediction from the log of a run: a schedule that the user names, the schedule of the
//! run, or the plan that a search finds.

use anyhow::{Result, ensure};
use stageline_report::{Cut, Measured, RunLog};
use stageline_schedule::{Schedule, check_search_size, schedule_named};

use crate::measured_search::MeasuredSearch;
use crate::plan_flags;

/// Value of the flag `--schedule` that requests a search for the best plan with the measured costs.
pub(crate) const SEARCH: &str = "search";

/// The schedule that a prediction uses, with its name and the partition of the model's layers into stages.
pub(crate) struct Chosen {
    pub(crate) schedule: Box<dyn Schedule>,
    pub(crate) name: String,
    pub(crate) cut: Cut,
}

impl Chosen {
    /// Returns the schedule with the name `name` and `chunks` stages (chunks) on each worker. If `chunks` is `None`,
    /// the schedule of the logged run has the run's number of chunks, and any other schedule has its default number.
    pub(crate) fn named(log: &RunLog, name: &str, chunks: Option<usize>) -> Result<Self> {
        let own = (name == log.run.schedule).then(|| log.plan.chunks());
        Ok(Self { schedule: plan_flags::schedule(name, chunks.or(own))?, name: name.to_owned(), cut: Cut::OfTheRun })
    }

    /// Returns the schedule of the logged run, with `chunks` stages (chunks) on each worker, or the run's number if
    /// `chunks` is `None`. If the run's plan was searched or read from a file, returns this plan. It exists for one
    /// number of chunks only, so any other number is an error.
    pub(crate) fn of_run(log: &RunLog, chunks: Option<usize>) -> Result<Self> {
        let (name, own) = (&log.run.schedule, log.plan.chunks());
        if has_generator(log) {
            return Self::named(log, name, chunks);
        }
        let (workers, stages) = (log.plan.workers(), log.plan.stages());
        ensure!(
            chunks.is_none_or(|chunks| workers.checked_mul(chunks) == Some(stages)),
            "--chunks {}: the plan of the log has {stages} stages on {workers} workers, and no schedule generates it for \
             another number; leave --chunks out, or name a schedule with --schedule",
            chunks.unwrap_or(own)
        );
        Ok(Self { schedule: Box::new(log.plan.clone()), name: name.clone(), cut: Cut::OfTheRun })
    }

    /// Checks that the logged run's schedule can be used with `workers` workers and `micro_batches` micro-batches, and
    /// returns it. A plan that was searched or read from a file exists only for the run's own numbers, so other numbers
    /// are an error, which ends with `remedy`: the flags of the subcommand that choose another schedule. For a known
    /// schedule, such as 1F1B, does not check whether it has a plan for these numbers.
    pub(crate) fn checked(self, log: &RunLog, workers: usize, micro_batches: usize, remedy: &str) -> Result<Self> {
        let own = (log.plan.workers(), log.plan.micro_batches());
        ensure!(
            has_generator(log) || own == (workers, micro_batches),
            "the plan of the log was made for P = {} and M = {} alone, and no schedule generates it for P = {workers} and \
             M = {micro_batches}; {remedy}",
            own.0,
            own.1
        );
        Ok(self)
    }

    /// Searches for the plan with the shortest step by the measured costs, among those that do not deadlock with the
    /// channels of the predicted run. Returns it with the partition of the layers that the search assumed. `chunks` must
    /// be `None`, because the search chooses the number of chunks.
    pub(crate) fn searched(
        measured: &Measured,
        workers: usize,
        micro_batches: usize,
        chunks: Option<usize>,
    ) -> Result<Self> {
        ensure!(chunks.is_none(), "--chunks: a search chooses the number of stages on a worker; leave --chunks out");
        check_search_size(workers, micro_batches)?;
        let search = MeasuredSearch::new(measured.clone(), workers)?;
        let capacity = measured.channel_capacity().unwrap_or(micro_batches).min(micro_batches);
        let found = search.best(micro_batches, capacity)?;
        let plan = found.checked.plan().clone();
        let (cut, name) = (Cut::Given(search.cut(&plan)?), format!("{SEARCH} ({})", found.schedule));
        Ok(Self { schedule: Box::new(plan), name, cut })
    }
}

/// Whether a known schedule generated the plan of the logged run, so that it can generate plans for other numbers of
/// workers and micro-batches. False if the plan was searched or read from a file.
pub(crate) fn has_generator(log: &RunLog) -> bool {
    schedule_named(&log.run.schedule).is_ok()
}
