//! Tests the gradient noise scales in the outputs of a training: those of the log follow from its estimates, and those
//! of TensorBoard and the page are those of the log.

use std::fs;

use serde_json::Value;

use crate::event_file::scalars;
use crate::runs::Place;

/// The measured gradient noise of the whole model or of one stage at a training step, as it is in the log.
struct Logged {
    step: u64,
    squared_norm: f64,
    variance: f64,
    scale: Option<f64>,
    smoothed_scale: Option<f64>,
}

/// Reads the gradient noise of the whole model, or of the stage with the index `stage`, from the lines of a log.
fn logged(lines: &[Value], stage: Option<usize>) -> Vec<Logged> {
    let read = |line: &Value| {
        let (step, noise) = (line["step"].as_u64()?, line.get("noise")?);
        let (estimate, scales) = match stage {
            Some(stage) => (&noise["stages"][stage], &noise["stages"][stage]),
            None => (&noise["total"], noise),
        };
        Some(Logged {
            step,
            squared_norm: estimate["squared_norm"].as_f64().unwrap(),
            variance: estimate["variance"].as_f64().unwrap(),
            scale: scales["scale"].as_f64(),
            smoothed_scale: scales["smoothed_scale"].as_f64(),
        })
    };
    lines.iter().filter_map(read).collect()
}

/// Returns the gradient noise scale, the ratio of the gradient's variance to its squared norm; `None` if the squared
/// norm is not above 0.
fn ratio(squared_norm: f64, variance: f64) -> Option<f64> {
    (squared_norm > 0.0).then(|| variance.max(0.0) / squared_norm)
}

#[track_caller]
fn assert_near(found: Option<f64>, expected: Option<f64>, tolerance: f64) {
    let near = match (found, expected) {
        (Some(found), Some(expected)) => (found - expected).abs() <= tolerance * expected,
        (found, expected) => found == expected,
    };
    assert!(near, "{found:?} instead of {expected:?}");
}

/// Reads the chart "Noise scale of each stage" of a report page. Returns the points of the smoothed curves: the curve's
/// name, the step and the value.
fn on_page(page: &str) -> Vec<(&str, u64, f64)> {
    let chart = &page[page.find("aria-label='Noise scale of each stage'").unwrap()..];
    let chart = &chart[..chart.find("</ul>").unwrap()];
    let titles = chart.split("<title>").skip(1).map(|rest| rest.split("</title>").next().unwrap());
    titles
        .map(|title| {
            let (name, point) = title.split_once(": ").unwrap();
            let (value, step) = point.split_once(" at ").unwrap();
            (name, step.parse().unwrap(), value.parse().unwrap())
        })
        .collect()
}

/// Tests a training of two stages that measures the gradient noise at every second step. A smoothed noise scale is the
/// average variance so far over the average squared norm so far. Both averages are weighted: the weight of an estimate
/// is 0.8 times the weight of the next estimate.
#[test]
fn the_log_tensorboard_and_the_page_have_the_same_noise_scales() {
    let place = Place::new();
    place.said("--steps 12 --noise-every 2 --log @log --tensorboard @board --report @page");
    let log = fs::read_to_string(place.path("log")).unwrap();
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let file = fs::read_dir(place.path("board")).unwrap().next().unwrap().unwrap().path();
    let board = scalars(&fs::read(file).unwrap());
    let page = fs::read_to_string(place.path("page")).unwrap();
    let page = on_page(&page);
    for (stage, tag, line) in [
        (None, "noise scale", "total"),
        (Some(0), "noise scale of stage 0", "stage 0"),
        (Some(1), "noise scale of stage 1", "stage 1"),
    ] {
        let logged = logged(&lines, stage);
        assert_eq!(logged.iter().map(|noise| noise.step).collect::<Vec<_>>(), [0, 2, 4, 6, 8, 10]);
        assert!(logged.iter().any(|noise| noise.smoothed_scale.is_some()), "no noise scale is known");
        for (at, noise) in logged.iter().enumerate() {
            let weighted = |figure: fn(&Logged) -> f64| -> f64 {
                (0..=at).map(|before| 0.8_f64.powi((at - before) as i32) * figure(&logged[before])).sum()
            };
            let averaged = ratio(weighted(|noise| noise.squared_norm), weighted(|noise| noise.variance));
            assert_near(noise.scale, ratio(noise.squared_norm, noise.variance), 1e-9);
            assert_near(noise.smoothed_scale, averaged, 1e-6);
            let in_board = |kind: &str| {
                let name = format!("{tag}/{kind}");
                let found = board.iter().find(|(step, tag, _)| (*step, tag) == (noise.step, &name));
                found.map(|(_, _, value)| f64::from(*value))
            };
            assert_near(in_board("of the step"), noise.scale, 1e-6);
            assert_near(in_board("smoothed"), noise.smoothed_scale, 1e-6);
            // The page shows three or four digits.
            let shown = page.iter().find(|(name, step, _)| (*name, *step) == (line, noise.step));
            assert_near(shown.map(|(_, _, value)| *value), noise.smoothed_scale, 0.006);
        }
    }
}
