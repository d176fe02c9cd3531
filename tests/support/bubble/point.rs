//! One measurement of the bubble bench, in the form in which the bench prints it and writes it to JSON.

use std::fmt;

use serde::Serialize;

use crate::bubble::warm_up::WarmUp;

/// The measured figures of a schedule with P workers and M micro-batches, as medians of the measured steps. Bubbles are
/// shares of the *total* stage time (workers x step time).
#[derive(Serialize)]
pub struct Point {
    pub schedule: &'static str,
    /// P, the number of workers in the measurement.
    pub stages: usize,
    /// M, the number of micro-batches in a step of the measurement.
    pub micro_batches: usize,
    /// The number of samples in a micro-batch; 1 if the stages sleep instead of computing and the batch size is not
    /// fixed.
    pub micro_batch_size: usize,
    /// V, the number of chunks (stages) per worker in the measurement.
    pub r#virtual: usize,
    /// The kind of stages in the measured pipeline: `paced` (stages that sleep instead of computing), `cpu` or `cuda`.
    pub kind: String,
    /// The measured time of a step, in seconds.
    pub step_seconds: f64,
    /// The step time in theory, in seconds; `None` unless the stages sleep for a given time instead of computing.
    pub step_ideal_seconds: Option<f64>,
    /// The step time in seconds that [`predict`](crate::bubble::predict::predict) predicts from the steps of one or two
    /// reference cases; `None` without a prediction.
    pub step_predicted_seconds: Option<f64>,
    /// The measured bubble (idle share of the total stage time), from 0 to 1. The field `clock` says by which clock it
    /// was measured: that of the host, or of synchronised devices.
    pub bubble: f64,
    /// The name of the clock by which the fields `bubble`, `bubble_simulated` and `causes` were measured: `host clock`,
    /// or `device clock` if workers waited for their device after every action.
    pub clock: String,
    /// The bubble (idle share of the total stage time) in theory, with equal stages and free transfers: (P-1)/(M+P-1)
    /// for GPipe and 1F1B.
    pub bubble_ideal: f64,
    /// The bubble (idle share of the total stage time) of the plan in a simulation with the measured costs.
    pub bubble_simulated: f64,
    /// The measured throughput of the pipeline in samples per second; for the GPT, in tokens per second.
    pub throughput: f64,
    /// The throughput that follows from the predicted step time, in samples (for the GPT, tokens) per second; `None`
    /// without a prediction.
    pub throughput_predicted: Option<f64>,
    /// The number of steps in the warm-up of the measured case.
    pub warm_up_steps: usize,
    /// The spread of the step times at the end of the warm-up: how much longer the longest of the last steps took than
    /// the shortest, as a share of the shortest.
    pub warm_up_spread: f64,
    /// Whether the times of the last warm-up steps agreed; false if the warm-up ended because of its largest number of
    /// steps.
    pub warm_up_settled: bool,
    /// The largest number of live micro-batches (forward done, backward not) that a worker had, over all its chunks
    /// (stages).
    pub peak_live: usize,
    /// The largest number of bytes of host memory that a worker had in use, in the last measured step; `None` if memory
    /// was not measured.
    pub peak_bytes: Option<u64>,
    /// The idle time by cause in the last measured step, each cause as a share of the total stage time.
    #[serde(rename = "idle_by_cause")]
    pub causes: [(&'static str, f64); 7],
}

impl Point {
    /// Returns by how much the measured throughput exceeds the predicted one, as a share of the predicted one; `None`
    /// without a prediction.
    pub fn away(&self) -> Option<f64> {
        self.throughput_predicted.map(|predicted| self.throughput / predicted - 1.0)
    }

    /// Returns the number of steps in the warm-up of the measured case as text, with an asterisk if their times did not
    /// agree.
    pub fn warm_up(&self) -> String {
        format!("{}{}", self.warm_up_steps, if self.warm_up_settled { "" } else { "*" })
    }
}

/// Returns the line that explains the asterisk of a warm-up whose step times did not agree; `None` if the step times of
/// all warm-ups agreed. `criterion` is the criterion that ended the warm-ups.
pub fn unsettled(criterion: WarmUp, points: &[Point]) -> Option<String> {
    let WarmUp { agreeing, within, most } = criterion;
    points.iter().any(|point| !point.warm_up_settled).then(|| {
        format!(
            "* after {most} steps of warm-up, the times of the last {agreeing} still differed by more than {:.0}%",
            100.0 * within
        )
    })
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { schedule, stages, micro_batches, micro_batch_size, bubble, bubble_ideal, bubble_simulated, .. } =
            self;
        let away = self.away().map_or_else(String::new, |away| format!("{:+.1}%", 1e2 * away));
        let warm_up = self.warm_up();
        write!(
            f,
            "{schedule:<21} {stages:>3} {micro_batches:>4} {micro_batch_size:>4} {:>9.2} {bubble:>8.4} {bubble_ideal:>8.4} \
             {bubble_simulated:>9.4} {:>11.1} {away:>9} {:>5} {warm_up:>7}  {}",
            1e3 * self.step_seconds,
            self.throughput,
            self.peak_live,
            self.clock
        )
    }
}
