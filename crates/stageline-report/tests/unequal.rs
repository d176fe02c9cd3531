//! Tests predictions from the log of a run whose workers have unequal numbers of stages.

mod synthetic;

use stageline_report::{Cut, Measured, PredictError, Prediction, RunLog, Target};
use stageline_schedule::{OneFOneB, Plan, Schedule, ScheduleError};

use synthetic::{log, simulated, text};

const PLAN: &str = "0F0,1F0,0F1,1F1,1B0,0B0,1B1,0B1\n2F0,2B0,2F1,2B1\n";

/// Makes the log of a run with three stages of two layers each. The first worker runs two of the stages, and the second
/// worker one.
fn unequal() -> RunLog {
    let mut log = log(&[1.0; 6], 3, 2, 0.0);
    PLAN.clone_into(&mut log.run.plan);
    let plan = Plan::from_csv(PLAN).unwrap();
    for step in &mut log.steps {
        step.step_seconds = simulated(&plan, &step.stages);
        step.workers.pop();
        step.memory.pop();
    }
    RunLog::read(text(&log.run, log.steps).as_bytes()).unwrap()
}

fn predict(
    log: &RunLog,
    workers: usize,
    micro_batches: usize,
    schedule: &dyn Schedule,
) -> Result<Prediction, PredictError> {
    Measured::of(log)?.predict(&Target { workers, micro_batches, schedule, cut: Cut::OfTheRun })
}

#[test]
fn a_plan_of_unequal_workers_predicts_itself_with_its_own_cut() {
    let log = unequal();
    let own = predict(&log, 2, 2, &log.plan).unwrap();
    assert_eq!((own.cut.as_slice(), own.peak_live.as_slice()), (&[0..2, 2..4, 4..6][..], &[4, 1][..]));
    assert!((own.step / log.steps[0].step_seconds - 1.0).abs() < 1e-12, "{own:?}");
    assert!((Measured::of(&log).unwrap().variation() - 1.0).abs() < 1e-12);
    // 1F1B has one stage per worker, so the layers are partitioned into two stages.
    assert_eq!(predict(&log, 2, 2, &OneFOneB).unwrap().cut, [0..3, 3..6]);
}

#[test]
fn other_numbers_for_a_plan_of_unequal_workers_are_errors() {
    let log = unequal();
    for workers in [1, 4] {
        let error = predict(&log, workers, 2, &log.plan).unwrap_err();
        assert!(matches!(error, PredictError::Schedule(ScheduleError::Shape { .. })), "{workers}: {error}");
    }
    let error = predict(&log, 2, 4, &log.plan).unwrap_err();
    assert!(matches!(error, PredictError::Schedule(ScheduleError::Shape { .. })), "{error}");
    // Three workers with one stage each have as many stages as the plan, but the plan is for two workers.
    let error = predict(&log, 3, 2, &log.plan).unwrap_err();
    assert!(matches!(error, PredictError::Workers { own: 2, workers: 3 }), "{error}");
}
