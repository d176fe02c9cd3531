//! Tests the costs, medians and charts of runs that were resumed with another plan. Their synthetic logs have two
//! descriptions of the run.

mod events;
mod synthetic;

use stageline_report::record::{Noise, SignalAndNoise, Step};
use stageline_report::{Measured, PredictError, RunLog, run_page};

use events::event;
use synthetic::{log, text};

/// Returns the log of the first part of a resumed run, with 4 stages of one layer each, and the steps 0 to 4.
fn before() -> RunLog {
    log(&[1.0; 4], 4, 4, 0.3)
}

/// Returns the log of the second part of a resumed run, with 2 stages of longer layers and 8 micro-batches. It resumes
/// at step 3.
fn after() -> RunLog {
    let mut log = log(&[2.0; 4], 2, 8, 0.0);
    log.steps.iter_mut().for_each(|step| step.step += 3);
    log
}

/// Returns the log of a resumed run: the log `before`, then the description and the first `count` steps of the log
/// `after`.
fn resumed(before: RunLog, after: &RunLog, count: usize) -> RunLog {
    let second = text(&after.run, after.steps[..count].iter().cloned());
    RunLog::read((text(&before.run, before.steps) + &second).as_bytes()).unwrap()
}

#[test]
fn costs_and_medians_are_those_of_the_last_plan() {
    let after = after();
    let log = resumed(before(), &after, 5);
    assert_eq!(log.steps.iter().map(|step| step.step).collect::<Vec<_>>(), (0..8).collect::<Vec<_>>());
    assert_eq!(Measured::of(&log).unwrap(), Measured::of(&after).unwrap());
    assert_eq!((log.typical(), log.main_cause()), (after.typical(), after.main_cause()));
    // The first two steps after the resume are left out as warm-up steps, unless there are no others.
    assert_eq!(log.warm_steps().map(|step| step.step).collect::<Vec<_>>(), [5, 6, 7]);
    let short = resumed(before(), &after, 2);
    assert_eq!(short.warm_steps().map(|step| step.step).collect::<Vec<_>>(), [3, 4]);
    assert_eq!(Measured::of(&short).unwrap(), Measured::of(&after).unwrap());
}

/// Tests that the validations of a resumed run replace those that the log has from the resumed step on.
#[test]
fn validations_are_those_of_the_last_start() {
    let validation =
        |after_steps: usize, loss: f64| format!("{{\"after_steps\":{after_steps},\"validation_loss\":{loss:.1}}}\n");
    let (before, after) = (before(), after());
    let mut lines: Vec<_> = text(&before.run, before.steps).lines().map(|line| format!("{line}\n")).collect();
    // The first part of the run validates after 2 and 4 steps. The second part, which begins with step 3, validates
    // after 4 and 5.
    lines.insert(3, validation(2, 1.0));
    lines.insert(6, validation(4, 2.0));
    lines.extend(text(&after.run, after.steps[..1].iter().cloned()).lines().map(|line| format!("{line}\n")));
    let read = |lines: &[String]| {
        let log = RunLog::read(lines.concat().as_bytes()).unwrap();
        log.validations.iter().map(|found| (found.after_steps, found.validation_loss)).collect::<Vec<_>>()
    };
    assert_eq!(read(&lines), [(2, 1.0)]);
    lines.extend([validation(4, 3.0), validation(5, 4.0), validation(5, 5.0)]);
    assert_eq!(read(&lines), [(2, 1.0), (4, 3.0), (5, 5.0)]);
}

#[test]
fn a_run_without_steps_since_it_was_resumed_has_no_costs() {
    let log = resumed(before(), &after(), 0);
    assert_eq!((log.steps.len(), log.resumed_at, log.warm_steps().count()), (5, 5, 0));
    assert!(matches!(Measured::of(&log), Err(PredictError::NoSteps)));
    let page = run_page(&log);
    assert!(page.contains("P = 2 workers") && !page.contains("A typical step"), "{page}");
}

#[test]
fn the_page_draws_the_timeline_and_the_memory_of_the_last_plan() {
    let (mut before, mut after) = (before(), after());
    let draw = |step: &mut Step, stages: usize| {
        step.timeline = (0..stages).map(|stage| vec![event(stage, &format!("{stage}F0"), 0.0..1.0)]).collect()
    };
    draw(&mut before.steps[1], 4);
    draw(&mut after.steps[1], 2);
    let page = run_page(&resumed(before, &after, 5));
    assert!(page.contains("Step 4, ") && !page.contains("Step 1, "), "{page}");
    let chart = &page[page.find("aria-label='Peak memory'").unwrap()..];
    let peaks = &chart[..chart.find("</ul>").unwrap()];
    // The memory has a point for each of the 5 steps of the last plan and each of its 2 workers.
    assert_eq!(peaks.matches("<title>worker ").count(), 10, "{peaks}");
}

#[test]
fn losses_and_noise_are_those_of_all_steps() {
    let (mut before, mut after) = (before(), after());
    let total = SignalAndNoise { squared_norm: 1.0, variance: 100.0 };
    let noise = Noise { scale: None, smoothed_scale: None, total, stages: Vec::new() };
    before.steps[..3].iter_mut().for_each(|step| step.noise = Some(noise.clone()));
    after.steps[..2].iter_mut().for_each(|step| step.noise = Some(noise.clone()));
    for (step, loss) in
        before.steps[..3].iter_mut().chain(&mut after.steps).zip([1.0, 1.1, 0.9, 1.0, 3.0, 3.1, 2.9, 3.0])
    {
        step.loss = Some(loss);
    }
    let log = resumed(before, &after, 5);
    // Neither part of the run alone has the 4 noise estimates or the 8 losses that are needed.
    assert!(log.noise_scales().is_ok() && log.rising_loss().is_some());
}
