//! Shows a run on one HTML page: its training curves, bubble, timeline, memory, parameters and settings.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::chart::{LineChart, Scale, Series, StackedBars, number};
use super::drawing::Line;
use super::gradients;
use super::html::Page;
use super::over_steps::{Figure, over_steps, thinned};
use super::timeline::timeline;
use crate::log::record::{Account, DeviceMemory, Event, Step, Validation};
use crate::log::{RunLog, layer_range, median};

/// Returns the contents of an HTML file that shows a run, from the run's log: training curves, bubble, timeline,
/// memory, parameters and settings.
pub fn run_page(log: &RunLog) -> String {
    let mut page = Page::new("A pipeline run");
    page.section("Summary", &summary(log));
    let (unit, all) = (log.run.unit, log.steps.iter().collect::<Vec<_>>());
    // Synchronising with devices slows a step down, so the throughput chart leaves out synchronised steps.
    let free: Vec<_> = log.steps.iter().filter(|step| !step.synchronised).collect();
    page.pictures([
        over_steps(
            &all,
            "Loss",
            &format!("per {}", unit.one()),
            &[("training", Line::Solid, |step| step.loss)],
            validations(log),
        ),
        over_steps(
            &free,
            "Throughput",
            &format!("{unit} a second"),
            &[(&unit.to_string(), Line::Solid, |step| step.has_target().then_some(step.tokens_per_s))],
            None,
        ),
        over_steps(
            &all,
            "Learning rate",
            "per step",
            &[("learning rate", Line::Solid, |step| step.learning_rate)],
            None,
        ),
        over_steps(
            &all,
            "Gradient norm",
            "before clipping",
            &[("gradient norm", Line::Solid, |step| step.gradient_norm)],
            None,
        ),
    ]);
    metrics(&mut page, log);
    bubble(&mut page, log);
    if let Some(step) = log.steps_since_resume().find(|step| !step.timeline.is_empty()) {
        let empty = match log.plan.stages() == log.plan.workers() {
            true => "the bubble",
            false => "the bubble, or the worker computes another of its stages",
        };
        let about = format!(
            "Step {}, {} ms by the {}. Blue: forwards. Orange: backwards and input gradients. Pink: weight gradients of split backwards. \
             Green: norms and optimizer. Thin lines: transfers. Empty: {empty}.",
            step.step,
            number(1e3 * step.step_seconds),
            step.clock()
        );
        page.section("The timeline", &about);
        page.pictures([timeline(&step.timeline, step.step_seconds)]);
    }
    memory(&mut page, log);
    gradients::noise(&mut page, log);
    gradients::health(&mut page, log);
    page.section("Settings", "The version, the machine and the settings of the run.");
    let settings = log.run.configuration.iter().map(|(name, value)| vec![name.clone(), value.to_string()]);
    let version = vec!["stageline".to_owned(), log.run.stageline.clone()];
    let machine = log.run.machine.iter().map(|(name, value)| vec![name.clone(), value.to_string()]);
    page.table(&["setting", "value"], [version].into_iter().chain(machine).chain(settings));
    page.html()
}

fn summary(log: &RunLog) -> String {
    let (plan, run) = (&log.plan, &log.run);
    let mut text = format!(
        "{} with P = {} workers, {} stages and M = {} micro-batches; {} steps.",
        run.schedule,
        plan.workers(),
        plan.stages(),
        plan.micro_batches(),
        log.steps.len()
    );
    if run.replicas > 1 {
        let replicas = run.replicas;
        let _ = write!(
            text,
            " {replicas} replicas share every batch; the figures of workers and stages are those of the first replica."
        );
    }
    if let Some((seconds, bubble)) = log.typical() {
        let percent = |figure: fn(&Step) -> f64| 100.0 * median(log.warm_steps().map(figure)).unwrap_or(f64::NAN);
        let _ = write!(
            text,
            " A typical step took {} s, with a bubble of {:.1}% of the total stage time by the {}. With equal stages, the bubble of \
             this plan would be {:.1}%; a simulation with the measured costs gives {:.1}%.",
            number(seconds),
            100.0 * bubble,
            log.clock(),
            percent(|step| step.bubble_ideal),
            percent(|step| step.bubble_simulated),
        );
    }
    let synchronised = log.synchronised();
    text += match synchronised {
        true => {
            " All times and bubbles are those of steps in which workers waited for their device after every action."
        }
        false => " Times are those of the host: on a GPU, the times of enqueuing work.",
    };
    if let Some(throughput) = log.throughput() {
        let _ = write!(
            text,
            " Throughput: {} {} a second{}.",
            number(throughput),
            log.run.unit,
            if synchronised { " in the other steps" } else { "" }
        );
        if let Some(utilisation) = log.model_flop_utilisation() {
            let _ = write!(text, " That is {:.1}% of the peak FLOP/s of the devices.", 100.0 * utilisation);
        }
    }
    if let Some(last) = log.validations.last() {
        let _ = write!(text, " Validation loss {} after {} steps.", number(last.validation_loss), last.after_steps);
    }
    text
}

