//! Tests the values in the charts of a run's HTML page, from synthetic logs.

mod events;
mod synthetic;

use std::collections::BTreeMap;

use stageline_report::record::{DeviceMemory, Health, Line, Noise, SignalAndNoise, StageNoise, Step, Validation};
use stageline_report::{RunLog, run_page};

use events::event;
use synthetic::log;

/// Returns the part of an HTML page that draws the chart with the given title; `None` if the page has no such chart.
fn chart<'a>(page: &'a str, title: &str) -> Option<&'a str> {
    let start = page.find(&format!("aria-label='{title}'"))?;
    let chart = &page[start..];
    Some(&chart[..chart.find("</ul>").unwrap()])
}

/// Returns the labels of the marked points in a chart, each of the form `name: y at x`.
fn points(chart: &str) -> Vec<&str> {
    chart.split("<title>").skip(1).map(|rest| rest.split("</title>").next().unwrap()).collect()
}

/// Returns the values of the points of each line in a chart, from the SVG text. They are computed from the heights of
/// the points, on a vertical axis from 0 to `top`.
fn heights(chart: &str, top: f64) -> Vec<Vec<f64>> {
    // The vertical axis runs from y = 272 (the value 0) to y = 32 (the value `top`).
    let value = |point: &str| top * (272.0 - point.split_once(',').unwrap().1.parse::<f64>().unwrap()) / 240.0;
    let lines = chart.split("points='").skip(1).map(|rest| rest.split('\'').next().unwrap());
    lines.map(|line| line.split(' ').filter(|point| !point.is_empty()).map(value).collect()).collect()
}

/// Makes the log of a run of two stages whose gradient noise was measured in every step. The smoothed noise scales grow
/// by 1 in each step. In step 2, the squared norm of stage 1 is negative, so this stage has only a smoothed noise
/// scale.
fn noisy() -> RunLog {
    let mut log = log(&[1.0; 2], 2, 4, 0.0);
    for (at, step) in log.steps.iter_mut().enumerate() {
        let smoothed = |scale: f64| Some(scale + at as f64);
        let one = SignalAndNoise { squared_norm: 2.0, variance: 20.0 };
        let other = SignalAndNoise { squared_norm: if at == 2 { -1.0 } else { 1.0 }, variance: 20.0 };
        let total = SignalAndNoise {
            squared_norm: one.squared_norm + other.squared_norm,
            variance: one.variance + other.variance,
        };
        let stages = vec![
            StageNoise { scale: Some(10.0), smoothed_scale: smoothed(10.0), estimate: one },
            StageNoise { scale: (at != 2).then_some(20.0), smoothed_scale: smoothed(20.0), estimate: other },
        ];
        step.noise = Some(Noise { scale: Some(40.0 - at as f64), smoothed_scale: smoothed(15.0), total, stages });
    }
    log
}

#[test]
fn noise_scales_of_stages_stand_beside_that_of_the_model() {
    let page = run_page(&noisy());
    let of_stages = chart(&page, "Noise scale of each stage").unwrap();
    let smoothed =
        |name: &str, first: usize| (0..5).map(|step| format!("{name}: {} at {step}", first + step)).collect::<Vec<_>>();
    let expected = [smoothed("stage 0", 10), smoothed("stage 1", 20), smoothed("total", 15)].concat();
    assert_eq!(points(of_stages), expected);
    // The noise scale of the whole model is 40 in the first step, which is the top of the axis.
    let lines = heights(of_stages, 40.0);
    let near = |found: &[f64], expected: &[f64]| {
        found.len() == expected.len() && found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 0.05)
    };
    // Stage 1 has no noise scale of its own in the third step.
    assert!(near(&lines[1], &[10.0; 5]) && near(&lines[3], &[20.0; 4]), "{lines:?}");
    let total = [40.0, 39.0, 38.0, 37.0, 36.0];
    assert!(near(&lines[5], &total), "{lines:?}");
    let of_model = chart(&page, "Noise scale").unwrap();
    assert_eq!(points(of_model), smoothed("total", 15));
    assert!(near(&heights(of_model, 40.0)[1], &total));
    // The window of every step contains all five steps. So the noise scale is the ratio of their sums: a variance of 40
    // x 5 to a squared norm of 3 x 4 + 1.
    assert!(
        page.contains("At the end of the run it is 15.38 tokens.") && page.contains("the bubble of this plan would be")
    );
}

