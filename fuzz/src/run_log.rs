//! Fuzzes the reader of a run's log, and what is made of a log: its HTML page, predictions and advice.

use stageline_report::{Cut, Measured, Question, RunLog, Target, run_page};
use stageline_schedule::{OneFOneB, Schedule};

/// The largest length in bytes of a fuzz input. Longer inputs are skipped, because shorter ones reach the same code.
const LIMIT: usize = 4_096;

/// Reads a fuzz input as the log of a run. Makes the page of a log that is accepted, and predicts the run's own plan
/// and 1F1B with one more micro-batch.
pub fn run_log(bytes: &[u8]) {
    if bytes.len() > LIMIT {
        return;
    }
    let log = match RunLog::read(bytes) {
        Ok(log) => log,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    assert!(run_page(&log).ends_with("</html>\n"));
    let (workers, micro_batches) = (log.plan.workers(), log.plan.micro_batches());
    let _ = log.main_cause();
    let measured = match Measured::of(&log) {
        Ok(measured) => measured,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    assert_eq!(measured.cut().len(), log.plan.stages());
    let predict = |schedule: &dyn Schedule, micro_batches| match measured.predict(&Target {
        workers,
        micro_batches,
        schedule,
        cut: Cut::OfTheRun,
    }) {
        Ok(prediction) => assert_eq!(prediction.peak_live.len(), workers),
        Err(error) => assert!(!error.to_string().is_empty()),
    };
    predict(&log.plan, micro_batches);
    predict(&OneFOneB, micro_batches + 1);
    let Ok(noise) = &log.noise_scales() else { return };
    let target = Target { workers, micro_batches, schedule: &OneFOneB, cut: Cut::Balanced };
    let question = Question { log: &log, noise, target, other_size: None, memory: None, most_workers: Some(2) };
    if let Ok(advice) = measured.advise(&question) {
        assert!(!advice.trainings.is_empty());
    }
}
