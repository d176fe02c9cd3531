//! Tests predictions from synthetic runs against closed forms.

mod synthetic;

use std::ops::Range;

use stageline_report::record::{Line, Run};
use stageline_report::{Cause, Cut, Hosts, Link, Measured, PredictError, Prediction, RunLog, Target, Unit, run_page};
use stageline_schedule::{CheckError, GPipe, Interleaved, LoopedBreadthFirst, OneFOneB, Schedule, ZbH1, ZbV};

use synthetic::{log, simulated};

/// Tests that a network link adds its latency and transfer time twice to a step with one micro-batch: once for the
/// activation and once for the gradient.
#[test]
fn a_link_costs_its_latency_and_transfer_time() {
    let one = |workers| Target { workers, micro_batches: 1, schedule: &OneFOneB, cut: Cut::OfTheRun };
    let link = Link { latency: 0.25, bandwidth: 1e6 };
    let measured = Measured::of(&log(&[1.0; 12], 4, 4, 0.0)).unwrap();
    let (plain, linked) = (measured.clone(), measured.over(link).unwrap());
    assert_eq!((plain.slowest_link(), linked.slowest_link()), (None, Some(link)));
    let step = |measured: &Measured, workers| measured.predict(&one(workers)).unwrap().step;
    // With four workers, 1, 2 and 3 MB are sent over the three boundaries of the run.
    assert!((step(&linked, 4) - step(&plain, 4) - 2.0 * (3.0 * 0.25 + 1.0 + 2.0 + 3.0)).abs() < 1e-9);
    // With two workers, the only split point is the second boundary of the run.
    assert!((step(&linked, 2) - step(&plain, 2) - 2.0 * (0.25 + 2.0)).abs() < 1e-9);
    // With three workers, the split points are not boundaries of the run, so the mean of its bytes is assumed.
    assert!((step(&linked, 3) - step(&plain, 3) - 2.0 * (2.0 * 0.25 + 2.0 * 2.0)).abs() < 1e-9);
    let alone = Measured::of(&log(&[1.0; 4], 1, 4, 0.0)).unwrap().over(link).unwrap();
    assert!(alone.predict(&one(1)).is_ok());
    let unknown = alone.predict(&one(2)).unwrap_err();
    assert!(matches!(unknown, PredictError::Bytes), "{unknown}");
}

/// Makes the log of a run on two hosts with two workers each. The network link `link` connects the hosts.
fn log_of_two_hosts(link: Link) -> RunLog {
    let mut log = log(&[1.0; 12], 4, 4, 0.0);
    log.run.links = vec![None, Some(link), None];
    log
}

/// Tests which workers of a prediction have a network link between them: those with the same numbers as linked workers
/// of the logged run. In that run, only workers 1 and 2 (counted from 0) have a link.
#[test]
fn links_of_the_run_connect_the_same_workers_in_a_prediction() {
    let link = Link { latency: 0.25, bandwidth: 1e6 };
    let measured = Measured::of(&log_of_two_hosts(link)).unwrap();
    let predict = |measured: &Measured, workers, schedule: &dyn Schedule| {
        measured.predict(&Target { workers, micro_batches: 1, schedule, cut: Cut::OfTheRun })
    };
    let more = |workers, schedule: &dyn Schedule| {
        let plain = predict(&measured.clone().without_links(), workers, schedule).unwrap();
        predict(&measured, workers, schedule).unwrap().step - plain.step
    };
    // The link carries an activation of 2 MB, and a gradient of 2 MB.
    assert!((more(4, &OneFOneB) - 2.0 * (0.25 + 2.0)).abs() < 1e-9);
    // The first two workers of the run are on one host.
    assert_eq!(more(2, &OneFOneB), 0.0);
    // In a V, workers 1 and 2 exchange the tensors of both chunks. One boundary is a boundary of the run, with 2 MB.
    // The other one is not, so the mean of 2 MB is assumed.
    assert!((more(4, &ZbV) - 4.0 * (0.25 + 2.0)).abs() < 1e-9);
    let chunks = Target { workers: 4, micro_batches: 4, schedule: &Interleaved { chunks: 2 }, cut: Cut::Balanced };
    let unlinked = measured.predict(&chunks).unwrap_err();
    assert!(matches!(unlinked, PredictError::Unlinked { from: 3, to: 0 }), "{unlinked}");
    let unlinked = predict(&measured, 6, &OneFOneB).unwrap_err();
    assert!(matches!(unlinked, PredictError::Unlinked { from: 3, to: 4 }), "{unlinked}");
    // A link that the caller gives connects any two workers.
    assert!(predict(&measured.over(link).unwrap(), 6, &OneFOneB).is_ok());
}

