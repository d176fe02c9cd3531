//! Line charts of a run's measurements, such as its loss, over the training steps.

use super::chart::{LineChart, Scale, Series};
use super::drawing::Line;
use crate::log::record::Step;

/// A chart line over the training steps: its name, its style, and a callback that returns its value at a step.
pub(super) type Figure<'a> = (&'a str, Line, fn(&Step) -> Option<f64>);

/// Returns a line chart (SVG) over the training steps. It has one line for each measurement in `figures`, such as the
/// loss, and the line `more`, if given. `y` is the label of the vertical axis.
pub(super) fn over_steps(steps: &[&Step], title: &str, y: &str, figures: &[Figure], more: Option<Series>) -> String {
    let series = figures.iter().enumerate().map(|(colour, (name, line, figure))| {
        let point = |step: &&Step| (step.step as f64, figure(step).unwrap_or(f64::NAN));
        Series { name: (*name).to_owned(), points: thinned(steps.iter().map(point)), line: *line, colour }
    });
    LineChart { title, x: "step", y, scale: Scale::Linear, series: series.chain(more).collect() }.svg()
}

/// Returns at most 2,000 of the points of a chart's line, evenly spaced, so that charts stay small. Points without a
/// value must have been left out before, or the stride might skip all points that have one.
pub(super) fn thinned(points: impl Iterator<Item = (f64, f64)>) -> Vec<(f64, f64)> {
    const MOST: usize = 2_000;
    let points: Vec<_> = points.collect();
    let every = points.len().div_ceil(MOST).max(1);
    points.into_iter().step_by(every).collect()
}
