//! Tells from the log of a run on the host's CPU whether more workers would have as many cores each.

use serde_json::Value;

use super::run_log::RunLog;

impl RunLog {
    /// Returns the number of cores of the host if they are too few for a run with `workers` workers in each replica to
    /// give each as many as the workers of this run had. Returns `None` if they are enough, if there are no more workers
    /// than in the run, if the run used other devices than the CPU, or if the log does not say.
    pub(crate) fn too_few_cores(&self, workers: usize) -> Option<usize> {
        let cores = number(self.run.machine.get("cores")?).filter(|cores| *cores > 0)?;
        let devices = self.run.configuration.get("device")?.as_str()?;
        let (own, replicas) = (self.plan.workers(), self.run.replicas.max(1));
        if workers <= own || devices.split(',').any(|device| device.trim() != "cpu") {
            return None;
        }
        let shared = || (cores / (replicas * own).max(1)).max(1);
        let each = self.run.configuration.get("cores_per_stage").and_then(number).unwrap_or_else(shared);
        (replicas.saturating_mul(workers).saturating_mul(each) > cores).then_some(cores)
    }
}

/// Returns a whole number that a log has as a number or as text; `None` for anything else.
fn number(value: &Value) -> Option<usize> {
    value.as_u64().and_then(|number| number.try_into().ok()).or_else(|| value.as_str()?.parse().ok())
}
