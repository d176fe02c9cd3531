//! Checks, from the log of a run on a host's CPU, whether the host has enough cores for more workers, if each gets as
//! many cores as a worker of the run had.

use serde_json::Value;

use super::run_log::RunLog;

impl RunLog {
    /// Returns the host's number of CPU cores if it is too small for `workers` workers in each replica. It is too small
    /// if each worker would have fewer cores than a worker of the logged run had.
    ///
    /// Returns `None` if the cores suffice or the log does not state them. Also returns `None` if the logged run had at
    /// least `workers` workers, or used devices other than the CPU.
    pub(crate) fn too_few_cores(&self, workers: usize) -> Option<usize> {
        let cores = number(self.run.machine.get("cores")?).filter(|cores| *cores > 0)?;
        let devices = self.run.configuration.get("device")?.as_str()?;
        let (own, replicas) = (self.plan.workers(), self.run.replicas.max(1));
        if workers <= own || devices.split(',').any(|device| device.trim() != "cpu") {
            return None;
        }
        let shared = || (cores / replicas.saturating_mul(own).max(1)).max(1);
        let each = self.run.configuration.get("cores_per_stage").and_then(number).unwrap_or_else(shared);
        (replicas.saturating_mul(workers).saturating_mul(each) > cores).then_some(cores)
    }
}

/// Converts a JSON value of a log, a number or a text, to a whole number; `None` if it is not a whole number.
fn number(value: &Value) -> Option<usize> {
    value.as_u64().and_then(|number| number.try_into().ok()).or_else(|| value.as_str()?.parse().ok())
}
