//! Draws the pictures of the bubble bench, and the page that shows them: for each number of workers P, all schedules
//! are in one chart.

use stageline_report::{Line, LineChart, Page, Scale, Series, StackedBars};

use crate::bubble::flags::{Flags, Kind};
use crate::bubble::point::{Point, unsettled};
use crate::bubble::warm_up::WarmUp;

/// A line of a chart in the bubble bench's page: its style, and the function that returns the figure which the line
/// shows.
type Figure = (Line, fn(&Point) -> f64);

const BUBBLE: [Figure; 3] = [
    (Line::Solid, |point| point.bubble),
    (Line::Dashed, |point| point.bubble_simulated),
    (Line::Dotted, |point| point.bubble_ideal),
];
const THROUGHPUT: [Figure; 2] =
    [(Line::Solid, |point| point.throughput), (Line::Dashed, |point| point.throughput_predicted.unwrap_or(f64::NAN))];
const STEP: [Figure; 2] = [
    (Line::Solid, |point| 1e3 * point.step_seconds),
    (Line::Dashed, |point| 1e3 * point.step_predicted_seconds.unwrap_or(f64::NAN)),
];
const LIVE: [Figure; 1] = [(Line::Solid, |point| point.peak_live as f64)];
const MEMORY: [Figure; 1] = [(Line::Solid, |point| point.peak_bytes.map_or(f64::NAN, |bytes| bytes as f64 / 1e6))];

/// Returns all pictures of the bubble bench, each as a name and the text of an SVG file. The name contains the shown
/// figure and the number of workers P, and for idle time also the schedule.
pub fn pictures(flags: &Flags, points: &[Point]) -> Vec<(String, String)> {
    let mut pictures = Vec::new();
    for own in points.chunk_by(|a, b| a.stages == b.stages) {
        let workers = own[0].stages;
        for (name, chart) in charts(flags, own) {
            pictures.extend(chart.lines().file().map(|svg| (format!("{name}-p{workers}"), svg)));
        }
        for own in own.chunk_by(|a, b| a.schedule == b.schedule) {
            let title = idle_title(own);
            let name = format!("idle-p{workers}-{}", own[0].schedule);
            pictures.extend(idle(&title, &share(own), own).file().map(|svg| (name, svg)));
        }
    }
    pictures
}

/// Returns the HTML page of the bubble bench, with all pictures and a table of all figures.
pub fn page(flags: &Flags, points: &[Point]) -> String {
    let mut page = Page::new("The bubble against M");
    page.section("How it was measured", &about(flags));
    for own in points.chunk_by(|a, b| a.stages == b.stages) {
        page.section(
            &format!("P = {}", own[0].stages),
            "Solid: measured. Dashed: bubbles simulated with the measured costs; throughputs and step times predicted from the \
             reference. Dotted: in theory.",
        );
        page.pictures(charts(flags, own).into_iter().map(|(_, chart)| chart.lines().svg()));
        let schedules = own.chunk_by(|a, b| a.schedule == b.schedule);
        page.pictures(schedules.map(|own| idle(&idle_title(own), &share(own), own).svg()));
    }
    let marked = unsettled(flags.warm_up(), points).map_or_else(String::new, |line| format!(" {line}."));
    let medians = "Medians of the measured steps; memory and idle time by cause are of the last one.";
    page.section("All figures", &format!("{medians}{marked}"));
    let columns = [
        "schedule",
        "P",
        "M",
        "samples of a micro-batch",
        "V",
        "step, ms",
        "predicted",
        "bubble",
        "clock",
        "ideal",
        "simulated",
        unit(flags.kind),
        "peak live",
        "peak bytes",
        "steps of warm-up",
    ];
    page.table(&columns, points.iter().map(row));
    page.html()
}

fn about(flags: &Flags) -> String {
    let size = match (flags.batch, flags.kind) {
        (Some(batch), _) => format!("batches of {batch} samples, divided into M micro-batches"),
        (None, Kind::Paced) => "micro-batches of one sample".to_owned(),
        (None, Kind::Cpu | Kind::Cuda) => format!("micro-batches of {} samples", flags.micro_batch_size),
    };
    let what = match flags.kind {
        Kind::Paced => format!(
            "Paced stages: the forwards of a worker take {} ms a sample, its backwards {} ms, and no core; threads, channels, \
             transfers and flush are real. They train on {size}.",
            flags.forward_ms, flags.backward_ms
        ),
        Kind::Cpu | Kind::Cuda => format!(
            "A GPT of {} blocks, width {} and context {}, with {size}.",
            flags.layers, flags.width, flags.context
        ),
    };
    let clock = match flags.kind {
        Kind::Cuda => {
            " Bubbles are measured in steps that wait for the device after every compute, step time and throughput in steps that do \
             not."
        }
        Kind::Paced | Kind::Cpu => " Cases with the same P take turns, step by step.",
    };
    let reference = match flags.batch {
        Some(_) => "those of the first schedule with the least and the greatest M",
        None => "the one of the first schedule with the M in the middle of the list",
    };
    let WarmUp { agreeing, within, most } = flags.warm_up();
    format!(
        "{what}{clock} Medians of {} steps, after a warm-up until the times of {agreeing} steps agreed within {:.0}%, or of {most} \
         steps. Predictions are made from the costs of one case or two, the reference: {reference}. \
         stageline {}.",
        flags.rounds,
        100.0 * within,
        env!("CARGO_PKG_VERSION")
    )
}

