//! Tests that a log with an invalid plan or number is rejected when it is read, with an error that names the line and
//! the value.

mod events;
mod synthetic;

use stageline_report::record::Step;
use stageline_report::{LogError, RunLog, run_page};

use events::event;
use synthetic::{log, text};

/// Reads the log of a run of two stages, in which `plan` replaces the plan of the run.
fn with_plan(plan: &str) -> Result<RunLog, LogError> {
    let mut log = log(&[1.0; 2], 2, 2, 0.0);
    plan.clone_into(&mut log.run.plan);
    RunLog::read(text(&log.run, log.steps).as_bytes())
}

/// Reads the log of a run of two stages, after `change` has changed its third step, which is on line 4.
fn with_step(change: impl FnOnce(&mut Step)) -> Result<RunLog, LogError> {
    let mut log = log(&[1.0; 2], 2, 2, 0.0);
    change(&mut log.steps[2]);
    RunLog::read(text(&log.run, log.steps).as_bytes())
}

#[test]
fn a_model_of_too_many_layers_is_refused() {
    let mut log = log(&[1.0; 2], 2, 2, 0.0);
    let layer = log.run.layers[0].clone();
    log.run.layers.resize(4096, layer.clone());
    assert!(RunLog::read(text(&log.run, log.steps.clone()).as_bytes()).is_ok());
    log.run.layers.push(layer);
    let error = RunLog::read(text(&log.run, log.steps).as_bytes()).unwrap_err();
    assert!(matches!(error, LogError::Layers { line: 1, layers: 4097, most: 4096 }), "{error}");
}

#[test]
fn too_many_replicas_are_refused_with_their_number() {
    let mut log = log(&[1.0; 2], 2, 2, 0.0);
    log.run.replicas = 1_000_000;
    assert!(RunLog::read(text(&log.run, log.steps.clone()).as_bytes()).is_ok());
    for replicas in [1_000_001, usize::MAX] {
        log.run.replicas = replicas;
        let error = RunLog::read(text(&log.run, log.steps.clone()).as_bytes()).unwrap_err();
        let refused =
            matches!(error, LogError::Replicas { line: 1, replicas: found, most: 1_000_000 } if found == replicas);
        assert!(refused && error.to_string().contains(&replicas.to_string()), "{error}");
    }
}

/// Tests that the time to place workers on devices does not grow with their number, because a program may set any
/// number of replicas in a log.
#[test]
fn so_many_workers_are_placed_on_devices_at_once() {
    let mut log = log(&[1.0; 2], 2, 2, 0.0);
    for (replicas, devices, shared) in [
        (usize::MAX, "cpu", false),
        (usize::MAX, "cpu,cpu", false),
        (usize::MAX, "cpu,cuda:0", true),
        (0, "cuda:0,cuda:1", false),
        (1, "cuda:0,cuda:1,cuda:2", false),
        (1, "cuda:0,cpu", false),
        (1, "cuda:0,cuda:0", true),
        (2, "cuda:0,cuda:1,cuda:2", true),
        (2, "cpu,cpu,cpu,cuda:2", false),
        (2, "cuda:all", false),
        (1, "", false),
    ] {
        log.run.replicas = replicas;
        log.run.configuration.insert("device".to_owned(), devices.into());
        assert_eq!(log.shares_a_device(), shared, "{replicas} replicas on {devices}");
    }
}

#[test]
fn plans_that_cannot_run_are_refused() {
    for (plan, reason) in [
        ("", "the plan has no actions"),
        ("1F0,1B0\n", "stage 0 does nothing to micro-batch 0"),
        ("0F0,0B0,0F999999999999,0B999999999999\n1F0,1B0\n", "stage 0 does nothing to micro-batch 1;"),
        ("0F0,0F1,0B0,0B1\n1F1,1F0,1B0,1B1\n", "put its actions into another order"),
    ] {
        let error = with_plan(plan).unwrap_err();
        assert!(matches!(error, LogError::InvalidPlan(_)) && error.to_string().contains(reason), "{plan}: {error}");
    }
    // Every description of the run must have a valid plan, even if a later description replaces it.
    let (log, mut earlier) = (log(&[1.0; 2], 2, 2, 0.0), log(&[1.0; 2], 2, 2, 0.0).run);
    earlier.plan = String::new();
    let both = text(&earlier, []) + &text(&log.run, log.steps.clone());
    assert!(matches!(RunLog::read(both.as_bytes()), Err(LogError::InvalidPlan(_))));
    let backwards = text(&log.run, log.steps).lines().rev().collect::<Vec<_>>().join("\n");
    assert!(matches!(RunLog::read(backwards.as_bytes()), Err(LogError::NoRun)));
}

/// A function that sets one number of a step.
type Change = fn(&mut Step, f64);

#[test]
fn numbers_that_are_negative_or_too_large_are_refused_with_their_line() {
    let changes: [(&str, Change); 9] = [
        ("weight", |step, value| step.weight = value),
        ("tokens_per_s", |step, value| step.tokens_per_s = value),
        ("step_seconds", |step, value| step.step_seconds = value),
        ("busy", |step, value| step.workers[1].busy = value),
        ("forward", |step, value| step.stages[0].forward = value),
        ("backward", |step, value| step.stages[1].backward = value),
        ("send_gradient", |step, value| step.stages[1].send_gradient = value),
        ("flush", |step, value| step.stages[1].flush = value),
        ("output_bytes", |step, value| step.stages[0].output_bytes = Some(value)),
    ];
    for (name, change) in changes {
        for number in [-1.0, -1e-300, 1e31, f64::MAX] {
            let error = with_step(|step| change(step, number)).unwrap_err();
            let named = matches!(error, LogError::Number { line: 4, field, value } if field == name && value == number);
            assert!(named && error.to_string().contains(&format!("line 4 of the log has the number {number:?} as")));
        }
        with_step(|step| change(step, 0.0)).unwrap();
    }
    let mut log = log(&[1.0; 2], 2, 2, 0.0);
    log.run.layers[1].weight = -2.0;
    let error = RunLog::read(text(&log.run, []).as_bytes()).unwrap_err();
    assert!(matches!(error, LogError::Number { line: 1, field: "weight", value: -2.0 }), "{error}");
    // Two numbers may be negative. Idle time of the cause `other` is a difference, and a forward pass may free more
    // memory than it retains.
    with_step(|step| (step.workers[0].other, step.stages[0].activation_bytes) = (-0.5, Some(-8.0))).unwrap();
}

#[test]
fn events_of_stages_that_the_plan_lacks_are_refused() {
    for stage in [2, 1_000_000_000_000, usize::MAX] {
        let error = with_step(|step| {
            step.timeline = vec![vec![event(0, "0F0", 0.0..1.0)], vec![event(stage, "0F0", 0.0..1.0)]]
        })
        .unwrap_err();
        assert!(matches!(error, LogError::Stage { line: 4, stage: found, stages: 2 } if found == stage), "{error}");
    }
    let page = run_page(
        &with_step(|step| step.timeline = vec![vec![event(0, "0F0", 0.0..1.0)], vec![event(1, "0F0", 0.0..1.0)]])
            .unwrap(),
    );
    assert!(page.contains("stage 1</text>") && !page.contains("stage 2</text>"));
}

#[test]
fn the_page_of_a_loss_of_almost_0_is_made() {
    let log = with_step(|step| step.loss = Some(1e-323)).unwrap();
    let mut tiny = log.clone();
    tiny.steps = vec![log.steps[2].clone()];
    assert!(run_page(&tiny).contains("aria-label='Loss'"));
}
