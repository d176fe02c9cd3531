//! Tests which training runs are recommended from the logs of synthetic runs, whose costs and gradient noise are given
//! by the test.

mod asked;
mod synthetic;

use stageline_report::record::Link;
use stageline_report::{
    Advice, Alternatives, Change, Cut, LeftOut, Measured, PredictError, PredictedTraining, RunLog, Target,
};
use stageline_schedule::{GPipe, Interleaved, OneFOneB, Schedule};

use asked::{advise, noise, noisy, question};
use synthetic::log;

fn change(advice: &Advice) -> Change {
    advice.recommendation.as_ref().unwrap().change
}

/// Tests the predicted times and the recommended number of micro-batches (M) against the closed form of 1F1B with two
/// equal stages. On each stage a micro-batch takes 12 s and the flush takes 2 s, so a step takes 12 (M + 1) + 2 s.
///
/// A micro-batch has 100 tokens, and the gradient has a noise scale of 100,000 tokens. So a training run needs 1 + 1000
/// / M times as many steps as one with infinitely large batches (arXiv:1812.06162).
#[test]
fn the_m_with_the_least_time_is_recommended_with_its_figures() {
    let log = noisy(log(&[1.0; 8], 2, 4, 0.0), 1e5);
    let noise = noise(&log);
    let advice = advise(&question(&log, &noise, 2));
    let seconds = |m: f64| ((m + 1.0) * 12.0 + 2.0) * 5.0 * (1.0 + 1e3 / m) / (1.0 + 1e3 / 4.0);
    for training in &advice.trainings {
        let (m, found) = (training.micro_batches as f64, training.seconds().unwrap());
        assert!((found / seconds(m) - 1.0).abs() < 1e-9, "M = {m}: {found} for {}", seconds(m));
        let product = training.tokens_per_s() * found;
        assert!((product / training.tokens().unwrap() - 1.0).abs() < 1e-9, "M = {m}: {product}");
    }
    let shortest = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0]
        .into_iter()
        .min_by(|a, b| seconds(*a).total_cmp(&seconds(*b)));
    assert_eq!(shortest, Some(32.0));
    let bubble = |m: f64| 100.0 * (1.0 - (12.0 * m + 2.0) / ((m + 1.0) * 12.0 + 2.0));
    let expected = format!(
        "M = 32: {:.1} times faster to the same loss than M = 4, because its bubble is {:.0}% instead of {:.0}%; beyond M = 128 the \
         extra samples of a batch outweigh the shorter bubble",
        seconds(4.0) / seconds(32.0),
        bubble(32.0),
        bubble(4.0)
    );
    assert!(seconds(128.0) <= 1.1 * seconds(32.0) && seconds(256.0) > 1.1 * seconds(32.0));
    assert_eq!(advice.recommendation.unwrap().to_string(), expected);
}

#[test]
fn the_m_of_the_run_stays_among_equals_and_a_larger_one_falls_to_the_largest_of_them() {
    let seconds = |m: f64| ((m + 1.0) * 12.0 + 2.0) * (1.0 + 1e3 / m);
    let text = |run: usize| {
        let log = noisy(log(&[1.0; 8], 2, run, 0.0), 1e5);
        let noise = noise(&log);
        let advice = advise(&question(&log, &noise, 2));
        assert_eq!(advice.recommendation, advice.unchanged);
        advice.unchanged.unwrap().to_string()
    };
    for run in [8.0, 16.0, 128.0] {
        let slower = seconds(run) / seconds(32.0);
        assert!(slower > 1.0 && slower <= 1.1, "{run}: {slower}");
        let expected = format!(
            "M = {run}: as in the run, because no M is more than 10% faster to the same loss, and M = 32 is the fastest by {:.0}%; beyond \
             M = 128 ",
            100.0 * (slower - 1.0)
        );
        assert!(text(run as usize).starts_with(&expected), "{}", text(run as usize));
    }
    assert!(seconds(256.0) > 1.1 * seconds(32.0));
    let (tokens, other) = (128.0 * (1.0 + 1e3 / 128.0), 256.0 * (1.0 + 1e3 / 256.0));
    let expected = format!(
        "M = 128: {:.1} times faster to the same loss than M = 256, because it needs {:.0}% fewer tokens; ",
        seconds(256.0) / seconds(128.0),
        100.0 * (1.0 - tokens / other)
    );
    assert!(text(256).starts_with(&expected), "{}", text(256));
}