fn validations(log: &RunLog) -> Option<Series> {
    let point = |validation: &Validation| (validation.after_steps as f64, validation.validation_loss);
    let points = thinned(log.validations.iter().map(point));
    (!points.is_empty()).then(|| Series { name: "validation".to_owned(), points, line: Line::Solid, colour: 1 })
}

/// Adds a section to a run's HTML page with a chart for each metric of the model other than the loss, over training
/// steps and validations. Adds nothing if there are no metrics.
fn metrics(page: &mut Page, log: &RunLog) {
    let in_steps = log.steps.iter().flat_map(|step| step.metrics.keys());
    let names: BTreeSet<_> = in_steps.chain(log.validations.iter().flat_map(|found| found.metrics.keys())).collect();
    if names.is_empty() {
        return;
    }
    page.section(
        "Metrics",
        "Means over the targets of each step, and over the held-out samples. They are not part of the loss.",
    );
    page.pictures(names.into_iter().map(|name| {
        let in_step = |step: &Step| Some((step.step as f64, *step.metrics.get(name)?));
        let in_validation = |found: &Validation| Some((found.after_steps as f64, *found.metrics.get(name)?));
        let training = thinned(log.steps.iter().filter_map(in_step));
        let validation = thinned(log.validations.iter().filter_map(in_validation));
        let series = |name: &str, points, line, colour| Series { name: name.to_owned(), points, line, colour };
        let series =
            vec![series("training", training, Line::Solid, 0), series("validation", validation, Line::Solid, 1)];
        LineChart { title: name, x: "step", y: "mean over the targets", scale: Scale::Linear, series }.svg()
    }));
}

fn bubble(page: &mut Page, log: &RunLog) {
    page.section(
        "The bubble",
        "The share of the total stage time (workers x step) in which nothing is computed, and its causes.",
    );
    let figures: [Figure; 3] = [
        ("measured", Line::Solid, |step| Some(step.bubble)),
        ("simulated", Line::Dashed, |step| Some(step.bubble_simulated)),
        ("in theory", Line::Dotted, |step| Some(step.bubble_ideal)),
    ];
    let synchronised = log.synchronised();
    let timed: Vec<_> = log.steps.iter().filter(|step| step.synchronised == synchronised).collect();
    let share = format!("share of the total stage time, {}", log.clock());
    page.pictures([over_steps(&timed, "Bubble", &share, &figures, None), by_cause(log)]);
}

/// Returns a stacked bar chart (SVG) of the idle time of each worker by cause. It shows mean fractions of the step time
/// over the run's [warm steps](RunLog::warm_steps), which leave out the first two steps.
fn by_cause(log: &RunLog) -> String {
    let workers = log.plan.workers();
    let mean = |worker: usize, cause: usize| {
        let of_steps = log.warm_steps().filter_map(|step| Some((step.workers.get(worker)?, step.step_seconds)));
        let shares: Vec<_> = of_steps.map(|(account, took)| account.causes()[cause].1 / took).collect();
        shares.iter().sum::<f64>() / shares.len().max(1) as f64
    };
    let names = Account::default().causes().map(|(name, _)| name).into_iter().enumerate();
    let parts = names.map(|(cause, name)| (name, (0..workers).map(|worker| mean(worker, cause)).collect()));
    // Only a GPU is asked, so this cause is 0 in most runs.
    let parts =
        parts.filter(|(name, shares): &(_, Vec<f64>)| *name != "asking" || shares.iter().any(|share| *share > 0.0));
    let parts = parts.map(|(name, shares)| (Account::words_for(name), shares)).collect();
    let categories = (0..workers).map(|worker| worker.to_string()).collect();
    StackedBars {
        title: "Idle time by cause",
        x: "worker",
        y: &format!("share of the step, mean of the steps, {}", log.clock()),
        categories,
        parts,
    }
    .svg()
}

