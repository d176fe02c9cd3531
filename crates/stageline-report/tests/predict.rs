//! Predictions from runs that are made up, of which everything is known.

use std::collections::BTreeMap;

use stageline_report::record::{Account, Layer, Line, Run, StageCosts, Step, WorkerMemory};
use stageline_report::{Cause, Cut, Link, LogError, Measured, PredictError, Prediction, RunLog, Target, run_page};
use stageline_schedule::{GPipe, Interleaved, OneFOneB, Schedule, ZbH1};

fn costs_of(forward: f64) -> StageCosts {
    let activation_bytes = Some(1000.0 * forward);
    StageCosts { forward, backward: 2.0 * forward, flush: 0.5 * forward, activation_bytes, ..StageCosts::default() }
}

/// A run of layers that take so many seconds for a forward, twice that for a backward and half for the flush.
fn log(layers: &[f64], stages: usize, micro_batches: usize, other: f64) -> RunLog {
    let plan = OneFOneB.plan(stages, micro_batches).unwrap();
    let of_stage = |layer: usize| layer * stages / layers.len();
    let stage_costs = |stage: usize| {
        let own = layers.iter().enumerate().filter(|(layer, _)| of_stage(*layer) == stage).map(|(_, cost)| cost);
        let forward: f64 = own.sum();
        StageCosts { output_bytes: (stage + 1 < stages).then_some(1e6 * (stage + 1) as f64), ..costs_of(forward) }
    };
    let memory = |stage: usize| {
        let own = (0..layers.len()).filter(|&layer| of_stage(layer) == stage).count() as u64;
        let activations = plan.peak_live()[stage] as f64 * stage_costs(stage).activation_bytes.unwrap();
        WorkerMemory { resident: 12 * own, peak: 12 * own + 4 * own + activations as u64 + 500 }
    };
    let layer = |(layer, cost): (usize, &f64)| {
        let (name, stage) = (format!("layer {layer}"), of_stage(layer));
        Layer { name, stage, weight: *cost, parameters: 1 }
    };
    let run = Run {
        stageline: "0".to_owned(),
        schedule: "1f1b".to_owned(),
        plan: plan.to_csv(),
        replicas: 1,
        channel_capacity: micro_batches,
        memory: Vec::new(),
        layers: layers.iter().enumerate().map(layer).collect(),
        tokens_per_micro_batch: 100.0,
        machine: BTreeMap::new(),
        configuration: BTreeMap::from([("data".to_owned(), "made up".into())]),
    };
    let step = |step| Step {
        step,
        loss: Some(1.0),
        weight: 1.0,
        tokens_per_s: 1.0,
        model_flop_utilisation: None,
        step_seconds: 1.0,
        synchronised: false,
        bubble: 0.25,
        bubble_ideal: 0.2,
        bubble_simulated: 0.2,
        learning_rate: Some(0.1),
        gradient_norm: Some(1.0),
        clipped: Some(false),
        loss_scale: 1.0,
        workers: vec![Account { imbalance: 0.1, other, ..Account::default() }; stages],
        stages: (0..stages).map(stage_costs).collect(),
        memory: (0..stages).map(memory).collect(),
        health: Vec::new(),
        timeline: Vec::new(),
    };
    let lines = (0..5).map(|number| Line::Step(Box::new(step(number))));
    let text: String = [Line::Run(Box::new(run))]
        .into_iter()
        .chain(lines)
        .map(|line| serde_json::to_string(&line).unwrap() + "\n")
        .collect();
    RunLog::read(text.as_bytes()).unwrap()
}

