//! One measurement of the bubble bench, in the form in which it is printed and written to JSON.

use std::fmt;

use serde::Serialize;

/// The figures of a schedule at one P and one M, as medians of the measured steps. Bubbles are shares of the *total*
/// stage time (workers x step time).
#[derive(Serialize)]
pub struct Point {
    pub schedule: &'static str,
    /// P, the number of workers.
    pub stages: usize,
    /// M, the number of micro-batches.
    pub micro_batches: usize,
    /// The number of samples in a micro-batch; 1 for paced stages without a fixed batch.
    pub micro_batch_size: usize,
    /// V, the number of chunks (stages) per worker.
    pub r#virtual: usize,
    /// The kind of the measured stages: `paced`, `cpu` or `cuda`.
    pub kind: String,
    /// The measured step time, in seconds.
    pub step_seconds: f64,
    /// The step time in theory, in seconds; `None` unless the stages are paced.
    pub step_ideal_seconds: Option<f64>,
    /// The step time in seconds that is predicted from the reference cases, by
    /// [`predict`](crate::bubble::predict::predict).
    pub step_predicted_seconds: Option<f64>,
    /// The measured bubble, from 0 to 1. The field `clock` names its clock.
    pub bubble: f64,
    /// The name of the clock of `bubble`, `bubble_simulated` and `causes`: `host clock`, or `device clock` if workers
    /// waited for their device after every action.
    pub clock: String,
    /// The bubble in theory, with equal stages and free transfers: (P-1)/(M+P-1) for GPipe and 1F1B.
    pub bubble_ideal: f64,
    /// The bubble of the plan in a simulation with the measured costs.
    pub bubble_simulated: f64,
    /// The measured throughput in samples a second; for the GPT, in tokens a second.
    pub throughput: f64,
    /// The throughput that follows from the predicted step time; `None` without a prediction.
    pub throughput_predicted: Option<f64>,
    /// The largest number of live micro-batches of a worker, over all its chunks.
    pub peak_live: usize,
    /// The largest number of bytes that a worker had in use on the CPU, in the last measured step.
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
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { schedule, stages, micro_batches, micro_batch_size, bubble, bubble_ideal, bubble_simulated, .. } =
            self;
        let away = self.away().map_or_else(String::new, |away| format!("{:+.1}%", 1e2 * away));
        write!(
            f,
            "{schedule:<21} {stages:>3} {micro_batches:>4} {micro_batch_size:>4} {:>9.2} {bubble:>8.4} {bubble_ideal:>8.4} \
             {bubble_simulated:>9.4} {:>11.1} {away:>9} {:>5}  {}",
            1e3 * self.step_seconds,
            self.throughput,
            self.peak_live,
            self.clock
        )
    }
}
