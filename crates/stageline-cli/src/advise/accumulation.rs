//! Answers, for `stageline advise`, how many micro-batches (M) a step should have. The answer has tables of predicted
//! training runs, and the recommended settings for the next one.

use std::error::Error;
use std::ops::Range;

use anyhow::Result;
use serde_json::Value;
use stageline_report::{
    Advice, Alternatives, Change, Cut, Measured, NoiseScales, PredictError, PredictedTraining, Question,
    Recommendation, RunLog, Target, Unit, record::Run,
};
use stageline_schedule::{Schedule, schedule_named};

use crate::logged_run::unequal_devices;
use crate::measured_search::cut_flag;
use crate::output::printable;

/// Inputs from which `stageline advise` recommends a number of micro-batches (M): a run's log, the baseline schedule,
/// and the recommended run's limits on memory and workers.
pub(super) struct Accumulation<'a> {
    pub(super) log: &'a RunLog,
    /// Name of the baseline schedule that other settings are compared with: the user's `--schedule`, or else the logged
    /// run's.
    pub(super) schedule: &'a str,
    pub(super) chunks: usize,
    /// Costs measured in a second run of the same model, with micro-batches of another size. Larger micro-batches are
    /// predicted only if these costs are given.
    pub(super) other_size: Option<&'a Measured>,
    /// Memory limit of each worker of the recommended run, in bytes; `None` for no limit.
    pub(super) memory: Option<f64>,
    pub(super) most_workers: Option<usize>,
}

/// The answer of `stageline advise` to the question of how many micro-batches (M) a step should have.
pub(super) struct Answer {
    /// Text tables with a row for each run that `stageline advise` predicts. A row has the run's settings, such as its
    /// number of micro-batches, and its predicted step time, bubble and memory.
    pub(super) tables: String,
    /// The recommended settings as lines of text, with the reason and the flags for a training run. If nothing is
    /// recommended, the text says why.
    pub(super) recommendation: String,
    /// The partition of the layers in the recommended run; `None` if nothing is recommended.
    pub(super) cut: Option<Vec<Range<usize>>>,
}