/// One micro-batch goes down and comes back: every boundary costs its latency twice, and what its bytes take.
#[test]
fn links_cost_their_latency_and_what_crosses_them() {
    let one = |workers| Target { workers, micro_batches: 1, schedule: &OneFOneB, cut: Cut::OfTheRun };
    let link = Link { latency: 0.25, bandwidth: 1e6 };
    let measured = Measured::of(&log(&[1.0; 12], 4, 4, 0.0)).unwrap();
    let (plain, linked) = (measured.clone(), measured.over(link).unwrap());
    assert_eq!(linked.most_crossing(), Some(3e6));
    let step = |measured: &Measured, workers| measured.predict(&one(workers)).unwrap().step;
    // 1, 2 and 3 MB.
    assert!((step(&linked, 4) - step(&plain, 4) - 2.0 * (3.0 * 0.25 + 1.0 + 2.0 + 3.0)).abs() < 1e-9);
    // Where the run had its second boundary.
    assert!((step(&linked, 2) - step(&plain, 2) - 2.0 * (0.25 + 2.0)).abs() < 1e-9);
    // Where it had none: the mean.
    assert!((step(&linked, 3) - step(&plain, 3) - 2.0 * (2.0 * 0.25 + 2.0 * 2.0)).abs() < 1e-9);
    let alone = Measured::of(&log(&[1.0; 4], 1, 4, 0.0)).unwrap().over(link).unwrap_err();
    assert!(matches!(alone, PredictError::Bytes), "{alone}");
}

/// With equal layers, the closed form of 1F1B and GPipe: (M + P - 1) (F + B), and then the flush.
#[test]
fn equal_stages_take_the_closed_form() {
    let measured = Measured::of(&log(&[1.0; 8], 2, 4, 0.0)).unwrap();
    for (workers, micro_batches) in [(1, 1), (2, 4), (4, 16), (8, 32)] {
        for schedule in [&OneFOneB as &dyn Schedule, &GPipe] {
            let prediction =
                measured.predict(&Target { workers, micro_batches, schedule, cut: Cut::Balanced }).unwrap();
            let (forward, m) = (8.0 / workers as f64, micro_batches as f64);
            let step = (m + workers as f64 - 1.0) * 3.0 * forward + 0.5 * forward;
            assert!((prediction.step - step).abs() < 1e-9, "P={workers} M={micro_batches}: {}", prediction.step);
            let busy = m * 3.0 * forward + 0.5 * forward;
            assert!((prediction.bubble - (1.0 - busy / step)).abs() < 1e-9);
            assert!((prediction.tokens_per_s - 100.0 * m / step).abs() < 1e-9);
            assert_eq!(prediction.cut.len(), workers);
        }
    }
    let chunked = Target { workers: 2, micro_batches: 4, schedule: &Interleaved { chunks: 2 }, cut: Cut::Balanced };
    assert_eq!(measured.predict(&chunked).unwrap().cut.len(), 4);
    let split =
        measured.predict(&Target { workers: 4, micro_batches: 8, schedule: &ZbH1, cut: Cut::Balanced }).unwrap();
    let whole =
        measured.predict(&Target { workers: 4, micro_batches: 8, schedule: &OneFOneB, cut: Cut::Balanced }).unwrap();
    assert!(split.step < whole.step && split.bubble < whole.bubble);
}

