//! Tests that logs with times and sizes of 0, from which no figure follows, are refused.

mod synthetic;

use stageline_report::{Measured, PredictError, RunLog};

use synthetic::log;

/// A change of a log that sets one of its values to 0.
type Change = fn(&mut RunLog);

#[test]
fn times_and_sizes_of_0_are_refused_by_name() {
    let zeros: [(&str, Change); 5] = [
        ("the time of all layers", |log| log.run.layers.iter_mut().for_each(|layer| layer.weight = 0.0)),
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
