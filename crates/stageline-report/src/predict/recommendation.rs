//! The settings that are recommended for the next training run after a logged run, and the reason in one sentence:
//! [`Recommendation`].

use std::fmt;

use stageline_schedule::schedule_named;

use super::changed_setting::Change;
use super::question::Question;
use super::reason::{Compared, about_as_short};
use super::trainings::PredictedTraining;

/// Minimum fraction (10%) of the predicted time that a changed setting must save to be recommended, because a smaller
/// gain may be a prediction error. Fewer workers are recommended even without a gain.
const WORTH: f64 = 0.1;

/// Fraction (10%) by which a predicted training run may take longer than the shortest one and still count as equally
/// fast, because a small difference may be a prediction error. It applies to training runs that differ only in their
/// number of micro-batches.
const ABOUT: f64 = 0.1;

/// The fraction (20%) by which a predicted training run with the optimizer Adam may take longer than the shortest one
/// and still count as equally fast. It is larger than for other optimizers because the noise scale is a lower bound
/// under Adam: larger batches save more steps than predicted.
const ABOUT_UNDER_ADAM: f64 = 0.2;

/// Minimum efficiency at which more workers are recommended: the worker-hours of a training run with the user's number
/// of workers, divided by the worker-hours with more workers. At 0.8, a training run with twice the workers must be at
/// least 1.6 times as fast.
const EFFICIENT: f64 = 0.8;

/// The recommended settings for the next training run, with the reason. They are chosen by the predicted time to reach
/// the logged run's final loss. A changed setting is recommended only if it saves at least 10% of this time. More
/// workers must also be used efficiently, but fewer workers need not save time: they are recommended unless they take
/// longer. `Display` formats the recommendation as one sentence.
#[derive(Clone, Debug, PartialEq)]
pub struct Recommendation {
    /// The one setting that is changed in the recommended training run, compared with the user's plan; [`Change::None`]
    /// if there is none. The number of micro-batches may differ as well.
    pub change: Change,
    /// The predicted training run with the recommended settings: its number of micro-batches, step time, memory and
    /// number of steps.
    pub training: PredictedTraining,
    /// The reason for the recommendation, as a string. It compares predicted measurements of the recommended training
    /// run with those of another one.
    pub reason: String,
}

impl Recommendation {
    /// Returns the recommended settings as a string, without the reason, such as `the schedule zb-h1 with M = 8`.
    pub fn settings(&self) -> String {
        let m = self.training.micro_batches;
        match self.change {
            Change::None if m == 1 => "no accumulation (M = 1)".to_owned(),
            Change::None => format!("M = {m}"),
            Change::Schedule { name, chunks: 1 } => format!("the schedule {name} with M = {m}"),
            Change::Schedule { name, chunks } => format!("the schedule {name} with V = {chunks} and M = {m}"),
            Change::Workers(workers) => format!("P = {workers} with M = {m}"),
            Change::Rows(rows) => format!("micro-batches of {rows} times the rows with M = {m}"),
        }
    }
}

impl fmt::Display for Recommendation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.settings(), self.reason)
    }
}

/// Recommends one of `trainings`: predicted training runs with the settings of the user's plan, which differ only in
/// their number of micro-batches (M). Returns `None` if no training run fits into the memory limit.
///
/// A training run counts as about as fast as the fastest one if it takes at most 10% more time (20% with Adam). The
/// recommended M is the first of these that applies:
///
/// - the logged run's M, if a training run with this M is among the about equally fast ones;
/// - the largest M of the about equally fast training runs, if the logged run's M is larger than that;
/// - the M of the fastest training run.
pub(super) fn recommended_m(question: &Question, trainings: &[PredictedTraining]) -> Option<Recommendation> {
    let shortest = question.fastest(trainings)?;
    let longer = if question.log.is_adam() { ABOUT_UNDER_ADAM } else { ABOUT };
    let equal = about_as_short(trainings, shortest, longer, |training| question.fits(training));
    let (run, last) = (question.target.micro_batches, trainings[*equal.last()?].micro_batches);
    let is_equal = equal.iter().find(|at| trainings[**at].micro_batches == run);
    let training = match is_equal {
        Some(at) => &trainings[*at],
        None if run > last => &trainings[*equal.last()?],
        None => shortest,
    };
    let run_fits = trainings.iter().any(|training| training.micro_batches == run && question.fits(training));
    let first = if training.micro_batches == shortest.micro_batches || (is_equal.is_none() && run_fits) {
        beside_another(question, trainings, training)
    } else {
        near_the_run(run, training, shortest, longer)
    };
    let reason = first + &of_more(question, trainings, *equal.last()?);
    Some(Recommendation { change: Change::None, training: training.clone(), reason })
}

