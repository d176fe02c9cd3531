//! Adds the sections about gradients to a run's HTML page: the gradient noise, and the health of each parameter
//! (training statistics such as its gradient norm and update ratio).

use super::chart::{LineChart, Scale, Series, StackedBars, number};
use super::drawing::Line;
use super::html::Page;
use super::over_steps::thinned;
use crate::log::RunLog;
use crate::log::record::{Health, Noise, Step};

/// The largest number of the model's layers that one chart shows: one for each of the 8 colours of a page.
const MOST_LAYERS: usize = 8;

/// Adds a section about the gradient noise to a run's HTML page. Its charts show the noise scale of the whole gradient,
/// the noise scale of each stage, and the variance of each stage's gradient, over the training steps. The charts of
/// stages begin where the run was last started or resumed. Adds nothing if no step measured the noise.
pub(super) fn noise(page: &mut Page, log: &RunLog) {
    fn of_step(step: &Step) -> Option<(f64, &Noise)> {
        Some((step.step as f64, step.noise.as_ref()?))
    }
    let measured: Vec<_> = log.steps.iter().filter_map(of_step).collect();
    // Before the last resume, the model may have been partitioned into other stages.
    let of_this_cut: Vec<_> = log.steps_since_resume().filter_map(of_step).collect();
    if measured.is_empty() {
        return;
    }
    let unit = log.run.unit;
    let about = format!(
        "At the noise scale, the gradient of a batch has as much noise as signal; smaller batches need more steps, and larger ones more \
         {unit} to the same loss. Solid lines are smoothed over the measured steps so far, dashed lines are of one step."
    );
    let end = match log.noise_scales().map(|scales| scales.last()) {
        Ok(scale) if scale.is_infinite() => " At the end of the run the noise hides the gradient.".to_owned(),
        Ok(scale) => format!(" At the end of the run it is {} {unit}.", number(scale)),
        Err(reason) => format!(" The noise scale of the run is not known: {reason}."),
    };
    page.section("Gradient noise", &(about + &end));
    let stages = 0..log.plan.stages();
    let total = scales(&measured, "total", log.plan.stages(), |noise| (noise.scale, noise.smoothed_scale));
    let of_stage = |stage: usize| {
        let found = |noise: &Noise| noise.stages.get(stage).map(|found| (found.scale, found.smoothed_scale));
        scales(&of_this_cut, &format!("stage {stage}"), stage, |noise| found(noise).unwrap_or_default())
    };
    let variances = stages.clone().map(|stage| {
        let variance = |noise: &Noise| Some(noise.stages.get(stage)?.estimate.variance);
        let points = of_this_cut.iter().filter_map(|&(step, noise)| Some((step, variance(noise)?)));
        Series { name: format!("stage {stage}"), points: thinned(points), line: Line::Solid, colour: stage }
    });
    let chart = |title, y, series| LineChart { title, x: "step", y, scale: Scale::Linear, series }.svg_if_measured();
    let of_stages: Vec<_> = stages.flat_map(of_stage).collect();
    let beside = if of_stages.iter().all(|series| series.points.is_empty()) { Vec::new() } else { total.clone() };
    let pictures = [
        chart("Noise scale", &unit.to_string(), total),
        chart("Noise scale of each stage", &unit.to_string(), of_stages.into_iter().chain(beside).collect()),
        chart("Noise of each stage", &format!("variance of a {}'s gradient", unit.one()), variances.collect()),
    ];
    page.pictures(pictures.into_iter().flatten());
}