#[test]
fn larger_batches_count_as_equal_under_adam() {
    let mut log = noisy(log(&[1.0; 8], 2, 256, 0.0), 1e5);
    let m = |log: &RunLog| advise(&question(log, &noise(log), 2)).unchanged.unwrap().training.micro_batches;
    assert_eq!(m(&log), 128);
    log.run.configuration.insert("optimizer".to_owned(), "sgd".into());
    assert_eq!(m(&log), 128);
    log.run.configuration.insert("optimizer".to_owned(), "adamw".into());
    assert_eq!(m(&log), 256);
}

#[test]
fn a_batch_far_above_the_noise_scale_needs_no_accumulation() {
    let log = noisy(log(&[1.0; 8], 1, 2, 0.0), 1.0);
    let noise = noise(&log);
    let text = advise(&question(&log, &noise, 1)).recommendation.unwrap().to_string();
    // A step takes 24 s for each micro-batch and 4 s for the flush.
    let times = 52.0 * (1.0 + 1.0 / 200.0) / (28.0 * (1.0 + 1.0 / 100.0));
    let expected = format!(
        "no accumulation (M = 1): {times:.1} times faster to the same loss than M = 2, because a batch of one micro-batch is 100.0 \
         times the noise scale of 1 tokens; "
    );
    assert!(text.starts_with(&expected), "{text}");
}

#[test]
fn another_schedule_is_recommended_if_its_training_is_a_tenth_shorter() {
    let log = noisy(log(&[1.0; 8], 2, 4, 0.0), 1.0);
    let noise = noise(&log);
    let advice = advise(&question(&log, &noise, 2));
    let recommendation = advice.recommendation.as_ref().unwrap();
    let Change::Schedule { name, .. } = recommendation.change else { panic!("{recommendation}") };
    let own = &advice.trainings[0];
    assert_eq!(own.micro_batches, 1);
    assert_eq!(advice.unchanged.as_ref().map(|unchanged| &unchanged.training), Some(own));
    assert!(recommendation.training.seconds().unwrap() <= 0.9 * own.seconds().unwrap());
    let least = advice.alternatives.found.iter().filter_map(|(_, training)| training.seconds());
    assert_eq!(recommendation.training.seconds(), least.min_by(f64::total_cmp));
    let bubbles = [&recommendation.training, own].map(|training| 100.0 * training.prediction.bubble);
    let figures = format!("because its bubble is {:.0}% instead of {:.0}%", bubbles[0], bubbles[1]);
    let text = recommendation.to_string();
    assert!(text.starts_with(&format!("the schedule {name} with ")) && text.ends_with(&figures), "{text}");
    assert!(text.contains(" than 1f1b with M = 1, "), "{text}");
}

#[test]
fn more_workers_are_recommended_while_they_are_used_well() {
    let run = log(&[1.0; 8], 2, 4, 0.0);
    let recommended = |scale: f64, most: usize| {
        let log = noisy(run.clone(), scale);
        let noise = noise(&log);
        advise(&question(&log, &noise, most)).recommendation.unwrap()
    };
    let eight = recommended(1e7, 8);
    assert_eq!((eight.change, eight.training.micro_batches), (Change::Workers(8), 256));
    assert!(
        eight.to_string().contains("than P = 2 with M = 256, because 8 workers train 3.9 times the tokens a second"),
        "{eight}"
    );
    assert_eq!(recommended(1e7, 3).change, Change::Workers(3));
    assert_eq!(recommended(1e7, 2).change, Change::None);
    // At a small noise scale, fewer micro-batches are best. Twice the workers then shorten the training run, but are
    // idle too much of the time.
    let log = noisy(run.clone(), 500.0);
    let noise = noise(&log);
    let advice = advise(&question(&log, &noise, 4));
    let least = advice.trainings.iter().filter_map(PredictedTraining::seconds).min_by(f64::total_cmp).unwrap();
    let four = advice.alternatives.found.iter().find(|(change, _)| *change == Change::Workers(4)).unwrap();
    assert!(four.1.seconds().unwrap() < 0.8 * least && four.1.seconds().unwrap() > 0.5 / 0.8 * least);
    assert!(!matches!(change(&advice), Change::Workers(_)));
}