impl Accumulation<'_> {
    /// Answers how many micro-batches (M) a step should have.
    ///
    /// The answer has two tables of predicted runs: with 1 to 256 micro-batches, and with one other change, such as
    /// another schedule. The recommended settings and the reason follow. `target` is the baseline that other settings
    /// are compared with: its schedule, number of workers and partition of the layers.
    ///
    /// Nothing is recommended if the gradient noise scale is not known or the logged run's loss rises. The answer then
    /// says why, and only has the first table, without training times. Nothing is recommended either if no compared
    /// setting fits into the memory limit.
    pub(super) fn answer(&self, measured: &Measured, target: Target) -> Result<Answer> {
        match (self.log.noise_scales(), self.log.rising_loss()) {
            (Ok(noise), None) => self.by_noise(measured, target, &noise),
            (Ok(_), Some(reason)) => self.by_throughput(measured, &target, &reason),
            (Err(reason), _) => self.by_throughput(measured, &target, &reason),
        }
    }

    fn by_noise(&self, measured: &Measured, target: Target, noise: &NoiseScales) -> Result<Answer> {
        let Self { log, other_size, memory, most_workers, .. } = *self;
        let question = Question { log, noise, target, other_size, memory, most_workers };
        let Advice { trainings, alternatives, recommendation, unchanged } = measured.advise(&question)?;
        let mut tables =
            format!("to the loss of this run, by its noise scale ({}):\n", scale(noise, self.log.run.unit));
        let fits = |training: &PredictedTraining| question.fits(training);
        tables += &self.by_micro_batches(&trainings, fits);
        tables += without_memory(&trainings);
        tables += &beside_workers(&log.run);
        if !alternatives.found.is_empty() {
            tables += "other settings, each with the M that is recommended for it:\n";
            let rows = alternatives.found.iter();
            let name =
                |(change, training): &(_, PredictedTraining)| format!("{change}, M = {}", training.micro_batches);
            tables += &table("setting", self.log.run.unit, rows.map(|row| (name(row), &row.1)), fits);
        }
        tables += &left_out(&alternatives);
        if let Cut::Given(_) = question.target.cut {
            tables += "not compared: other numbers of workers and of chunks, because --hosts fixes the stages\n";
        } else if log.run.cut_by_hand {
            tables += "not compared: other numbers of workers and of chunks, because the model is cut by hand\n";
        }
        let mut text = match &recommendation {
            Some(recommendation) => self.recommended(recommendation),
            None => "recommendation: none, because no compared setting fits into the memory; give more --memory, train with \
                     --recompute, or log a run with smaller micro-batches\n"
                .to_owned(),
        };
        if matches!(&recommendation, Some(Recommendation { change: Change::Schedule { .. }, .. })) {
            text += "first log a short run of this schedule: the log of another one does not show what its chunks and split backwards cost\n";
        }
        if let Some(unchanged) = unchanged.filter(|unchanged| recommendation.as_ref() != Some(unchanged)) {
            text += &format!("without that change: {unchanged}\n");
        }
        text += &self.learning_rate(recommendation.as_ref());
        if self.log.is_adam() && recommendation.is_some() {
            text += "under Adam, larger batches may pay more than the noise scale says; take the recommended M as a lower bound\n";
        }
        let cut = recommendation.map(|recommendation| recommendation.training.prediction.cut);
        Ok(Answer { tables, recommendation: text, cut })
    }

    /// Returns the recommended settings, the reason as a sentence, and the flags of a training run with these settings,
    /// quoted for a shell. A sentence follows for each setting whose value is not in the log.
    fn recommended(&self, recommendation: &Recommendation) -> String {
        let Recommendation { change, training, reason } = recommendation;
        let cut = &training.prediction.cut;
        let workers = training.prediction.peak_live.len();
        let (schedule, by_hand) = self.schedule_flags(change, workers);
        let mut flags = format!("--stages {workers} --micro-batches {}", training.micro_batches);
        let mut missing = String::new();
        if let Change::Rows(rows) = change {
            match self.setting("micro_batch_size").and_then(Value::as_u64) {
                Some(size) => flags += &format!(" --micro-batch-size {}", size.saturating_mul(*rows as u64)),
                None => {
                    missing += &format!(
                        "the log does not have micro_batch_size: also make micro-batches {rows} times as large\n"
                    )
                }
            }
        }
        flags += &schedule;
        missing += &by_hand;
        missing += &unequal_devices(self.log, cut);
        let (settings, cut) = (recommendation.settings(), cut_flag(self.log, cut));
        format!("recommendation: {settings}\nreason: it is {reason}.\nas flags of a training: {flags}{cut}\n{missing}")
    }

    /// Returns the flags `--schedule` and `--chunks` for a training run with the changed setting `change` on `workers`
    /// workers. The second string has a line for each flag that the user must also give and whose value the log does
    /// not determine.
    pub(super) fn schedule_flags(&self, change: &Change, workers: usize) -> (String, String) {
        let devices = self.devices_to_list(workers);
        let (schedule, chunks) = match change {
            Change::Schedule { name, chunks } => (Some((*name).to_owned()), *chunks),
            Change::None | Change::Workers(_) | Change::Rows(_) => (self.schedule_flag(), self.chunks),
        };
        let Some(schedule) = schedule else {
            let unnamed = "the log does not name the file of its plan: also give it as --schedule\n";
            return (String::new(), unnamed.to_owned() + &devices);
        };
        let mut flags = format!(" --schedule {}", printable(&quoted(&schedule)));
        // Settings without a flag stay as in the logged run. So `--chunks` is also given if the run has chunks and this
        // schedule has one stage per worker.
        if (chunks > 1 || self.log.plan.chunks() > 1) && schedule_named(&schedule).is_ok() {
            flags += &format!(" --chunks {chunks}");
        }
        (flags, devices)
    }

    /// Returns a line of text if a run with `workers` workers needs another `--device` than the logged run: a program
    /// rejects more devices than workers, and more workers than in the run would share devices, which the prediction
    /// does not assume. Returns an empty string otherwise.
    fn devices_to_list(&self, workers: usize) -> String {
        let (own, replicas, devices) = (self.log.plan.workers(), self.log.run.replicas.max(1), self.log.devices());
        let of_all = devices.iter().any(|device| device.ends_with(":all"));
        // With `cuda:all`, the run had at most one device for each of its workers.
        let listed = if of_all { own * replicas } else { devices.len() };
        let used = workers.saturating_mul(replicas);
        if listed > used {
            return format!("the run has {listed} devices: also give --device with {used} of them\n");
        }
        let are_shared = self.log.shares_a_device() || devices.iter().all(|device| *device == "cpu");
        if workers > own && listed < used && !of_all && !are_shared {
            return format!(
                "the run has {listed} devices, and {used} workers would share them: also give --device with {used}\n"
            );
        }
        String::new()
    }

    /// Returns the value of the flag `--schedule` for a recommended run whose schedule is not changed. It is the
    /// schedule's name or, if no known schedule has this name, the logged run's value of `--schedule`, such as the path
    /// of a plan file. Returns `None` if the log does not have this value.
    fn schedule_flag(&self) -> Option<String> {
        if schedule_named(self.schedule).is_ok() {
            return Some(self.schedule.to_owned());
        }
        self.setting("schedule").and_then(Value::as_str).map(str::to_owned)
    }

    /// Returns the logged run's value of the setting `name`, such as `device`; `None` if it is not in the log.
    fn setting(&self, name: &str) -> Option<&Value> {
        self.log.run.configuration.get(name)
    }

    /// Returns a line of advice to retune the learning rate if the recommended batch size differs from the logged
    /// run's. Empty if it is the same, or if nothing is recommended.
    fn learning_rate(&self, recommendation: Option<&Recommendation>) -> String {
        let times = |recommendation: &Recommendation| Some(recommendation.training.batch / self.log.weight()?);
        let Some(times) = recommendation.and_then(times).filter(|times| (times - 1.0).abs() > 1e-9) else {
            return String::new();
        };
        let first = match self.log.is_adam() {
            true => format!(", under Adam at first {:.2} times that of the run", times.sqrt()),
            false => String::new(),
        };
        format!(
            "the batch has {times:.2} times the {} of the run's, and each batch is predicted with its best learning rate: tune it \
             again{first}\n",
            self.log.run.unit
        )
    }

    /// Returns a text table with a row for each number of micro-batches (M) in `trainings`. An asterisk marks the
    /// predicted runs for which `fits` returns false.
    fn by_micro_batches(&self, trainings: &[PredictedTraining], fits: impl Fn(&PredictedTraining) -> bool) -> String {
        let rows = trainings.iter().map(|training| (training.micro_batches.to_string(), training));
        table("M", self.log.run.unit, rows, fits)
    }

    fn by_throughput(&self, measured: &Measured, target: &Target, reason: &dyn Error) -> Result<Answer> {
        let trainings = measured.trainings(None, target)?;
        if self.memory.is_some() && trainings.iter().any(|training| training.peak_bytes().is_none()) {
            return Err(PredictError::NoMemory.into());
        }
        let fits = |training: &PredictedTraining| {
            self.memory.is_none_or(|limit| training.peak_bytes().is_some_and(|peak| peak <= limit))
        };
        let table = self.by_micro_batches(&trainings, fits);
        let table = table + without_memory(&trainings) + &beside_workers(&self.log.run);
        Ok(Answer {
            tables: format!("by throughput alone:\n{table}"),
            recommendation: format!("no M is recommended, and no other setting is compared: {reason}\n"),
            cut: None,
        })
    }
}

