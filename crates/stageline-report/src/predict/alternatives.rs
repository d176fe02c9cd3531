//! Predicts training runs in which one setting differs from the user's plan: another schedule, another number of
//! workers, or larger micro-batches ([`Alternatives`]).

use stageline_schedule::{SCHEDULES, Schedule, ScheduleError};

use super::changed_setting::Change;
use super::error::PredictError;
use super::measured::Measured;
use super::question::Question;
use super::recommendation::recommended_m;
use super::target::{Cut, Target};
use super::trainings::PredictedTraining;

/// Maximum number of chunks (stages per worker) to try for schedules that allow any number.
const MOST_CHUNKS: usize = 4;

/// Factors by which predicted training runs enlarge the logged run's micro-batches: multiples of their number of rows
/// (samples).
const ROWS: [usize; 2] = [2, 4];

/// The predicted training runs in which one setting differs from the user's plan. Each uses its recommended number of
/// micro-batches. Settings that could not be predicted are listed with the reason.
#[derive(Debug, Default)]
pub struct Alternatives {
    /// The changed settings, each with its predicted training run at the recommended number of micro-batches.
    pub found: Vec<(Change, PredictedTraining)>,
    /// The changed settings without a predicted training run, each with the reason.
    pub left_out: Vec<(Change, LeftOut)>,
}

/// The reason why `stageline advise` does not compare a changed setting, such as another schedule.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LeftOut {
    /// A training run with the changed setting cannot be predicted; the field is the error.
    #[error(transparent)]
    Predict(#[from] PredictError),
    /// With the changed setting (such as another schedule), a training run exceeds a worker's memory limit at every
    /// compared number of micro-batches. The field is this limit in MB.
    #[error("no M fits into {0:.1} MB a worker")]
    Memory(f64),
    /// The memory of larger micro-batches cannot be predicted, so it is unknown whether they fit into the user's memory
    /// limit. Leave out `--memory` to compare them.
    #[error(
        "the memory of larger micro-batches is not predicted, so whether they fit is not known; leave --memory out"
    )]
    UnknownMemory,
    /// The batch cannot be divided into larger micro-batches: its number of micro-batches is not a multiple of `rows`.
    #[error("the recommended M = {micro_batches} is no multiple of {rows}")]
    Indivisible {
        /// Number of micro-batches in a step of the recommended training run with the settings of the user's plan. It
        /// is not a multiple of `rows`.
        micro_batches: usize,
        /// Ratio of the new number of rows (samples) per micro-batch to the logged run's.
        rows: usize,
    },
    /// The schedule has no plan for the number of larger micro-batches. Some schedules have plans only for multiples of
    /// the number of workers.
    #[error("the schedule has no plan for M = {micro_batches}, the same batch in larger micro-batches")]
    NoPlan {
        /// Number of larger micro-batches that the same batch would have, which the schedule does not support.
        micro_batches: usize,
    },
    /// A training run with the changed number of workers cannot be predicted from the log, because all workers share
    /// the host's CPU cores: each would have more or fewer cores than in the logged run, and so another speed. Log a
    /// short run with the changed `--stages`.
    #[error(
        "the workers share the {cores} cores of their host, and each would have another part of them than in the log; log a short run \
         with these --stages"
    )]
    SharedCores {
        /// Number of CPU cores of the host, which all workers share.
        cores: usize,
    },
    /// A training run with the changed number of workers cannot be predicted from the log, because the run's workers
    /// share a device. Log a short run with the changed `--stages`.
    #[error(
        "workers of the log share a device, so it does not show how fast another number of them is; log a short run with these \
         --stages"
    )]
    SharedDevice,
    /// The costs of larger micro-batches are unknown, because only one micro-batch size was measured. Give the log of a
    /// run with another micro-batch size with `--other-size`.
    #[error(
        "the costs of larger micro-batches are not measured; log a run of the model with another --micro-batch-size, and give \
         its log with --other-size"
    )]
    OneSize,
}

impl Measured {
    /// Predicts training runs in which one setting, such as the schedule, differs from the user's plan. `own` is the
    /// recommended training run with the settings of that plan; `None` if no such training run fits into the memory
    /// limit.
    pub(super) fn alternatives(&self, question: &Question, own: Option<&PredictedTraining>) -> Alternatives {
        let mut all = Alternatives::default();
        for (change, schedule) in self.schedules(question) {
            let target = Target { schedule: &*schedule, cut: question.target.cut.clone(), ..question.target };
            all.add(change, self.best(question, &target));
        }
        for workers in self.workers(question) {
            let target = Target { workers, cut: Cut::Balanced, ..question.target };
            let best = match question.log.other_cores(workers) {
                Some(cores) => Err(LeftOut::SharedCores { cores }),
                None if question.log.shares_another(workers) => Err(LeftOut::SharedDevice),
                None => self.best(question, &target),
            };
            all.add(Change::Workers(workers), best);
        }
        for (rows, own) in ROWS.into_iter().flat_map(|rows| own.map(|own| (rows, own))) {
            all.add(Change::Rows(rows), self.with_rows(question, own, rows).map(Some));
        }
        all
    }