#[test]
fn workers_with_another_part_of_the_cores_are_not_compared() {
    let compared = |device: &str, cores_per_stage: Option<usize>| -> (Vec<usize>, Vec<usize>) {
        let mut log = noisy(log(&[1.0; 8], 2, 4, 0.0), 1e7);
        log.run.machine.insert("cores".to_owned(), 8.into());
        log.run.configuration.insert("device".to_owned(), device.into());
        if let Some(cores) = cores_per_stage {
            log.run.configuration.insert("cores_per_stage".to_owned(), cores.into());
        }
        let noise = noise(&log);
        let Alternatives { found, left_out, .. } = advise(&question(&log, &noise, 8)).alternatives;
        let shared = |(_, reason): &(Change, LeftOut)| matches!(reason, LeftOut::SharedCores { cores: 8 });
        let workers = |change: Change| if let Change::Workers(workers) = change { Some(workers) } else { None };
        let left_out = left_out.into_iter().filter(shared).filter_map(|(change, _)| workers(change));
        (found.into_iter().filter_map(|(change, _)| workers(change)).collect(), left_out.collect())
    };
    assert_eq!(compared("cpu", None), (vec![], vec![1, 3, 4, 8]));
    assert_eq!(compared("cpu", Some(2)), (vec![1, 3, 4], vec![8]));
    assert_eq!(compared("cpu", Some(1)), (vec![1, 3, 4, 8], vec![]));
    assert_eq!(compared("cuda:0,cuda:1", None), (vec![1, 3, 4, 8], vec![]));
}

#[test]
fn other_numbers_of_workers_are_not_compared_if_workers_share_a_gpu() {
    for (device, are_compared) in
        [("cuda:0", false), ("cuda:0,cuda:0", false), ("cuda:1,cuda:0", true), ("cuda:all", true)]
    {
        let mut log = noisy(log(&[1.0; 8], 2, 4, 0.0), 1e7);
        log.run.configuration.insert("device".to_owned(), device.into());
        let noise = noise(&log);
        let Alternatives { found, left_out, .. } = advise(&question(&log, &noise, 8)).alternatives;
        let found = found.iter().filter(|(change, _)| matches!(change, Change::Workers(_))).count();
        let left_out = left_out.iter().filter(|(_, reason)| matches!(reason, LeftOut::SharedDevice)).count();
        assert_eq!((found, left_out), if are_compared { (4, 0) } else { (0, 4) }, "{device}");
    }
}

#[test]
fn fewer_workers_are_recommended_if_links_make_the_pipeline_slower() {
    let mut log = noisy(log(&[1.0; 8], 2, 4, 0.0), 1e3);
    log.run.links = vec![Some(Link { latency: 500.0, bandwidth: 1e6 })];
    let noise = noise(&log);
    let mut asked = question(&log, &noise, 8);
    asked.target.cut = Cut::OfTheRun;
    let advice = advise(&asked);
    assert_eq!(change(&advice), Change::Workers(1));
    // The log has no network link between the second and a third worker, so four workers cannot be predicted.
    let unlinked = |(change, reason): &(Change, LeftOut)| {
        *change == Change::Workers(4) && matches!(reason, LeftOut::Predict(PredictError::Unlinked { .. }))
    };
    assert!(advice.alternatives.left_out.iter().any(unlinked), "{:?}", advice.alternatives.left_out);
}

#[test]
fn larger_micro_batches_are_recommended_if_two_sizes_are_measured() {
    let of_size = |tokens: f64| {
        let mut log = log(&[0.5 + 0.01 * tokens; 8], 2, 4, 0.0);
        log.run.tokens_per_micro_batch = tokens;
        noisy(log, 1e5)
    };
    let (log, other) = (of_size(100.0), Measured::of(&of_size(300.0)).unwrap());
    let noise = noise(&log);
    let mut asked = question(&log, &noise, 2);
    let one_size = advise(&asked);
    let missing = one_size.alternatives.left_out.iter().find(|(change, _)| *change == Change::Rows(2)).unwrap();
    assert!(missing.1.to_string().contains("--micro-batch-size") && change(&one_size) == Change::None);
    asked.other_size = Some(&other);
    let recommendation = advise(&asked).recommendation.unwrap();
    assert_eq!(recommendation.change, Change::Rows(4));
    let [own, larger] = [one_size.recommendation.unwrap().training, recommendation.training.clone()];
    assert_eq!((larger.micro_batches * 4, larger.batch), (own.micro_batches, own.batch));
    let figures =
        format!("takes {:.1} ms instead of {:.1} ms", 1e3 * larger.prediction.step, 1e3 * own.prediction.step);
    assert!(recommendation.to_string().ends_with(&figures), "{recommendation}");
    asked.memory = Some(1e9);
    let left_out = advise(&asked).alternatives.left_out;
    assert!(
        left_out.iter().any(|(change, reason)| matches!((change, reason), (Change::Rows(4), LeftOut::UnknownMemory)))
    );
}