/// Lists the settings, such as other schedules, that were not compared, grouped by reason: one line of text per reason.
fn left_out(alternatives: &Alternatives) -> String {
    let mut by_reason: Vec<(String, Vec<String>)> = Vec::new();
    for (change, reason) in &alternatives.left_out {
        // The first line of an error about a plan is its reason; the others show the plan.
        let (change, reason) = (change.to_string(), reason.to_string().lines().next().unwrap_or_default().to_owned());
        match by_reason.iter_mut().find(|(other, _)| *other == reason) {
            Some((_, changes)) => changes.push(change),
            None => by_reason.push((reason, vec![change])),
        }
    }
    by_reason.iter().map(|(reason, changes)| format!("not compared: {}: {reason}\n", changes.join("; "))).collect()
}

fn scale(noise: &NoiseScales, unit: Unit) -> String {
    let shown = |scale: f64| match scale.is_finite() {
        true => format!("{scale:.0} {unit}"),
        false => "more than can be measured".to_owned(),
    };
    format!("median {}, at its end {}", shown(noise.typical()), shown(noise.last()))
}

/// Formats predicted runs as a text table, with one line per `(name, prediction)` in `rows` and `heading` above the
/// names. A dash stands for a value that is not predicted. An asterisk marks a run that exceeds the memory limit
/// (`fits` returns false).
fn table<'a>(
    heading: &str,
    unit: Unit,
    rows: impl Iterator<Item = (String, &'a PredictedTraining)>,
    fits: impl Fn(&PredictedTraining) -> bool,
) -> String {
    let rows: Vec<_> = rows.collect();
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0).max(heading.len()).max(5);
    let mut text = format!(
        "{heading:>width$} {:>10} {:>13} {:>10} {:>7} {:>10}  {:>9} {:>11} {:>10}\n",
        "batch",
        "step",
        format!("{unit}/s"),
        "bubble",
        "memory",
        "steps",
        unit.to_string(),
        "time"
    );
    for (name, training) in &rows {
        let empty = || "-".to_owned();
        let memory = training.peak_bytes().map_or_else(empty, |bytes| format!("{:.0} MB", bytes / 1e6));
        let count = |number: Option<f64>| number.map_or_else(empty, |number| format!("{number:.0}"));
        text += &format!(
            "{name:>width$} {:>10.0} {:>10.1} ms {:>10.0} {:>6.1}% {memory:>10}{} {:>9} {:>11} {:>10}\n",
            training.batch,
            1e3 * training.prediction.step,
            training.tokens_per_s(),
            100.0 * training.prediction.bubble.max(0.0),
            if fits(training) { " " } else { "*" },
            count(training.steps),
            count(training.tokens()),
            training.seconds().map_or_else(empty, duration)
        );
    }
    if rows.iter().any(|(_, training)| !fits(training)) {
        text += "* needs more than --memory\n";
    }
    text
}