/// The log has the first one's workers, and everyone's tokens.
#[test]
fn replicas_multiply_tokens_and_nothing_else() {
    let mut log = log(&[1.0; 8], 2, 4, 0.0);
    let target = Target { workers: 2, micro_batches: 4, schedule: &OneFOneB, cut: Cut::Balanced };
    let predict = |log: &RunLog| Measured::of(log).unwrap().predict(&target).unwrap();
    let (alone, page) = (predict(&log), run_page(&log));
    let line = serde_json::to_string(&log.run).unwrap();
    assert!(!line.contains("replicas") && serde_json::from_str::<Run>(&line).unwrap() == log.run);
    log.run.replicas = 2;
    let line = serde_json::to_string(&log.run).unwrap();
    assert!(line.contains(r#""replicas":2"#) && serde_json::from_str::<Run>(&line).unwrap() == log.run);
    assert_eq!(predict(&log), Prediction { tokens_per_s: 2.0 * alone.tokens_per_s, ..alone });
    let said = "2 replicas share every batch";
    assert!(!page.contains(said) && run_page(&log).contains(said));
}

/// Of a parameter 4 bytes of gradient and 12 of the rest; of every live micro-batch 1000 bytes a layer; and 500.
#[test]
fn memory_is_what_layers_and_live_micro_batches_hold() {
    let log = log(&[1.0; 8], 2, 4, 0.0);
    let peaks = |workers: usize, micro_batches, schedule: &dyn Schedule| {
        let target = Target { workers, micro_batches, schedule, cut: Cut::Balanced };
        Measured::of(&log).unwrap().predict(&target).unwrap().peak_bytes.unwrap()
    };
    let held = |layers: f64, live: f64| 500.0 + layers * (16.0 + 1000.0 * live);
    assert_eq!(peaks(2, 4, &OneFOneB), [held(4.0, 2.0), held(4.0, 1.0)]);
    assert_eq!(peaks(2, 64, &OneFOneB), peaks(2, 4, &OneFOneB));
    assert_eq!(peaks(4, 16, &OneFOneB), [4.0, 3.0, 2.0, 1.0].map(|live| held(2.0, live)));
    assert_eq!(peaks(2, 16, &GPipe), [held(4.0, 16.0); 2]);
    let mut uncounted = log.clone();
    uncounted.steps.iter_mut().for_each(|step| step.memory.clear());
    let target = Target { workers: 2, micro_batches: 4, schedule: &OneFOneB, cut: Cut::Balanced };
    assert_eq!(Measured::of(&uncounted).unwrap().predict(&target).unwrap().peak_bytes, None);
}

/// What the runtime adds grows with the number of actions.
#[test]
fn what_a_runtime_adds_is_added() {
    let (without, with) = (log(&[1.0; 4], 2, 4, 0.0), log(&[1.0; 4], 2, 4, 0.8));
    let step = |log: &RunLog, micro_batches| {
        let target = Target { workers: 2, micro_batches, schedule: &OneFOneB, cut: Cut::Balanced };
        Measured::of(log).unwrap().predict(&target).unwrap().step
    };
    assert!((step(&with, 4) - step(&without, 4) - 0.8).abs() < 1e-9);
    assert!((step(&with, 16) - step(&without, 16) - 3.2).abs() < 1e-9);
}

/// Unequal layers are cut anew: the dearest stage is as cheap as contiguous layers allow.
#[test]
fn layers_are_cut_as_evenly_as_they_go() {
    let measured = Measured::of(&log(&[4.0, 1.0, 1.0, 1.0, 1.0, 4.0], 2, 4, 0.0)).unwrap();
    let cut = |workers| {
        measured.predict(&Target { workers, micro_batches: 4, schedule: &OneFOneB, cut: Cut::Balanced }).unwrap().cut
    };
    assert_eq!(cut(2), [0..3, 3..6]);
    assert_eq!(cut(3), [0..1, 1..5, 5..6]);
    let error = measured
        .predict(&Target { workers: 7, micro_batches: 4, schedule: &OneFOneB, cut: Cut::Balanced })
        .unwrap_err();
    assert_eq!(error.to_string(), "6 layers cannot be cut into 7 stages; ask for 1 to 6 stages");
}

/// A run that is cut unevenly is predicted as it was, and the balanced cut is another.
#[test]
fn the_run_itself_is_predicted_with_its_own_cut() {
    let log = log(&[3.0, 3.0, 1.0, 1.0], 2, 4, 0.0);
    let predict = |cut, micro_batches| {
        let target = Target { workers: 2, micro_batches, schedule: &log.plan, cut };
        Measured::of(&log).unwrap().predict(&target)
    };
    // The dearer stage, which is the first, is never idle: 4 x (6 + 12), and its flush.
    let own = predict(Cut::OfTheRun, 4).unwrap();
    assert_eq!(own.cut, [0..2, 2..4]);
    assert!((own.step - (4.0 * 18.0 + 3.0)).abs() < 1e-9, "{}", own.step);
    assert_eq!(predict(Cut::Balanced, 4).unwrap().cut, [0..1, 1..4]);
    // The plan itself is of its own shape only.
    assert!(matches!(predict(Cut::OfTheRun, 8), Err(PredictError::Schedule(_))));
}

#[test]
fn the_least_m_for_a_bubble_is_found() {
    let measured = Measured::of(&log(&[1.0; 4], 4, 4, 0.0)).unwrap();
    let (micro_batches, prediction) = measured.least_micro_batches(4, &OneFOneB, 0.1, 100).unwrap().unwrap();
    assert!(prediction.bubble <= 0.1);
    let fewer = Target { workers: 4, micro_batches: micro_batches - 1, schedule: &OneFOneB, cut: Cut::Balanced };
    assert!(measured.predict(&fewer).unwrap().bubble > 0.1);
    assert_eq!(measured.least_micro_batches(4, &OneFOneB, 0.1, 8).unwrap(), None);
}

#[test]
fn what_held_a_run_back_is_named() {
    for (other, expected, share) in [(0.0, Cause::Imbalance, 0.1), (0.3, Cause::Other, 0.3)] {
        let (cause, found) = log(&[1.0; 2], 2, 4, other).main_cause().unwrap();
        assert!(cause == expected && (found - share).abs() < 1e-12, "{cause:?}: {found}");
    }
    assert_eq!(log(&[1.0; 2], 2, 4, 0.3).typical(), Some((1.0, 0.25)));
}

/// Times are those of the steps that waited for their devices, and throughput that of the others.
#[test]
fn synchronised_steps_are_for_times_and_the_others_for_throughput() {
    let mut log = log(&[1.0; 2], 2, 4, 0.0);
    assert_eq!(log.throughput(), Some(1.0));
    let synchronised = &mut log.steps[4];
    (synchronised.synchronised, synchronised.step_seconds, synchronised.tokens_per_s) = (true, 2.0, 0.5);
    assert_eq!((log.typical(), log.throughput()), (Some((2.0, 0.25)), Some(1.0)));
    assert!(run_page(&log).contains("1 tokens a second in the others"));
}

#[test]
fn logs_that_are_none_are_refused_with_the_line() {
    let error = RunLog::read("{\"a\":1}\n".as_bytes()).unwrap_err();
    assert!(matches!(error, LogError::NoRun), "{error}");
    let error = RunLog::read("{\n{}\n".as_bytes()).unwrap_err();
    assert!(matches!(error, LogError::Line { line: 1, .. }), "{error}");
    // A last line that a crash cut short is no harm.
    let mut cut_short = log(&[1.0; 2], 2, 2, 0.0);
    let text = serde_json::to_string(&Line::Run(Box::new(cut_short.run.clone()))).unwrap() + "\n{\"step\":1,\"lo";
    let read = RunLog::read(text.as_bytes()).unwrap();
    assert_eq!((read.run == cut_short.run, read.steps.len()), (true, 0));
    assert!(matches!(Measured::of(&read), Err(PredictError::NoSteps)));
    cut_short.run.layers.truncate(1);
    assert!(matches!(Measured::of(&cut_short), Err(PredictError::Layers { stages: 2 })));
}

#[test]
fn a_page_of_a_run_without_steps_is_a_page() {
    let mut empty = log(&[1.0; 2], 2, 2, 0.0);
    empty.steps.clear();
    assert!(run_page(&empty).contains("Loss: nothing was measured"));
    let page = run_page(&log(&[1.0; 2], 2, 2, 0.0));
    assert!(page.contains("layer 0") && page.contains("made up") && !page.contains("NaN"));
}
