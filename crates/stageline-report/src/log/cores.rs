//! Tells, from the log of a run on a host's CPU, whether each worker of another run would have more or fewer cores.

use serde_json::Value;

use super::run_log::RunLog;

impl RunLog {
    /// Checks whether each worker of a run with `workers` workers in each replica would have more or fewer CPU cores
    /// than in the logged run, and so be faster or slower than the log shows. If so, returns the host's number of CPU
    /// cores.
    ///
    /// Returns `None` if the log's times apply, or if this is not known:
    ///
    /// - Each worker would have the same number of cores.
    /// - The log does not state the number of cores.
    /// - The logged run used devices other than the CPU.
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
            // If there are more workers than cores, the workers share the cores.
            (used as f64).min(cores as f64 / all as f64)
        };
        (of_one(workers) != of_one(self.plan.workers())).then_some(cores)
    }
}

/// Converts a JSON number or string of a log to a whole number; `None` if it is not a whole number.
fn number(value: &Value) -> Option<usize> {
    value.as_u64().and_then(|number| number.try_into().ok()).or_else(|| value.as_str()?.parse().ok())
}