#[test]
fn the_noise_scales_of_stages_are_read_from_the_log() {
    let logged = noisy().steps.remove(0);
    let line = serde_json::to_string(&Line::Step(Box::new(logged.clone()))).unwrap();
    assert!(line.contains(r#"{"scale":10.0,"smoothed_scale":10.0,"squared_norm":2.0,"variance":20.0}"#), "{line}");
    assert_eq!(Line::read(&line).unwrap(), Line::Step(Box::new(logged)));
    // Older logs have the estimates of the stages, and not their noise scales.
    let line = line.replace(r#""scale":10.0,"smoothed_scale":10.0,"squared_norm":2.0"#, r#""squared_norm":2.0"#);
    let Line::Step(older) = Line::read(&line).unwrap() else { panic!("{line}") };
    let estimate = SignalAndNoise { squared_norm: 2.0, variance: 20.0 };
    assert_eq!(older.noise.unwrap().stages[0], StageNoise { scale: None, smoothed_scale: None, estimate });
}

#[test]
fn a_log_without_noise_of_stages_has_no_chart_of_it() {
    let mut log = noisy();
    log.steps.iter_mut().filter_map(|step| step.noise.as_mut()).for_each(|noise| noise.stages.clear());
    let page = run_page(&log);
    assert!(chart(&page, "Noise scale").is_some());
    assert!(chart(&page, "Noise scale of each stage").is_none() && chart(&page, "Noise of each stage").is_none());
    log.steps.iter_mut().for_each(|step| step.noise = None);
    assert!(!run_page(&log).contains("Noise scale"));
}

/// Makes a log entry about one parameter in one step, with the given norms of its values, its update and its gradient.
fn health(parameter: &str, [values, update, gradient]: [f64; 3]) -> Health {
    Health {
        stage: 0,
        parameter: parameter.to_owned(),
        gradient_norm: gradient,
        parameter_norm: values,
        update_ratio: update / values,
        second_moment: None,
        zeros: 0.0,
        histogram: vec![(0.5, 7)],
    }
}

#[test]
fn the_second_moment_of_a_layer_is_the_mean_over_its_parameters() {
    let mut log = log(&[1.0; 2], 2, 4, 0.0);
    let moments = |of: [Option<f64>; 3]| -> Vec<Health> {
        let names = ["blocks.0.a", "blocks.0.b", "head.a"];
        let of = names.into_iter().zip(of);
        of.map(|(name, second_moment)| Health { second_moment, ..health(name, [1.0; 3]) }).collect()
    };
    // The optimizer keeps no second moment of `blocks.0.b` at step 3, and none of `head`.
    log.steps[1].health = moments([Some(2.0), Some(6.0), None]);
    log.steps[3].health = moments([Some(0.5), None, None]);
    let page = run_page(&log);
    let shown = points(chart(&page, "Second moment of each layer").unwrap());
    assert_eq!(shown, ["blocks.0: 4 at 1", "blocks.0: 0.5 at 3"]);
    let row = |parameter: &str, moment: &str| {
        let cells = ["0: ".to_owned() + parameter, "1".into(), "1".into(), "1".into(), moment.into(), "0.0%".into()];
        cells.map(|cell| format!("<td>{cell}</td>")).concat()
    };
    // The table shows the last step that measured the health of the parameters.
    for (parameter, moment) in [("blocks.0.a", "0.5"), ("blocks.0.b", ""), ("head.a", "")] {
        assert!(page.contains(&row(parameter, moment)), "{parameter}: {page}");
    }
}

#[test]
fn the_update_of_a_layer_is_shown_beside_its_gradient() {
    let mut log = log(&[1.0; 2], 2, 4, 0.0);
    // The norm of the update of `blocks.0` is 5. The norm of its gradient is 10 in step 1, and 20 in step 3.
    log.steps[1].health = vec![
        health("blocks.0.a", [9.0, 3.0, 6.0]),
        health("blocks.0.b", [2.0, 4.0, 8.0]),
        health("head.a", [1.0, 0.5, 2.0]),
    ];
    log.steps[3].health = vec![
        health("blocks.0.a", [9.0, 3.0, 12.0]),
        health("blocks.0.b", [2.0, 4.0, 16.0]),
        health("head.a", [1.0, 0.5, 0.0]),
    ];
    let page = run_page(&log);
    let ratios = points(chart(&page, "Update and gradient of each layer").unwrap());
    assert_eq!(ratios, ["blocks.0: 0.5 at 1", "blocks.0: 0.25 at 3", "head: 0.25 at 1"]);
    // There is no chart of second moments, because the optimizer of this run keeps none.
    assert!(chart(&page, "Second moment of each layer").is_none());
    assert!(chart(&page, "Update of each layer").is_some());

    for step in &mut log.steps {
        step.health.iter_mut().for_each(|health| health.gradient_norm = f64::NAN);
    }
    assert!(chart(&run_page(&log), "Update and gradient of each layer").is_none());
}

/// Tests the charts of a run with many validations. A chart draws at most 2,000 of them, as of training steps.
#[test]
fn charts_draw_some_of_many_validations() {
    let mut log = log(&[1.0; 2], 2, 2, 0.0);
    let metrics = BTreeMap::from([("accuracy".to_owned(), 0.5)]);
    let validation = |after_steps| Validation { after_steps, validation_loss: 1.0, metrics: metrics.clone() };
    log.validations = (1..=4_001).map(validation).collect();
    let page = run_page(&log);
    for title in ["Loss", "accuracy"] {
        // Every third validation is drawn.
        assert_eq!(heights(chart(&page, title).unwrap(), 1.0).last().unwrap().len(), 1_334, "{title}");
    }
}

/// Tests a chart of a metric that only every 10th of 20,000 steps has. A chart draws at most 2,000 points. If steps
/// were thinned to every 10th before those without the metric are left out, no point would remain.
#[test]
fn charts_draw_figures_that_few_of_many_steps_have() {
    let mut log = log(&[1.0; 2], 2, 2, 0.0);
    let metrics = |at: usize| (at % 10 == 9).then(|| ("accuracy".to_owned(), 0.5)).into_iter().collect();
    let step = |at: usize| Step { step: at, metrics: metrics(at), ..log.steps[0].clone() };
    log.steps = (0..20_000).map(step).collect();
    let drawn = heights(chart(&run_page(&log), "accuracy").unwrap(), 0.5);
    assert!(drawn[0].len() == 2_000 && drawn[0].iter().all(|value| (value - 0.5).abs() < 0.01), "{}", drawn[0].len());
}

#[test]
fn a_run_without_steps_has_a_page() {
    let mut empty = log(&[1.0; 2], 2, 2, 0.0);
    empty.steps.clear();
    assert!(run_page(&empty).contains("Loss: nothing was measured"));
    let page = run_page(&log(&[1.0; 2], 2, 2, 0.0));
    assert!(page.contains("layer 0") && page.contains("made up") && !page.contains("NaN"));
}

#[test]
fn the_memory_of_every_gpu_is_in_the_log_and_on_the_page() {
    const TITLE: &str = "Device memory: in use / reserved";
    let mut log = log(&[1.0; 2], 2, 4, 0.0);
    assert!(chart(&run_page(&log), TITLE).is_none());
    let memory = |device: &str, in_use: u64, reserved: u64| DeviceMemory {
        device: device.to_owned(),
        in_use: in_use * 1_000_000,
        reserved: reserved * 1_000_000,
    };
    // The memory is measured in every second step, and the run has another second GPU in step 2, as after a resume.
    log.steps[0].device_memory = vec![memory("cuda:0", 10, 40), memory("cuda:1", 5, 20)];
    log.steps[2].device_memory = vec![memory("cuda:0", 12, 40), memory("cuda:2", 6, 20)];
    let page = run_page(&log);
    let found = chart(&page, TITLE).unwrap();
    let expected =
        ["cuda:0 in use: 10 at 0", "cuda:0 in use: 12 at 2", "cuda:1 in use: 5 at 0", "cuda:2 in use: 6 at 2"];
    assert_eq!(points(found), expected);
    let reserved: Vec<_> = heights(found, 40.0).into_iter().skip(1).step_by(2).collect();
    assert_eq!(reserved, [vec![40.0, 40.0], vec![20.0], vec![20.0]]);

    let line = serde_json::to_string(&Line::Step(Box::new(log.steps[2].clone()))).unwrap();
    assert!(line.contains(r#""device_memory":[{"device":"cuda:0","in_use":12000000,"reserved":40000000}"#), "{line}");
    assert_eq!(Line::read(&line).unwrap(), Line::Step(Box::new(log.steps[2].clone())));
}

/// Tests the timeline of a step of 2 s in which the second worker ends its last action after 4 s. This is possible if
/// steps overlap.
#[test]
fn the_timeline_is_as_long_as_its_last_event() {
    let mut log = log(&[1.0; 2], 2, 4, 0.0);
    log.steps[1].step_seconds = 2.0;
    log.steps[1].timeline =
        vec![vec![event(0, "0F0", 0.0..1.0)], vec![event(1, "1F0", 1.0..2.0), event(1, "optimizer", 2.0..4.0)]];
    let page = run_page(&log);
    let timeline = &page[page.find("aria-label='timeline'").unwrap()..];
    let timeline = &timeline[..timeline.find("</svg>").unwrap()];
    // The time axis runs from x = 70 to x = 1200.
    assert!(timeline.contains("x='635.00' y='38' width='565.00'") && timeline.contains(">4000 ms<"), "{timeline}");
    assert!(timeline.contains("x='70.00' y='4' width='282.50'"), "{timeline}");
    // If the step is longer than its events, the timeline has the length of the step.
    log.steps[1].step_seconds = 8.0;
    assert!(run_page(&log).contains(">8000 ms</text></svg>"));
}

/// Tests that the caption of the timeline names the colour of each kind of bar. The page's style numbers these colours
/// from 0: blue, orange, green and pink.
#[test]
fn the_caption_of_the_timeline_names_every_colour() {
    let mut log = log(&[1.0], 1, 1, 0.0);
    let activities =
        [("0F0", "Blue: forwards."), ("0I0", "Orange: "), ("optimizer", "Green: "), ("0W0", "Pink: weight")];
    for (colour, (activity, caption)) in activities.into_iter().enumerate() {
        log.steps[0].timeline = vec![vec![event(0, activity, 0.0..1.0)]];
        let page = run_page(&log);
        let section = &page[page.find("The timeline").unwrap()..];
        assert!(section.contains(caption) && section.contains(&format!("class='act c{colour}'")), "{activity}");
    }
}

/// Tests that the summary computes the utilisation from the same steps as the throughput before it: both leave out the
/// first two steps.
#[test]
fn the_utilisation_is_that_of_the_throughput_before_it() {
    let mut log = log(&[1.0; 2], 2, 2, 0.0);
    log.steps.truncate(3);
    for (step, (tokens_per_s, utilisation)) in log.steps.iter_mut().zip([(10.0, 0.01), (10.0, 0.01), (400.0, 0.4)]) {
        (step.tokens_per_s, step.model_flop_utilisation) = (tokens_per_s, Some(utilisation));
    }
    let page = run_page(&log);
    let summary = &page[page.find("Throughput: ").expect("the summary has the throughput")..][..100];
    assert!(
        summary.starts_with("Throughput: 400 ") && summary.contains("That is 40.0% of the peak FLOP/s"),
        "{summary}"
    );
}