/// Tests that a prediction counts the time of a transfer over a network link only once. In a log, the time of a send
/// may include the transfer time. Only the rest of the send keeps the sending worker busy.
#[test]
fn transfer_time_is_counted_once() {
    let link = Link { latency: 0.25, bandwidth: 1e6 };
    let target = Target { workers: 4, micro_batches: 1, schedule: &OneFOneB, cut: Cut::OfTheRun };
    let step = |log: &RunLog| Measured::of(log).unwrap().predict(&target).unwrap().step;
    let mut log = log_of_two_hosts(link);
    let without_sends = step(&log);
    for (send, handing_over) in [(0.5, 0.0), (2.25, 0.0), (2.25 + 0.125, 0.125)] {
        for step in &mut log.steps {
            (step.stages[1].send_activation, step.stages[2].send_gradient) = (send, send);
        }
        assert!((step(&log) - without_sends - 6.0 * handing_over).abs() < 1e-9, "{send}: {}", step(&log));
    }
    // Without a link, the whole send occupies its worker.
    log.run.links.clear();
    for step in &mut log.steps {
        step.stages[..3].iter_mut().for_each(|stage| stage.send_activation = 2.375);
        step.stages[1..].iter_mut().for_each(|stage| stage.send_gradient = 2.375);
        step.step_seconds = simulated(&log.plan, &step.stages);
    }
    assert!((step(&log) - (without_sends - 2.0 * 2.25) - 6.0 * 2.375).abs() < 1e-9, "{}", step(&log));
}

/// Tests the prediction for a run whose steps took 1.25 times as long as simulated. Predicted steps are longer by the
/// same factor. With network links there is no such factor, because the links may explain the longer steps.
#[test]
fn steps_that_vary_take_longer_than_simulated_in_predictions_too() {
    let log = log(&[1.0; 4], 2, 4, 0.5);
    let mut varied = log.clone();
    varied.steps.iter_mut().for_each(|step| step.step_seconds *= 1.25);
    for (workers, micro_batches) in [(1, 3), (2, 4), (4, 8)] {
        let target = Target { workers, micro_batches, schedule: &GPipe, cut: Cut::OfTheRun };
        let [plain, longer] = [&log, &varied].map(|log| Measured::of(log).unwrap().predict(&target).unwrap());
        assert!((longer.step / plain.step - 1.25).abs() < 1e-12, "{} of {}", longer.step, plain.step);
        assert!(((1.0 - plain.bubble) / (1.0 - longer.bubble) - 1.25).abs() < 1e-12);
    }
    varied.run.links = vec![Some(Link { latency: 0.0, bandwidth: 1e6 })];
    let target = Target { workers: 2, micro_batches: 1, schedule: &OneFOneB, cut: Cut::OfTheRun };
    // A step has 2 x (2 + 4) s of compute, 1 s of flush, and 2 x 1 s on the link. Of the overhead of 0.5 s that the run
    // has with M = 4, a quarter remains with M = 1.
    let linked = Measured::of(&varied).unwrap().predict(&target).unwrap().step;
    assert!((linked - (12.0 + 1.0 + 0.5 / 4.0 + 2.0)).abs() < 1e-9, "{linked}");
}

/// Tests the predicted bubble of a plan in which only one network link takes time. With one micro-batch, a link adds
/// the transfer times of one activation and one gradient to the step.
#[test]
fn crossings_give_the_bubble_of_each_link_alone() {
    let link = |seconds| Link { latency: seconds, bandwidth: 1e6 };
    let mut log = log(&[1.0; 12], 4, 4, 0.0);
    log.run.links = vec![Some(link(0.5)), None, Some(link(0.25))];
    let measured = Measured::of(&log).unwrap();
    let target = Target { workers: 4, micro_batches: 1, schedule: &OneFOneB, cut: Cut::OfTheRun };
    // A forward pass of a stage takes 3 s, and the flush takes half as long.
    let bubble = |crossings: f64| 1.0 - (4.0 * 9.0 + 4.0 * 1.5) / (4.0 * (4.0 * 9.0 + 1.5 + crossings));
    let crossings = measured.crossings(&target).unwrap();
    assert_eq!(crossings.iter().map(|(crossing, _)| crossing.stage).collect::<Vec<_>>(), [0, 2]);
    for ((crossing, alone), takes) in crossings.iter().zip([2.0 * 1.5, 2.0 * 3.25]) {
        assert_eq!(crossing.takes(), takes);
        assert!((alone - bubble(takes)).abs() < 1e-12, "{crossing:?}: {alone}");
    }
    assert!((measured.predict(&target).unwrap().bubble - bubble(3.0 + 6.5)).abs() < 1e-12);
    assert_eq!(measured.computes(0..3), 9.0);
    assert_eq!(measured.slowest_link(), Some(link(0.5)));
    assert_eq!(measured.without_links().crossings(&target).unwrap(), []);
}

