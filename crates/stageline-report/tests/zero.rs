//! Tests that logs with times and sizes of 0 are rejected, because predictions need values above 0.

mod synthetic;

use stageline_report::{Cut, Measured, PredictError, RunLog, Target};
use stageline_schedule::OneFOneB;

use synthetic::log;

/// A function that sets one of a log's values to 0.
type Change = fn(&mut RunLog);

#[test]
fn times_and_sizes_of_0_are_refused_by_name() {
    let zeros: [(&str, Change); 4] = [
        ("the time of all layers", |log| {
            log.steps.iter_mut().flat_map(|step| &mut step.stages).for_each(|stage| {
                (stage.forward, stage.backward) = (0.0, 0.0);
            });
        }),
        ("step_seconds", |log| log.steps.iter_mut().for_each(|step| step.step_seconds = 0.0)),
        ("weight", |log| log.steps.iter_mut().for_each(|step| step.weight = 0.0)),
        ("tokens_per_micro_batch", |log| log.run.tokens_per_micro_batch = 0.0),
    ];
    for (name, set) in zeros {
        let mut log = log(&[1.0; 8], 2, 4, 0.0);
        set(&mut log);
        let error = Measured::of(&log).unwrap_err();
        assert!(matches!(error, PredictError::NotAboveZero(zero) if zero == name), "{name}: {error}");
    }
}

/// Tests logs of models whose layers report no FLOPs, in all stages or in one. The time of such a stage is divided
/// among its layers in proportion to their numbers of parameters.
#[test]
fn layers_without_weights_share_the_time_of_their_stage_by_parameters() {
    let mut by_weights = log(&[1.0, 3.0, 2.0, 2.0, 3.0, 1.0, 1.0, 3.0], 2, 4, 0.0);
    for layer in &mut by_weights.run.layers {
        (layer.parameters, layer.trained) = (10 * layer.weight as u64, Some(10 * layer.weight as u64));
    }
    let predicted = |log: &RunLog, workers: usize, cut| {
        let target = Target { workers, micro_batches: 4, schedule: &OneFOneB, cut };
        Measured::of(log).unwrap().predict(&target).unwrap()
    };
    for stages in [0..1, 0..2] {
        let mut log = by_weights.clone();
        log.run.layers.iter_mut().filter(|layer| stages.contains(&layer.stage)).for_each(|layer| layer.weight = 0.0);
        for (workers, cut) in [(2, Cut::OfTheRun), (4, Cut::Balanced)] {
            let [one, other] = [&log, &by_weights].map(|log| predicted(log, workers, cut.clone()));
            assert!((one.step / other.step - 1.0).abs() < 1e-12 && one.cut == other.cut, "{stages:?}, {workers}");
            assert!((one.bubble - other.bubble).abs() < 1e-12, "{stages:?}, {workers}");
        }
    }
}