    /// Whether the stages are fixed, because the caller gave a partition or the user has cut the model by hand. If so,
    /// all compared training runs have the same number of workers, and of stages per worker.
    fn has_fixed_stages(&self, question: &Question) -> bool {
        self.cut_by_hand || matches!(question.target.cut, Cut::Given(_))
    }

    /// Returns the schedules to compare with the user's own. Their plans have at most one stage per layer of the model.
    ///
    /// If the stages are fixed ([`has_fixed_stages`](Self::has_fixed_stages)), all schedules have the same number of
    /// stages per worker as the user's.
    fn schedules(&self, question: &Question) -> Vec<(Change, Box<dyn Schedule>)> {
        let Target { workers, schedule: own, .. } = &question.target;
        let fixed = self.has_fixed_stages(question);
        let stages = own.stages_on(*workers);
        let fits = |chunks: usize| if fixed { workers * chunks == stages } else { workers * chunks <= self.layers() };
        let mut found = Vec::new();
        for schedule in SCHEDULES {
            let chunked = (2..=MOST_CHUNKS).filter(|chunks| *chunks != schedule.chunks());
            let chunked = chunked.filter_map(|chunks| schedule.with_chunks(chunks));
            for schedule in [Box::new(*schedule) as Box<dyn Schedule>].into_iter().chain(chunked) {
                let (name, chunks) = (schedule.name(), schedule.chunks());
                if fits(chunks) && (name, chunks) != (own.name(), own.chunks()) {
                    found.push((Change::Schedule { name, chunks }, schedule));
                }
            }
        }
        found
    }

    /// Returns the numbers of workers to compare with the user's own: the powers of two, and the user's number plus and
    /// minus one.
    ///
    /// They are limited by the number of layers (each stage needs a layer) and by the user's maximum. The list is empty
    /// if the stages are fixed ([`has_fixed_stages`](Self::has_fixed_stages)).
    fn workers(&self, question: &Question) -> Vec<usize> {
        let Target { workers: own, schedule, .. } = &question.target;
        if self.has_fixed_stages(question) {
            return Vec::new();
        }
        let most = (self.layers() / schedule.chunks().max(1)).min(question.most_workers.unwrap_or(usize::MAX));
        let powers = (0..).map(|power| 1_usize << power).take_while(|workers| *workers <= most);
        let mut all: Vec<_> = powers.chain([own.saturating_sub(1), own + 1]).collect();
        all.retain(|workers| (1..=most).contains(workers) && workers != own);
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Predicts a training run with the same batch as `own`, but in micro-batches with `rows` times as many rows
    /// (samples). `own` is the recommended training run with the settings of the user's plan. Returns a [`LeftOut`]
    /// reason if there is no prediction, for example because only one micro-batch size was measured or there is a
    /// memory limit.
    fn with_rows(
        &self,
        question: &Question,
        own: &PredictedTraining,
        rows: usize,
    ) -> Result<PredictedTraining, LeftOut> {
        let Some(other) = question.other_size else { return Err(LeftOut::OneSize) };
        if question.memory.is_some() {
            return Err(LeftOut::UnknownMemory);
        }
        if !own.micro_batches.is_multiple_of(rows) {
            return Err(LeftOut::Indivisible { micro_batches: own.micro_batches, rows });
        }
        let sized = self.with_size(other, rows as f64 * self.tokens)?;
        let target = Target { cut: question.target.cut.clone(), ..question.target };
        let micro_batches = own.micro_batches / rows;
        let training = sized.training(Some(question.noise), &target, micro_batches)?;
        training.ok_or(LeftOut::NoPlan { micro_batches })
    }

    /// Predicts training runs with the plan `target` and several numbers of micro-batches (M). Returns the one with the
    /// best M, chosen by the same rule as for the user's own plan ([`recommended_m`]): the logged run's M, unless
    /// another M is clearly faster.
    ///
    /// Returns `None` if the schedule has no plan for any number of micro-batches, or is a single plan for other
    /// numbers of workers or stages. Returns [`LeftOut::Memory`] if no training run fits into the memory limit.
    fn best(&self, question: &Question, target: &Target) -> Result<Option<PredictedTraining>, LeftOut> {
        let trainings = match self.trainings(Some(question.noise), target) {
            // A plan that a search found, or that was read from a file, exists for one number of workers only.
            Err(PredictError::Schedule(ScheduleError::Shape { .. }) | PredictError::Workers { .. }) => return Ok(None),
            trainings => trainings?,
        };
        match (recommended_m(question, &trainings), question.memory) {
            (None, Some(limit)) if !trainings.is_empty() => Err(LeftOut::Memory(limit / 1e6)),
            (recommended, _) => Ok(recommended.map(|recommended| recommended.training)),
        }
    }
}

impl Alternatives {
    fn add(&mut self, change: Change, best: Result<Option<PredictedTraining>, LeftOut>) {
        match best {
            Ok(Some(training)) => self.found.push((change, training)),
            // A schedule without a plan for any of the compared numbers of micro-batches is not listed.
            Ok(None) => {}
            Err(reason) => self.left_out.push((change, reason)),
        }
    }
}
