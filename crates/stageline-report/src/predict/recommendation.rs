//! The training that is recommended for a run, and the reason in one sentence: [`Recommendation`].

use std::fmt;

use stageline_schedule::schedule_named;

use super::change::Change;
use super::question::Question;
use super::reason::{Compared, about_as_short};
use super::trainings::PredictedTraining;

/// The share of the time to the loss by which a changed setting must shorten the training to be recommended. A smaller
/// gain may be an error of the prediction.
const WORTH: f64 = 0.1;

/// The least share of the workers' time that additional workers may add to the throughput: with twice the workers a
/// training must be at least 1.6 times faster.
const EFFICIENT: f64 = 0.8;

/// The training that reaches the loss of a logged run in the least time, with the reason. As text it is one sentence.
#[derive(Clone, Debug, PartialEq)]
pub struct Recommendation {
    /// The setting that changes, besides the number of micro-batches.
    pub change: Change,
    /// The recommended training.
    pub training: PredictedTraining,
    /// The reason, from the predicted figures of this training and of another one.
    pub reason: String,
}

impl fmt::Display for Recommendation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (m, reason) = (self.training.micro_batches, &self.reason);
        match self.change {
            Change::None if m == 1 => write!(f, "no accumulation (M = 1): {reason}"),
            Change::None => write!(f, "M = {m}: {reason}"),
            Change::Schedule { name, chunks: 1 } => write!(f, "the schedule {name} with M = {m}: {reason}"),
            Change::Schedule { name, chunks } => {
                write!(f, "the schedule {name} with V = {chunks} and M = {m}: {reason}")
            }
            Change::Workers(workers) => write!(f, "P = {workers} with M = {m}: {reason}"),
            Change::Rows(rows) => write!(f, "micro-batches of {rows} times the rows with M = {m}: {reason}"),
        }
    }
}

/// Returns the recommended one of the `trainings` with the settings of the question and of the `alternatives` with one
/// changed setting; `None` if none fits into the memory.
///
/// A changed setting is recommended if its training is at least 10% shorter than the shortest without it. More workers
/// must also be used well: together they may take at most 1.25 times the worker-hours. Fewer workers are recommended if
/// the training takes no longer.
pub(super) fn recommended(
    question: &Question,
    trainings: &[PredictedTraining],
    alternatives: &[(Change, PredictedTraining)],
) -> Option<Recommendation> {
    let own = question.fastest(trainings);
    let better = alternatives.iter().filter(|(change, training)| match own {
        Some(own) => is_better(question, own, *change, training),
        None => true,
    });
    let better = better.filter_map(|(change, training)| Some((training.seconds()?, change, training)));
    let better = better.min_by(|a, b| a.0.total_cmp(&b.0));
    let (change, training, reason) = match (better, own) {
        (Some((_, change, training)), Some(own)) => (*change, training, of_change(question, own, *change, training)),
        (Some((_, change, training)), None) => (*change, training, of_memory(question)),
        (None, Some(own)) => (Change::None, own, of_micro_batches(question, trainings, own)),
        (None, None) => return None,
    };
    Some(Recommendation { change, training: training.clone(), reason })
}

/// Whether a training with a changed setting is recommended in place of `own`, the shortest without the change.
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

/// Returns the reason for a changed setting: its figures beside those of `own`, the shortest training without the change.
fn of_change(question: &Question, own: &PredictedTraining, change: Change, training: &PredictedTraining) -> String {
    let (m, compared) = (own.micro_batches, Compared { training, other: own });
    let other = match change {
        Change::None | Change::Rows(_) => format!("M = {m}"),
        Change::Schedule { .. } => {
            // A plan that no schedule generates has no name of its own.
            let name =
                schedule_named(question.target.schedule.name()).map_or("the plan of the run", |known| known.name());
            format!("{name} with M = {m}")
        }
        Change::Workers(_) => format!("P = {} with M = {m}", question.target.workers),
    };
    let because = match change {
        Change::Workers(workers) if workers > question.target.workers => format!(
            "because {workers} workers train {:.1} times the tokens a second at a bubble of {:.0}%",
            compared.throughput(),
            100.0 * training.prediction.bubble
        ),
        Change::Rows(_) if (training.batch / own.batch - 1.0).abs() < 1e-9 => format!(
            "because a batch of {:.0} tokens takes {} instead of {}",
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

/// Returns the reason for a number of micro-batches: the figures of the training `own`, which is the shortest, beside those
/// of the run's number of micro-batches, or of the next one if it is that of the run.
fn of_micro_batches(question: &Question, trainings: &[PredictedTraining], own: &PredictedTraining) -> String {
    let at = trainings.iter().position(|training| training.micro_batches == own.micro_batches).unwrap_or(0);
    let run = trainings.iter().find(|training| training.micro_batches == question.target.micro_batches);
    let beside = at.checked_sub(1).or(Some(at + 1)).and_then(|beside| trainings.get(beside));
    let first = match (own.micro_batches, run.filter(|run| run.micro_batches != own.micro_batches).or(beside)) {
        (_, None) => "the only M for which the plan is known".to_owned(),
        (1, Some(other)) if own.batch > question.noise.typical() => format!(
            "{} M = {}, because a batch of one micro-batch is {:.1} times the noise scale of {:.0} tokens",
            Compared { training: own, other }.faster(),
            other.micro_batches,
            own.batch / question.noise.typical(),
            question.noise.typical()
        ),
        (_, Some(other)) => {
            let compared = Compared { training: own, other };
            format!("{} M = {}, {}", compared.faster(), other.micro_batches, compared.because())
        }
    };
    let last = about_as_short(trainings, own, |training| question.fits(training));
    match trainings.get(last + 1) {
        Some(next) if !question.fits(next) => format!(
            "{first}; M = {} needs {:.1} MB on a worker, and {:.1} MB is the limit",
            next.micro_batches,
            next.peak_bytes().unwrap_or(f64::NAN) / 1e6,
            question.memory.unwrap_or(f64::NAN) / 1e6
        ),
        Some(next) if next.prediction.bubble < trainings[last].prediction.bubble => format!(
            "{first}; beyond M = {} the extra samples of a batch outweigh the shorter bubble",
            trainings[last].micro_batches
        ),
        Some(_) => format!(
            "{first}; beyond M = {} the extra samples of a batch cost more than they save steps",
            trainings[last].micro_batches
        ),
        None => first,
    }
}

fn milliseconds(seconds: f64) -> String {
    format!("{:.1} ms", 1e3 * seconds)
}