/// Recommends one of `alternatives`, the predicted training runs with one changed setting. If several changes are worth
/// recommending, the one with the shortest training run is chosen. Returns `None` if no change is.
///
/// `own` is the recommended training run with the settings of the user's plan. It is `None` if no such training run
/// fits into the memory limit; the shortest of `alternatives` is then recommended without a comparison.
///
/// `trainings` are the predicted training runs with the settings of the plan. A changed schedule or number of workers
/// is compared with two of them: `own`, and the one that has the same M, if the latter fits into the memory limit.
/// Larger micro-batches are compared with `own` only. Each comparison must satisfy the rule of the changed setting:
///
/// - A changed schedule or micro-batch size is recommended if its training run is at least 10% shorter.
/// - More workers are recommended if their training run is at least 10% shorter, and takes at most 1.25 times the
///   worker-hours.
/// - Fewer workers are recommended if their training run takes no longer.
pub(super) fn recommended_change(
    question: &Question,
    own: Option<&PredictedTraining>,
    trainings: &[PredictedTraining],
    alternatives: &[(Change, PredictedTraining)],
) -> Option<Recommendation> {
    // A change is compared with an unchanged run at the same M. At another M, the gain could come from the M alone.
    let beside = |change: Change, training: &PredictedTraining| {
        let same_m = |own: &&PredictedTraining| own.micro_batches == training.micro_batches && question.fits(own);
        let same_m = trainings.iter().find(same_m).filter(|_| !matches!(change, Change::Rows(_)));
        same_m.or(own)
    };
    let better = alternatives.iter().filter(|(change, training)| {
        [beside(*change, training), own]
            .into_iter()
            .flatten()
            .all(|other| is_better(question, other, *change, training))
    });
    let better = better.filter_map(|(change, training)| Some((training.seconds()?, change, training)));
    let (_, change, training) = better.min_by(|a, b| a.0.total_cmp(&b.0))?;
    let reason = match beside(*change, training) {
        Some(same) => of_change(question, same, *change, training),
        None => of_memory(question),
    };
    Some(Recommendation { change: *change, training: training.clone(), reason })
}

/// Whether a training run with a changed setting is recommended in place of `own`, a training run with the settings of
/// the user's plan. False if the predicted time of one of the two is not known.
fn is_better(question: &Question, own: &PredictedTraining, change: Change, training: &PredictedTraining) -> bool {
    let (Some(before), Some(after)) = (own.seconds(), training.seconds()) else { return false };
    let shorter = after <= (1.0 - WORTH) * before;
    match change {
        Change::Workers(workers) if workers < question.target.workers => after <= before,
        Change::Workers(workers) => {
            let efficiency = before * question.target.workers as f64 / (after * workers as f64);
            shorter && efficiency >= EFFICIENT
        }
        Change::None | Change::Schedule { .. } | Change::Rows(_) => shorter,
    }
}

/// Returns a string that explains why a changed setting is recommended. It compares the predicted measurements of the
/// training run with this setting (`training`) with those of `own`, a training run with the settings of the user's
/// plan.
fn of_change(question: &Question, own: &PredictedTraining, change: Change, training: &PredictedTraining) -> String {
    let (m, compared) = (own.micro_batches, Compared { training, other: own });
    let other = match change {
        Change::None | Change::Rows(_) => format!("M = {m}"),
        Change::Schedule { .. } => {
            // A plan that a search found, or that was read from a file, has no schedule name.
            let own = question.target.schedule;
            let name = schedule_named(own.name()).map_or("the plan of the run", |known| known.name());
            match own.chunks() {
                1 => format!("{name} with M = {m}"),
                chunks => format!("{name} with V = {chunks} and M = {m}"),
            }
        }
        Change::Workers(_) => format!("P = {} with M = {m}", question.target.workers),
    };
    let unit = training.prediction.unit;
    let because = match change {
        Change::Workers(workers) if workers > question.target.workers => format!(
            "because {workers} workers train {:.1} times the {unit} a second at a bubble of {:.0}%",
            compared.throughput(),
            100.0 * training.prediction.bubble
        ),
        Change::Rows(_) if (training.batch / own.batch - 1.0).abs() < 1e-9 => format!(
            "because a batch of {:.0} {unit} takes {} instead of {}",
            own.batch,
            milliseconds(training.prediction.step),
            milliseconds(own.prediction.step)
        ),
        _ => compared.because(),
    };
    format!("{} {other}, {because}", compared.faster())
}