/// Tests recommendations under a memory limit with room for 4 live micro-batches on each worker. GPipe then fits only
/// up to M = 4, because it keeps all M micro-batches of a step live. 1F1B keeps at most as many as there are stages.
#[test]
fn a_training_that_needs_too_much_memory_is_not_recommended() {
    let log = noisy(log(&[1.0; 8], 2, 4, 0.0), 1e5);
    let noise = noise(&log);
    let held = |live: f64| 500.0 + 4.0 * (16.0 + 1000.0 * live);
    let mut asked = question(&log, &noise, 2);
    asked.target.schedule = &GPipe as &dyn Schedule;
    asked.memory = Some(held(4.0));
    let advice = advise(&asked);
    let fitting: Vec<_> = advice.trainings.iter().filter(|training| asked.fits(training)).collect();
    assert_eq!(fitting.iter().map(|training| training.micro_batches).collect::<Vec<_>>(), [1, 2, 4]);
    let recommendation = advice.recommendation.as_ref().unwrap();
    assert!(asked.fits(&recommendation.training) && recommendation.training.micro_batches > 4, "{recommendation}");
    assert!(advice.alternatives.found.iter().all(|(_, training)| asked.fits(training)));

    // If the memory limit has no room for a live micro-batch, no training run fits.
    asked.memory = Some(held(0.0));
    let none = advise(&asked);
    assert!(none.recommendation.is_none() && none.alternatives.found.is_empty());
    let mut uncounted = log.clone();
    uncounted.steps.iter_mut().for_each(|step| step.memory.clear());
    let error = Measured::of(&uncounted).unwrap().advise(&asked).unwrap_err();
    assert!(matches!(error, PredictError::NoMemory), "{error}");
}

#[test]
fn without_noise_trainings_have_a_throughput_and_no_steps() {
    let log = log(&[1.0; 8], 2, 1, 0.0);
    let target = Target { workers: 2, micro_batches: 1, schedule: &OneFOneB, cut: Cut::Balanced };
    let trainings = Measured::of(&log).unwrap().trainings(None, &target).unwrap();
    assert_eq!(trainings.len(), 9);
    for training in trainings {
        assert_eq!((training.steps, training.tokens(), training.seconds()), (None, None, None));
        let step = (training.micro_batches as f64 + 1.0) * 12.0 + 2.0;
        assert!((training.tokens_per_s() * step / training.batch - 1.0).abs() < 1e-9);
    }
}

#[test]
fn a_plan_without_a_generator_is_compared_with_schedules() {
    let log = noisy(log(&[1.0; 8], 2, 3, 0.0), 1e5);
    let noise = noise(&log);
    let mut asked = question(&log, &noise, 8);
    asked.target.schedule = &log.plan;
    let advice = advise(&asked);
    assert_eq!(advice.trainings.iter().map(|training| training.micro_batches).collect::<Vec<_>>(), [3]);
    assert!(matches!(change(&advice), Change::Schedule { .. }));
    let text = advice.recommendation.as_ref().unwrap().to_string();
    assert!(text.contains(" than the plan of the run with M = 3, "), "{text}");
    let workers = |change: &Change| matches!(change, Change::Workers(_));
    assert!(!advice.alternatives.found.iter().any(|(change, _)| workers(change)));
    assert!(!advice.alternatives.left_out.iter().any(|(change, _)| workers(change)));
}

#[test]
fn a_model_that_is_cut_by_hand_keeps_its_stages() {
    let compared = |cut_by_hand: bool, workers: usize, chunked: bool| {
        let mut log = noisy(log(&[1.0; 4], 4, 4, 0.0), 1e7);
        log.run.cut_by_hand = cut_by_hand;
        let noise = noise(&log);
        let mut asked = question(&log, &noise, 8);
        asked.target.workers = workers;
        if chunked {
            asked.target.schedule = &Interleaved { chunks: 2 };
        }
        let Advice { alternatives, recommendation, .. } = advise(&asked);
        let left_out = alternatives.left_out.into_iter().map(|(change, _)| change);
        let all: Vec<_> = alternatives.found.into_iter().map(|(change, _)| change).chain(left_out).collect();
        let change = recommendation.unwrap().change;
        assert!(change == Change::None || all.contains(&change));
        all
    };
    let keeps = |chunks: usize| {
        move |change: &Change| match change {
            Change::Schedule { chunks: other, .. } => *other == chunks,
            Change::Workers(_) => false,
            Change::None | Change::Rows(_) => true,
        }
    };
    for (workers, chunked) in [(4, false), (2, true)] {
        let chunks = 4 / workers;
        assert!(compared(true, workers, chunked).iter().all(keeps(chunks)));
        let of_layers = compared(false, workers, chunked);
        assert!(!of_layers.iter().all(keeps(chunks)), "{of_layers:?}");
        let schedules = |change: &Change| matches!(change, Change::Schedule { .. });
        assert!(compared(true, workers, chunked).iter().any(schedules), "other schedules are compared");
    }
}