#[test]
fn links_survive_a_round_trip_and_logs_without_links_are_read() {
    let log = log_of_two_hosts(Link { latency: 3e-4, bandwidth: 1.25e8 });
    let text = serde_json::to_string(&Line::Run(Box::new(log.run.clone()))).unwrap();
    assert!(text.contains(r#""links":[null,{"latency":0.0003,"bandwidth":125000000.0},null]"#), "{text}");
    assert_eq!(RunLog::read(text.as_bytes()).unwrap().run, log.run);
    let mut old = log.run;
    old.links.clear();
    let text = serde_json::to_string(&Line::Run(Box::new(old.clone()))).unwrap();
    assert!(!text.contains("links"), "{text}");
    assert_eq!(RunLog::read(text.as_bytes()).unwrap().run, old);
}

#[test]
fn invalid_links_are_rejected() {
    for (latency, bandwidth) in [(0.0, 0.0), (-1.0, 1e9), (f64::NAN, 1e9), (0.0, f64::INFINITY)] {
        let link = Link { latency, bandwidth };
        let error = Measured::of(&log_of_two_hosts(link)).unwrap_err();
        assert!(matches!(error, PredictError::Link(_)), "{error}");
        let local = Measured::of(&log(&[1.0; 4], 2, 4, 0.0)).unwrap();
        assert!(matches!(local.clone().over(link), Err(PredictError::Link(_))));
        let hosts = Hosts::new(vec![1, 1]).unwrap();
        assert!(matches!(local.between(hosts, link), Err(PredictError::Link(_))));
    }
    let mut log = log_of_two_hosts(Link { latency: 0.0, bandwidth: 1e9 });
    log.run.links.pop();
    assert!(matches!(Measured::of(&log), Err(PredictError::Links { links: 2, boundaries: 3 })));
}

/// Tests the predicted step time of 1F1B and GPipe with P equal stages and M micro-batches. It is M + P - 1 times the
/// forward and backward pass of a stage, plus the flush (optimizer step).
#[test]
fn equal_stages_match_the_closed_form() {
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

#[test]
fn replicas_multiply_the_throughput_and_nothing_else() {
    let mut log = log(&[1.0; 8], 2, 4, 0.0);
    let target = Target { workers: 2, micro_batches: 4, schedule: &OneFOneB, cut: Cut::Balanced };
    let predict = |log: &RunLog| Measured::of(log).unwrap().predict(&target).unwrap();
    let (alone, page) = (predict(&log), run_page(&log));
    let line = serde_json::to_string(&log.run).unwrap();
    assert!(!line.contains("replicas") && serde_json::from_str::<Run>(&line).unwrap() == log.run);
    log.run.replicas = 2;
    log.steps.iter_mut().for_each(|step| step.weight *= 2.0);
    let line = serde_json::to_string(&log.run).unwrap();
    assert!(line.contains(r#""replicas":2"#) && serde_json::from_str::<Run>(&line).unwrap() == log.run);
    assert_eq!(predict(&log), Prediction { tokens_per_s: 2.0 * alone.tokens_per_s, ..alone });
    let sentence = "2 replicas share every batch";
    assert!(!page.contains(sentence) && run_page(&log).contains(sentence));
}

/// Tests the predicted peak memory of each worker. A layer needs 16 bytes, and 1000 bytes for each live micro-batch. A
/// worker needs 500 bytes in addition to its layers.
#[test]
fn peak_memory_is_the_sum_over_layers_and_live_micro_batches() {
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

/// Tests the predicted peak memory if most parameters are frozen, as with LoRA. A frozen parameter takes 4 bytes, and
/// has no gradient and no optimizer state.
#[test]
fn frozen_parameters_take_only_their_own_memory() {
    const FROZEN: u64 = 1000;
    let mut log = log(&[1.0; 8], 2, 4, 0.0);
    log.run.layers.iter_mut().for_each(|layer| layer.parameters += FROZEN);
    for memory in log.steps.iter_mut().flat_map(|step| &mut step.memory) {
        memory.resident += 4 * 4 * FROZEN;
        memory.peak += 4 * 4 * FROZEN;
    }
    let peaks = |workers: usize| {
        let target = Target { workers, micro_batches: 4, schedule: &OneFOneB, cut: Cut::Balanced };
        Measured::of(&log).unwrap().predict(&target).unwrap().peak_bytes.unwrap()
    };
    let held = |layers: f64, live: f64| 500.0 + layers * (4000.0 + 16.0 + 1000.0 * live);
    let close = |found: Vec<f64>, expected: &[f64]| found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6);
    assert!(close(peaks(2), &[held(4.0, 2.0), held(4.0, 1.0)]), "the measured peaks: {:?}", peaks(2));
    assert!(close(peaks(4), &[4.0, 3.0, 2.0, 1.0].map(|live| held(2.0, live))), "{:?}", peaks(4));
}

/// Tests the predicted peak memory of a flush with and without copies for a rollback. Activations are small in this
/// run, so the flush with copies determines the peak.
#[test]
fn a_flush_without_rollback_has_no_copies() {
    let mut log = log(&[1.0; 8], 2, 4, 0.0);
    for step in &mut log.steps {
        step.stages.iter_mut().for_each(|stage| stage.activation_bytes = Some(1.0));
        step.memory.iter_mut().for_each(|memory| memory.peak = 4 * (12 + 4));
    }
    let mut peaks = |rollback: &str| {
        log.run.configuration.insert("rollback".to_owned(), rollback.into());
        let target = Target { workers: 2, micro_batches: 4, schedule: &OneFOneB, cut: Cut::OfTheRun };
        Measured::of(&log).unwrap().predict(&target).unwrap().peak_bytes.unwrap()
    };
    assert_eq!(peaks("true"), [4.0 * (12.0 + 12.0 + 4.0); 2]);
    assert_eq!(peaks("false"), [4.0 * (12.0 + 4.0) + 2.0, 4.0 * (12.0 + 4.0) + 1.0]);
}

#[test]
fn the_overhead_of_the_runtime_grows_with_the_number_of_actions() {
    let (without, with) = (log(&[1.0; 4], 2, 4, 0.0), log(&[1.0; 4], 2, 4, 0.8));
    let step = |log: &RunLog, micro_batches| {
        let target = Target { workers: 2, micro_batches, schedule: &OneFOneB, cut: Cut::Balanced };
        Measured::of(log).unwrap().predict(&target).unwrap().step
    };
    assert!((step(&with, 4) - step(&without, 4) - 0.8).abs() < 1e-9);
    assert!((step(&with, 16) - step(&without, 16) - 3.2).abs() < 1e-9);
}

#[test]
fn unequal_layers_are_balanced() {
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

/// Tests predictions with three partitions of the layers: the logged run's, the balanced one, and one that the caller
/// gives. An invalid partition is an error.
#[test]
fn the_run_itself_is_predicted_with_its_own_partition() {
    let log = log(&[3.0, 3.0, 1.0, 1.0], 2, 4, 0.0);
    let predict = |cut, micro_batches| {
        let target = Target { workers: 2, micro_batches, schedule: &log.plan, cut };
        Measured::of(&log).unwrap().predict(&target)
    };
    // The first stage is the longer one, and is never idle: a step takes 4 x (6 + 12) s, and 3 s for its flush.
    let own = predict(Cut::OfTheRun, 4).unwrap();
    assert_eq!(own.cut, [0..2, 2..4]);
    assert!((own.step - (4.0 * 18.0 + 3.0)).abs() < 1e-9, "{}", own.step);
    assert_eq!(predict(Cut::Balanced, 4).unwrap().cut, [0..1, 1..4]);
    let given = |cut: &[Range<usize>]| predict(Cut::Given(cut.to_vec()), 4);
    assert_eq!(given(&[0..2, 2..4]).unwrap(), own);
    for none in [&[0..2, 1..4][..], &[0..2, 2..3], &[0..0, 0..4], &[0..1, 1..2, 2..4]] {
        assert!(matches!(given(none), Err(PredictError::Cut { layers: 4, stages: 2, .. })), "{none:?}");
    }
    // A plan that is used as the schedule exists only for its own M.
    assert!(matches!(predict(Cut::OfTheRun, 8), Err(PredictError::Schedule(_))));
}

#[test]
fn the_least_m_for_a_bubble_is_found() {
    let measured = Measured::of(&log(&[1.0; 4], 4, 4, 0.0)).unwrap();
    let target = |micro_batches| Target { workers: 4, micro_batches, schedule: &OneFOneB, cut: Cut::Balanced };
    let (micro_batches, prediction) = measured.least_micro_batches(&target(1), 0.1, 100).unwrap().unwrap();
    assert!(prediction.bubble <= 0.1);
    assert!(measured.predict(&target(micro_batches - 1)).unwrap().bubble > 0.1);
    assert_eq!(measured.least_micro_batches(&target(1), 0.1, 8).unwrap(), None);
}

#[test]
fn the_main_cause_of_idle_time_is_the_one_with_the_largest_share() {
    for (other, expected, share) in [(0.0, Cause::Imbalance, 0.1), (0.3, Cause::Other, 0.3)] {
        let log = log(&[1.0; 2], 2, 4, other);
        let (step, bubble) = log.typical().unwrap();
        // A step takes 3 s for each of 4 micro-batches, 3 s to fill and drain the pipeline, 0.5 s for the flush, and
        // the overhead.
        assert!((step - (5.0 * 3.0 + 0.5 + other)).abs() < 1e-12 && (bubble - 0.25).abs() < 1e-12, "{step}: {bubble}");
        let (cause, found) = log.main_cause().unwrap();
        assert!(cause == expected && (found - share / step).abs() < 1e-12, "{cause:?}: {found}");
    }
}

#[test]
fn times_come_from_synchronised_steps_and_throughput_from_the_others() {
    let mut log = log(&[1.0; 2], 2, 4, 0.0);
    assert_eq!(log.throughput(), Some(1.0));
    let synchronised = &mut log.steps[4];
    (synchronised.synchronised, synchronised.step_seconds, synchronised.tokens_per_s) = (true, 2.0, 0.5);
    assert_eq!((log.typical(), log.throughput()), (Some((2.0, 0.25)), Some(1.0)));
    // On GPUs, the times of steps that are not synchronised only cover giving work to the devices.
    log.run.configuration.insert("device".to_owned(), "cuda:0,cuda:1".into());
    assert!(!log.only_asks());
    log.steps[4].synchronised = false;
    assert!(log.only_asks());
    log.run.configuration.insert("device".to_owned(), "cpu".into());
    assert!(!log.only_asks());
    log.steps[4].synchronised = true;
    assert!(run_page(&log).contains("1 tokens a second in the other steps"));
    log.run.unit = Unit::Samples;
    assert!(run_page(&log).contains("1 samples a second in the other steps"));
}

#[test]
fn two_runs_with_micro_batches_of_other_sizes_give_linear_costs() {
    let of_size = |tokens: f64| {
        let mut log = log(&[0.5 + 0.01 * tokens; 4], 2, 4, 0.0);
        log.run.tokens_per_micro_batch = tokens;
        log
    };
    let measured = |tokens: f64| Measured::of(&of_size(tokens)).unwrap();
    let target = || Target { workers: 2, micro_batches: 8, schedule: &OneFOneB, cut: Cut::OfTheRun };
    let (small, large) = (measured(100.0), measured(300.0));
    for tokens in [100.0, 150.0, 200.0, 300.0, 600.0] {
        let predicted = small.with_size(&large, tokens).unwrap().predict(&target()).unwrap();
        // The forward and backward pass of two layers takes 3 x 2 x (0.5 + 0.01 x tokens) s, and a step has M + P - 1 =
        // 9 of them. The flush is the mean of the two runs, whose mean size is 200 tokens.
        let step = 9.0 * 6.0 * (0.5 + 0.01 * tokens) + 0.5 * 2.0 * (0.5 + 0.01 * 200.0);
        assert!((predicted.step / step - 1.0).abs() < 1e-9, "{tokens}: {} for {step}", predicted.step);
        assert!((predicted.tokens_per_s / (8.0 * tokens / predicted.step) - 1.0).abs() < 1e-9);
        assert_eq!(predicted.peak_bytes, None);
    }
    for (other, tokens) in [(&small, 100.0), (&large, 0.0), (&large, f64::NAN)] {
        let error = small.with_size(other, tokens).unwrap_err();
        assert!(matches!(error, PredictError::Size { .. }), "{error}");
    }
}

#[test]
fn no_time_falls_beyond_the_sizes_of_the_two_runs() {
    let measured = |forwards: [f64; 2], tokens: f64| {
        let mut log = log(&forwards, 2, 4, 0.0);
        log.run.tokens_per_micro_batch = tokens;
        Measured::of(&log).unwrap()
    };
    // The second layer takes less time with the larger micro-batches, for example because of noise.
    let (small, large) = (measured([1.0, 1.1], 100.0), measured([3.0, 1.0], 200.0));
    let step = |one: &Measured, other: &Measured, tokens: f64| {
        let target = Target { workers: 2, micro_batches: 1, schedule: &OneFOneB, cut: Cut::OfTheRun };
        one.with_size(other, tokens).unwrap().predict(&target).unwrap().step
    };
    // The flush takes half as long as the forward pass of the slower stage, whose mean over both runs is 2 s.
    for (tokens, forwards) in [(100.0, 1.0 + 1.1), (150.0, 2.0 + 1.05), (200.0, 3.0 + 1.0), (400.0, 7.0 + 1.0)] {
        for found in [step(&small, &large, tokens), step(&large, &small, tokens)] {
            assert!((found - (3.0 * forwards + 0.5 * 2.0)).abs() < 1e-9, "{tokens}: {found}");
        }
    }
    // If micro-batches of twice the size take no longer, the times of larger ones cannot be predicted.
    for faster in [1.0, 0.5] {
        let error = small.with_size(&measured([faster, 1.1], 200.0), 400.0).unwrap_err();
        assert!(matches!(error, PredictError::NotSlower { .. }), "{error}");
    }
}

/// Tests the prediction from a run that was faster than its simulation. Its workers count as faster as well, so that
/// the bubble is never below 0.
#[test]
fn the_bubble_of_a_run_that_was_faster_than_its_simulation_is_not_negative() {
    let mut log = log(&[1.0; 4], 2, 4, 0.0);
    log.steps.iter_mut().for_each(|step| step.step_seconds *= 0.8);
    let measured = Measured::of(&log).unwrap();
    for micro_batches in [4, 64, 1024] {
        let target = Target { workers: 2, micro_batches, schedule: &OneFOneB, cut: Cut::OfTheRun };
        let found = measured.predict(&target).unwrap();
        let (busy, ideal) = (micro_batches as f64, (micro_batches + 1) as f64);
        // Both stages compute for 6 s in each of M micro-batches, and the flush takes 1 s.
        let expected = 1.0 - (6.0 * busy + 1.0) / (6.0 * ideal + 1.0);
        assert!((found.bubble - expected).abs() < 1e-9, "{} for {expected}", found.bubble);
    }
}

/// Tests that numbers of micro-batches for which the run's channels are too small are left out of a comparison.
#[test]
fn numbers_of_micro_batches_that_would_deadlock_are_left_out() {
    let schedule = LoopedBreadthFirst { chunks: 2 };
    let mut log = log(&[1.0; 8], 4, 8, 0.0);
    log.plan = schedule.plan(4, 8).unwrap();
    log.run.plan = log.plan.to_csv();
    log.run.channel_capacity = 7;
    for step in &mut log.steps {
        step.workers.truncate(2);
        step.memory.truncate(2);
    }
    let measured = Measured::of(&log).unwrap();
    let target = |micro_batches| Target { workers: 2, micro_batches, schedule: &schedule, cut: Cut::Balanced };
    assert!(measured.predict(&target(8)).is_ok());
    assert!(matches!(measured.predict(&target(16)), Err(PredictError::Check(CheckError::Deadlock { .. }))));
    assert!(measured.least_micro_batches(&target(8), 0.0, 20).unwrap().is_none());
    // A channel capacity of M holds all micro-batches of a step. With a larger M, predictions assume a larger capacity,
    // unless the capacity was set.
    log.run.channel_capacity = 8;
    let predicted = |log: &RunLog| Measured::of(log).unwrap().predict(&target(32)).map(drop);
    assert!(predicted(&log).is_ok());
    log.run.configuration.insert("channel_capacity".to_owned(), 8.into());
    assert!(matches!(predicted(&log), Err(PredictError::Check(CheckError::Deadlock { .. }))));
}