fn unit(kind: Kind) -> &'static str {
    if kind == Kind::Paced { "samples a second" } else { "tokens a second" }
}

/// A line chart of the bubble bench with its title, the label of its vertical axis, and its lines.
struct Chart {
    title: String,
    y: String,
    series: Vec<Series>,
}

impl Chart {
    fn lines(&self) -> LineChart<'_> {
        let Self { title, y, series } = self;
        LineChart { title, x: "micro-batches, M", y, scale: Scale::Doubling, series: series.clone() }
    }
}

/// Returns the bubble bench's charts for one number of workers P, each with the name of its file.
fn charts(flags: &Flags, points: &[Point]) -> [(&'static str, Chart); 5] {
    let chart = |title: &str, y: &str, figures: &[Figure]| {
        let schedules = points.chunk_by(|a, b| a.schedule == b.schedule).enumerate();
        let series = schedules.flat_map(|(colour, own)| {
            figures.iter().map(move |&(line, figure)| Series {
                name: format!("{}, {}", own[0].schedule, legend(line, figures.len())),
                points: own.iter().map(|point| (point.micro_batches as f64, figure(point))).collect(),
                line,
                colour,
            })
        });
        // A line without a point, such as that of predictions that were not made, is not in the legend either.
        let series = series.filter(|series| series.points.iter().any(|point| point.1.is_finite())).collect();
        Chart { title: format!("{title}, P = {}", points[0].stages), y: y.to_owned(), series }
    };
    [
        ("bubble", chart("Bubble", &share(points), &BUBBLE)),
        ("throughput", chart("Throughput", unit(flags.kind), &THROUGHPUT)),
        ("step", chart("Step time", "milliseconds", &STEP)),
        ("live", chart("Live micro-batches", "most of a worker", &LIVE)),
        ("memory", chart("Memory", "peak MB of a worker", &MEMORY)),
    ]
}

/// Returns the word for a line's style in the legend of a chart: measured, simulated, predicted or in theory. A dashed
/// line is the prediction if the chart has two lines (`lines`) for each schedule, and otherwise the simulation.
fn legend(line: Line, lines: usize) -> &'static str {
    match (line, lines) {
        (Line::Solid, _) => "measured",
        (Line::Dashed, 2) => "predicted",
        (Line::Dashed, _) => "simulated",
        (Line::Dotted, _) => "in theory",
    }
}

fn idle_title(points: &[Point]) -> String {
    format!("Idle time by cause, {}, P = {}", points[0].schedule, points[0].stages)
}

/// Returns a chart of the idle time by cause against the number of micro-batches M, for one schedule and one number of
/// workers P.
fn idle<'a>(title: &'a str, y: &'a str, points: &[Point]) -> StackedBars<'a> {
    let causes = points[0].causes.iter().enumerate();
    let parts =
        causes.map(|(at, (name, _))| (*name, points.iter().map(|point| point.causes[at].1).collect())).collect();
    let categories = points.iter().map(|point| point.micro_batches.to_string()).collect();
    StackedBars { title, x: "micro-batches, M", y, categories, parts }
}

/// Returns the label of the vertical axis in charts of bubbles (idle shares of the stage time). The label names the
/// clock by which the bubbles were measured.
fn share(points: &[Point]) -> String {
    let clock = points.first().map_or("host clock", |point| &point.clock);
    format!("share of the total stage time, {clock}")
}

fn row(point: &Point) -> Vec<String> {
    let milliseconds = |seconds: f64| format!("{:.2}", 1e3 * seconds);
    vec![
        point.schedule.to_owned(),
        point.stages.to_string(),
        point.micro_batches.to_string(),
        point.micro_batch_size.to_string(),
        point.r#virtual.to_string(),
        milliseconds(point.step_seconds),
        point.step_predicted_seconds.map_or_else(String::new, milliseconds),
        format!("{:.4}", point.bubble),
        point.clock.clone(),
        format!("{:.4}", point.bubble_ideal),
        format!("{:.4}", point.bubble_simulated),
        format!("{:.1}", point.throughput),
        point.peak_live.to_string(),
        point.peak_bytes.map_or_else(String::new, |bytes| bytes.to_string()),
        point.warm_up(),
    ]
}