/// Returns two lines for a chart of the gradient's noise scale over the measured steps. The solid line has the noise
/// scales smoothed over several steps, and the dashed line has each step's own noise scale.
///
/// The callback `logged` returns both noise scales from a step's log record: the step's own one, then the smoothed one.
/// If one is missing, its line has no point at this step.
fn scales(
    measured: &[(f64, &Noise)],
    name: &str,
    colour: usize,
    logged: impl Fn(&Noise) -> (Option<f64>, Option<f64>),
) -> Vec<Series> {
    let points = |scale: &dyn Fn(&Noise) -> Option<f64>| {
        thinned(measured.iter().filter_map(|&(step, noise)| Some((step, scale(noise)?))))
    };
    let (smoothed, alone) = (points(&|noise| logged(noise).1), points(&|noise| logged(noise).0));
    vec![
        Series { name: name.to_owned(), points: smoothed, line: Line::Solid, colour },
        Series { name: format!("{name}, of the step"), points: alone, line: Line::Dashed, colour },
    ]
}

pub(super) fn health(page: &mut Page, log: &RunLog) {
    let examined: Vec<_> = log.steps.iter().filter(|step| !step.health.is_empty()).collect();
    let Some(last) = examined.last() else { return };
    let (step, steps, layers) = (last.step, examined.len(), last.layers().len());
    let some = if layers > MOST_LAYERS {
        format!(" The curves show {MOST_LAYERS} of {layers} layers.")
    } else {
        String::new()
    };
    let about = format!("The table and the histogram are of step {step}; {steps} steps were examined.{some}");
    page.section("Health of the parameters", &about);
    let shown = shown(&last.layers());
    let over = |title, y, figure: fn(&[&Health]) -> f64| {
        let series = shown.iter().enumerate().map(|(colour, layer)| {
            let points = examined.iter().map(|step| (step.step as f64, figure(&step.health_of(layer)))).collect();
            Series { name: (*layer).to_owned(), points, line: Line::Solid, colour }
        });
        LineChart { title, x: "step", y, scale: Scale::Linear, series: series.collect() }.svg_if_measured()
    };
    let pictures = [
        over("Update of each layer", "share of the norm of its parameters", Health::update_ratio_of),
        over("Update and gradient of each layer", "norm of update / norm of gradient", Health::update_to_gradient_of),
        over("Second moment of each layer", "mean over its parameters", Health::second_moment_of),
        Some(histogram(last)),
    ];
    page.pictures(pictures.into_iter().flatten());
    let row = |health: &Health| {
        vec![
            format!("{}: {}", health.stage, health.parameter),
            number(health.gradient_norm),
            number(health.parameter_norm),
            number(health.update_ratio),
            health.second_moment.map_or_else(String::new, number),
            format!("{:.1}%", 100.0 * health.zeros),
        ]
    };
    let columns = ["stage: parameter", "gradient norm", "norm", "update / norm", "second moment", "zeros"];
    page.table(&columns, last.health.iter().map(row));
}

/// Returns at most [`MOST_LAYERS`] of the model's layers, so that each has a colour of its own in a chart. They are
/// evenly spaced, and include the first and the last layer.
fn shown<'a>(layers: &[&'a str]) -> Vec<&'a str> {
    let shown = layers.len().min(MOST_LAYERS);
    (0..shown).map(|at| layers[at * (layers.len() - 1) / (shown - 1).max(1)]).collect()
}

/// Returns a histogram (SVG) of the absolute values of all gradient elements in a step, over all parameters.
fn histogram(step: &Step) -> String {
    let mut bins: Vec<(f64, u64)> = Vec::new();
    for (from, count) in step.health.iter().flat_map(|health| &health.histogram) {
        match bins.iter_mut().find(|bin| bin.0 == *from) {
            Some(bin) => bin.1 = bin.1.saturating_add(*count),
            None => bins.push((*from, *count)),
        }
    }
    bins.sort_by(|a, b| a.0.total_cmp(&b.0));
    let label = |from: f64| if from > 0.0 { format!("{}", from.log2().round()) } else { "less".to_owned() };
    let categories = bins.iter().map(|bin| label(bin.0)).collect();
    let parts = vec![("elements", bins.iter().map(|bin| bin.1 as f64).collect())];
    StackedBars { title: "Sizes of gradient elements", x: "power of two", y: "elements", categories, parts }.svg()
}
