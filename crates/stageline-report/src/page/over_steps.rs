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
        let points = thinned(steps).map(|step| (step.step as f64, figure(step).unwrap_or(f64::NAN)));
        Series { name: (*name).to_owned(), points: points.collect(), line: *line, colour }
    });
    LineChart { title, x: "step", y, scale: Scale::Linear, series: series.chain(more).collect() }.svg()
}

/// Returns at most 2,000 of the given training steps or validations, evenly spaced, so that charts stay small.
pub(super) fn thinned<'a, T>(measured: &[&'a T]) -> impl Iterator<Item = &'a T> {
    measured.iter().copied().step_by(every(measured.len()))
}

/// Returns the stride n for a chart that draws every n-th of `points` points, so that it draws at most 2,000.
pub(super) fn every(points: usize) -> usize {
    const MOST: usize = 2_000;
    points.div_ceil(MOST).max(1)
}