fn of_memory(question: &Question) -> String {
    let limit = question.memory.unwrap_or(f64::INFINITY) / 1e6;
    format!(
        "the fastest of the compared settings that fit into {limit:.1} MB a worker, because no M fits at P = {} under {}",
        question.target.workers,
        question.target.schedule.name()
    )
}

/// Returns a string that explains why the logged run's number of micro-batches (M), `run`, is recommended again, or the
/// nearest M that fits if `run` does not fit into the memory limit. The training run with the recommended M takes
/// longer than the shortest one, but by at most the fraction `longer`.
fn near_the_run(run: usize, training: &PredictedTraining, shortest: &PredictedTraining, longer: f64) -> String {
    let seconds = |training: &PredictedTraining| training.seconds().unwrap_or(f64::NAN);
    let near = match training.micro_batches == run {
        true => "as in the run".to_owned(),
        false => format!("as near to the M = {run} of the run as possible"),
    };
    format!(
        "{near}, because no M is more than {:.0}% faster to the same loss, and M = {} is the fastest by {:.0}%",
        100.0 * longer,
        shortest.micro_batches,
        100.0 * (seconds(training) / seconds(shortest) - 1.0)
    )
}

/// Returns a string that explains why the number of micro-batches (M) of the training run `own` is recommended. It
/// compares `own` with a predicted training run that differs only in M. This is the first of these that exists and fits
/// into the memory limit:
///
/// - the training run with the M of the logged run, unless `own` has this M
/// - the training run with the next smaller M
/// - the training run with the next larger M
fn beside_another(question: &Question, trainings: &[PredictedTraining], own: &PredictedTraining) -> String {
    // A training run that does not fit may be faster, so it cannot justify recommending another one.
    let fitting: Vec<_> = trainings.iter().filter(|training| question.fits(training)).collect();
    let at = fitting.iter().position(|training| training.micro_batches == own.micro_batches).unwrap_or(0);
    let run = fitting.iter().find(|training| training.micro_batches == question.target.micro_batches);
    let beside = at.checked_sub(1).or(Some(at + 1)).and_then(|beside| fitting.get(beside));
    let Some(other) = run.filter(|run| run.micro_batches != own.micro_batches).or(beside) else {
        let reason = if trainings.len() > 1 { "that fits into the memory" } else { "for which the plan is known" };
        return format!("the only M {reason}");
    };
    let (compared, scale) = (Compared { training: own, other }, question.noise.typical());
    let because = if own.micro_batches == 1 && scale == 0.0 {
        "because no gradient noise was measured, so larger batches save no steps".to_owned()
    } else if own.micro_batches == 1 && own.batch > scale {
        let times = own.batch / scale;
        format!(
            "because a batch of one micro-batch is {times:.1} times the noise scale of {scale:.0} {}",
            own.prediction.unit
        )
    } else {
        compared.because()
    };
    format!("{} M = {}, {because}", compared.faster(), other.micro_batches)
}

/// Returns a string that explains why no larger number of micro-batches (M) than the M of `trainings[last]` is
/// recommended: the training run with the next larger M does not fit into the memory limit, or takes too much longer
/// than the shortest one. The string is empty if no training run has a larger M. `trainings` is in ascending order of
/// M.
fn of_more(question: &Question, trainings: &[PredictedTraining], last: usize) -> String {
    let Some(next) = trainings.get(last + 1) else { return String::new() };
    let (m, last) = (trainings[last].micro_batches, &trainings[last]);
    if !question.fits(next) {
        return format!(
            "; M = {} needs {:.1} MB on a worker, and {:.1} MB is the limit",
            next.micro_batches,
            next.peak_bytes().unwrap_or(f64::NAN) / 1e6,
            question.memory.unwrap_or(f64::NAN) / 1e6
        );
    }
    // One worker has no pipeline: its idle time is an overhead of each step.
    if question.target.workers > 1 && next.prediction.bubble < last.prediction.bubble {
        return format!("; beyond M = {m} the extra samples of a batch outweigh the shorter bubble");
    }
    format!("; beyond M = {m} the extra samples of a batch cost more than they save steps")
}

fn milliseconds(seconds: f64) -> String {
    format!("{:.1} ms", 1e3 * seconds)
}
