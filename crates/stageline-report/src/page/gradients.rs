//! The sections of a run's page about its gradients: their noise, and the health of each parameter.

use super::chart::{LineChart, Scale, Series, StackedBars, number};
use super::drawing::Line;
use super::html::Page;
use super::over_steps::{over_steps, thinned};
use crate::log::RunLog;
use crate::log::record::{Health, Step};

/// The most layers in a chart, which is the number of colours.
const MOST_LAYERS: usize = 8;

/// Adds a section to the page with a chart of the noise scale over the steps that measured it, and one of each stage's
/// noise. Adds nothing if no step measured it.
pub(super) fn noise(page: &mut Page, log: &RunLog) {
    let measured: Vec<_> = log.steps.iter().filter(|step| step.noise.is_some()).collect();
    if measured.is_empty() {
        return;
    }
    let about = "At the noise scale, the gradient of a batch has as much noise as signal; smaller batches need more steps, and larger \
                 ones more tokens to the same loss.";
    let end = log.noise_scale().map(|scale| format!(" At the end of the run it is {} tokens.", number(scale)));
    page.section("Gradient noise", &(about.to_owned() + &end.unwrap_or_default()));
    let of_step = |step: &Step| step.noise.as_ref().and_then(|noise| noise.scale);
    let smoothed = |step: &Step| step.noise.as_ref().and_then(|noise| noise.smoothed_scale);
    let scales = over_steps(
        &measured,
        "Noise scale",
        "tokens",
        &[("averaged", Line::Solid, smoothed), ("of the step", Line::Dashed, of_step)],
        None,
    );
    let stages = (0..log.plan.stages()).map(|stage| {
        let variance = |step: &Step| step.noise.as_ref()?.stages.get(stage).map(|noise| noise.variance);
        let points = thinned(&measured).filter_map(|step| Some((step.step as f64, variance(step)?))).collect();
        Series { name: format!("stage {stage}"), points, line: Line::Solid, colour: stage }
    });
    let series = stages.collect();
    let (title, y) = ("Noise of each stage", "variance of a token's gradient");
    page.pictures([scales, LineChart { title, x: "step", y, scale: Scale::Linear, series }.svg()]);
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
        LineChart { title, x: "step", y, scale: Scale::Linear, series: series.collect() }.svg()
    };
    page.pictures([
        over("Update of each layer", "share of the norm of its parameters", Health::update_ratio_of),
        over("Second moment of each layer", "mean over its parameters", Health::second_moment_of),
        histogram(last),
    ]);
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

/// Returns at most [`MOST_LAYERS`] of the layers, evenly spaced, with the first and the last.
fn shown<'a>(layers: &[&'a str]) -> Vec<&'a str> {
    let shown = layers.len().min(MOST_LAYERS);
    (0..shown).map(|at| layers[at * (layers.len() - 1) / (shown - 1).max(1)]).collect()
}

/// Returns a histogram (SVG) of the gradient elements of all parameters in a step by their absolute value.
fn histogram(step: &Step) -> String {
    let mut bins: Vec<(f64, u64)> = Vec::new();
    for (from, count) in step.health.iter().flat_map(|health| &health.histogram) {
        match bins.iter_mut().find(|bin| bin.0 == *from) {
            Some(bin) => bin.1 += count,
            None => bins.push((*from, *count)),
        }
    }
    bins.sort_by(|a, b| a.0.total_cmp(&b.0));
    let label = |from: f64| if from > 0.0 { format!("{}", from.log2().round()) } else { "less".to_owned() };
    let categories = bins.iter().map(|bin| label(bin.0)).collect();
    let parts = vec![("elements", bins.iter().map(|bin| bin.1 as f64).collect())];
    StackedBars { title: "Sizes of gradient elements", x: "power of two", y: "elements", categories, parts }.svg()
}
