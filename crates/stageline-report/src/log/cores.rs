//! Tells, from the log of a run on a host's CPU, whether each worker of another run would have more or fewer cores.

use serde_json::Value;

use super::run_log::RunLog;

impl RunLog {
    /// Returns the host's number of CPU cores if each worker of a run with `workers` workers in each replica would have
    /// more or fewer cores than in the logged run. Such a worker is faster or slower than the log shows.
    ///
    /// Returns `None` if each worker would have as many cores, so that the times of the log apply. Also returns `None`
    /// if the log does not state the cores, or if the logged run used devices other than the CPU.
    pub fn other_cores(&self, workers: usize) -> Option<usize> {
        let cores = number(self.run.machine.get("cores")?).filter(|cores| *cores > 0)?;
        let devices = self.run.configuration.get("device")?.as_str()?;
        if devices.split(',').any(|device| device.trim() != "cpu") {
            return None;
        }
        let given = self.run.configuration.get("cores_per_stage").and_then(number);
        let of_one = |workers: usize| {
            let all = workers.saturating_mul(self.run.replicas).max(1);
            let used = given.unwrap_or((cores / all).max(1));
            // More workers than cores share them.
            (used as f64).min(cores as f64 / all as f64)
        };
        (of_one(workers) != of_one(self.plan.workers())).then_some(cores)
    }
}

/// Converts a JSON value of a log, a number or a text, to a whole number; `None` if it is not a whole number.
fn number(value: &Value) -> Option<usize> {
    value.as_u64().and_then(|number| number.try_into().ok()).or_else(|| value.as_str()?.parse().ok())
}