/// Returns a line of text that says why no memory is predicted for some of the runs; empty if it is predicted for all.
fn without_memory(trainings: &[PredictedTraining]) -> &'static str {
    match trainings.iter().any(|training| training.peak_bytes().is_none()) {
        true => {
            "no memory is predicted: the log does not say how much its workers used; log a run of a program with the counting \
                 allocator, or of GPUs with --synchronise-every 20\n"
        }
        false => "",
    }
}

/// Returns a line of text about the host memory that the logged run needed for batches and optimizer state; empty if
/// the log has none. The tables and `--memory` leave this host memory out, because they describe the workers' devices.
fn beside_workers(run: &Run) -> String {
    // The numbers in a log are not trusted, so their sum may be too large for 64 bits.
    let states: u128 = run.memory.iter().map(|worker| u128::from(worker.optimizer_on_host)).sum();
    if run.batch_bytes == 0 && states == 0 {
        return String::new();
    }
    format!(
        "besides, the run needed {:.1} MB of the host's memory for batches and {:.1} MB for optimizer states on the host, which neither \
         the column memory nor --memory counts\n",
        run.batch_bytes as f64 / 1e6,
        states as f64 / 1e6
    )
}

/// Quotes a string if necessary, so that a shell passes it to a command as one argument.
fn quoted(text: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./,:=+@%".contains(letter);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

/// Returns a duration as text: in seconds below two minutes, in minutes below two hours, and otherwise in hours.
fn duration(seconds: f64) -> String {
    match seconds {
        ..120.0 => format!("{seconds:.1} s"),
        ..7200.0 => format!("{:.1} min", seconds / 60.0),
        _ => format!("{:.1} h", seconds / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use stageline_schedule::Plan;

    use super::*;

    #[test]
    fn words_for_a_shell_are_quoted() {
        assert_eq!(["zb-h1", "plans/a.csv"].map(quoted), ["zb-h1", "plans/a.csv"]);
        assert_eq!(["", "my plan.csv", "it's"].map(quoted), ["''", "'my plan.csv'", r"'it'\''s'"]);
    }

    /// Tests the recommended value of `--schedule` for a plan that no schedule generates: the path of the plan file
    /// with which the run was started.
    #[test]
    fn a_plan_without_a_generator_is_given_by_its_file() {
        let csv = "0F0,0B0\n";
        let run = Run {
            stageline: String::new(),
            schedule: "plan".to_owned(),
            plan: csv.to_owned(),
            replicas: 1,
            channel_capacity: 1,
            layers: Vec::new(),
            links: Vec::new(),
            memory: Vec::new(),
            cut_by_hand: false,
            batch_bytes: 0,
            unit: Unit::Tokens,
            tokens_per_micro_batch: 1.0,
            machine: BTreeMap::new(),
            configuration: BTreeMap::from([("schedule".to_owned(), "my plan.csv".into())]),
        };
        let plan = Plan::from_csv(csv).unwrap();
        let mut log = RunLog { run, plan, steps: Vec::new(), validations: Vec::new(), resumed_at: 0 };
        let flag = |log: &RunLog, schedule: &str| {
            let asked = Accumulation { log, schedule, chunks: 1, other_size: None, memory: None, most_workers: None };
            asked.schedule_flag()
        };
        assert_eq!(flag(&log, "plan").as_deref(), Some("my plan.csv"));
        assert_eq!(flag(&log, "zb-h1").as_deref(), Some("zb-h1"));
        log.run.configuration.clear();
        assert_eq!(flag(&log, "plan"), None);
    }
}