fn memory(page: &mut Page, log: &RunLog) {
    page.section(
        "Stages and memory",
        "Parameters, the most live micro-batches, and memory where it was counted (medians of the steps).",
    );
    let is_counted = log.steps_since_resume().any(|step| !step.memory.is_empty());
    let of_workers = is_counted.then(|| [peaks(log)].into_iter().chain(memory_over_step(log)));
    page.pictures(of_workers.into_iter().flatten().chain(device_memory(log)));
    let (live, placement) = (log.plan.peak_live(), log.plan.placement());
    let typical = |figure: &dyn Fn(&Step) -> Option<f64>| {
        median(log.warm_steps().filter_map(figure)).map_or_else(String::new, number)
    };
    let row = |stage: usize| {
        let own = || log.run.layers.iter().filter(|layer| layer.stage == stage);
        let worker = placement.worker(stage);
        vec![
            stage.to_string(),
            layer_range(own().map(|layer| layer.name.as_str())),
            own().map(|layer| u128::from(layer.parameters)).sum::<u128>().to_string(),
            worker.to_string(),
            live[worker].to_string(),
            typical(&|step| Some(step.stages.get(stage)?.activation_bytes? / 1e6)),
            typical(&|step| Some(megabytes(step.memory.get(worker)?.resident))),
            typical(&|step| Some(megabytes(step.memory.get(worker)?.peak))),
            log.run.memory.get(worker).map_or_else(String::new, |estimate| number(megabytes(estimate.peak))),
        ]
    };
    let columns = [
        "stage",
        "layers",
        "parameters",
        "worker",
        "live micro-batches of the worker",
        "MB a live micro-batch",
        "MB between steps",
        "MB at the peak",
        "estimated MB at the peak",
    ];
    page.table(&columns, (0..log.plan.stages()).map(row));
}

/// Returns one chart line for each worker of the run. `points` maps a zero-based worker index to the (x, y) points of
/// its line.
fn line_per_worker(log: &RunLog, points: impl Fn(usize) -> Vec<(f64, f64)>) -> Vec<Series> {
    let series = |worker| {
        let name = format!("worker {worker}");
        Series { name, points: points(worker), line: Line::Solid, colour: worker }
    };
    (0..log.plan.workers()).map(series).collect()
}

/// Returns a line chart (SVG) of the peak memory of each worker over the steps since the run was last started or
/// resumed. Earlier steps may have had other workers.
fn peaks(log: &RunLog) -> String {
    let steps: Vec<_> = log.steps_since_resume().collect();
    let point = |worker: usize, step: &Step| Some((step.step as f64, megabytes(step.memory.get(worker)?.peak)));
    let series = line_per_worker(log, |worker| thinned(steps.iter().filter_map(|step| point(worker, step))));
    LineChart { title: "Peak memory", x: "step", y: "MB of a worker", scale: Scale::Linear, series }.svg()
}

/// Returns a line chart (SVG) of each worker's allocated memory over time, during one step. It is the first step with
/// logged events since the run was last started or resumed. Returns `None` if there is no such step.
fn memory_over_step(log: &RunLog) -> Option<String> {
    let step = log.steps_since_resume().find(|step| !step.timeline.is_empty())?;
    let point = |event: &Event| Some((1e3 * event.end.as_secs_f64(), megabytes(event.held?.end)));
    let series =
        line_per_worker(log, |worker| step.timeline.get(worker).into_iter().flatten().filter_map(point).collect());
    let title = format!("Memory in use during step {}", step.step);
    Some(LineChart { title: &title, x: "ms", y: "MB of a worker", scale: Scale::Linear, series }.svg())
}

/// Returns a line chart (SVG) of each GPU's allocated and reserved memory after the training steps. Returns `None` if
/// no step measured it.
fn device_memory(log: &RunLog) -> Option<String> {
    let steps: Vec<_> = log.steps.iter().filter(|step| !step.device_memory.is_empty()).collect();
    let mut devices: Vec<&str> = Vec::new();
    for memory in steps.iter().flat_map(|step| &step.device_memory) {
        if !devices.contains(&memory.device.as_str()) {
            devices.push(&memory.device);
        }
    }
    let points = |device: &str, bytes: fn(&DeviceMemory) -> u64| {
        let of_step = |step: &Step| step.device_memory.iter().find(|memory| memory.device == device).map(bytes);
        let point = |step: &Step| Some((step.step as f64, megabytes(of_step(step)?)));
        thinned(steps.iter().copied().filter_map(point))
    };
    let mut series = Vec::new();
    for (colour, device) in devices.into_iter().enumerate() {
        let (in_use, reserved) = (points(device, |memory| memory.in_use), points(device, |memory| memory.reserved));
        let (used, kept) = (format!("{device} in use"), format!("{device} reserved"));
        series.push(Series { name: used, points: in_use, line: Line::Solid, colour });
        series.push(Series { name: kept, points: reserved, line: Line::Dashed, colour });
    }
    let title = "Device memory: in use / reserved";
    LineChart { title, x: "step", y: "MB of a device", scale: Scale::Linear, series }.svg_if_measured()
}

fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}
