//! One measurement.

use std::fmt;

use serde::Serialize;
use stageline::Account;

/// What a schedule gave at one P and M: medians of the measured steps. Bubbles are shares of the *total* stage time.
#[derive(Serialize)]
pub struct Point {
    pub schedule: &'static str,
    /// P, the number of workers.
    pub stages: usize,
    pub micro_batches: usize,
    /// V, chunks a worker.
    pub r#virtual: usize,
    pub kind: String,
    pub step_seconds: f64,
    /// In theory, of paced stages.
    pub step_ideal_seconds: Option<f64>,
    /// Measured, by `clock`.
    pub bubble: f64,
    /// The clock of `bubble`, `bubble_simulated` and `causes`: `host clock`, or `device clock` where workers waited for their device
    /// after every action.
    pub clock: String,
    /// Of the plan with equal stages and free transfers; of GPipe and 1F1B that is (P-1)/(M+P-1).
    pub bubble_ideal: f64,
    /// Of the same plan with the measured costs.
    pub bubble_simulated: f64,
    /// Samples a second; of the GPT tokens.
    pub throughput: f64,
    /// The most live micro-batches of a worker, all its chunks together.
    pub peak_live: usize,
    /// The most bytes that a worker held, on the CPU; of one step.
    pub peak_bytes: Option<u64>,
    /// Shares of the total stage time, by cause; of one step.
    #[serde(rename = "idle_by_cause")]
    pub causes: [(&'static str, f64); 7],
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { schedule, stages, micro_batches, bubble, bubble_ideal, bubble_simulated, .. } = self;
        let away = bubble - bubble_ideal;
        write!(
            f,
            "{schedule:<21} {stages:>3} {micro_batches:>4} {:>9.2} {bubble:>8.4} {bubble_ideal:>8.4} {away:>+8.4} \
             {bubble_simulated:>9.4} {:>11.1} {:>5}  {}",
            1e3 * self.step_seconds,
            self.throughput,
            self.peak_live,
            self.clock
        )
    }
}

/// The causes of the idle time of all workers, as shares of the total.
pub fn causes(accounts: &[Account], took: f64) -> [(&'static str, f64); 7] {
    let total = took * accounts.len() as f64;
    let share = |cause: fn(&Account) -> f64| accounts.iter().map(cause).sum::<f64>() / total;
    [
        ("fill", share(|account| account.fill)),
        ("drain", share(|account| account.drain)),
        ("imbalance", share(|account| account.imbalance)),
        ("transfer", share(|account| account.transfer)),
        ("flush", share(|account| account.flush)),
        ("asking", share(|account| account.asking)),
        ("other", share(|account| account.other)),
    ]
}
