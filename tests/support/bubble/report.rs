//! Writes all measurements as CSV, JSON and an HTML page with plots.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use stageline_report::{Line, LineChart, Page, Scale, Series, StackedBars};

use crate::bubble::flags::{Flags, Kind};
use crate::bubble::point::Point;

/// The header of the lines that a [`Point`] prints.
pub const HEADER: &str =
    "schedule                P    M   step ms   bubble    ideal     away simulated      per s  live  bubble by";

/// Writes the files that the flags ask for.
///
/// # Errors
///
/// A file cannot be written.
pub fn write(flags: &Flags, points: &[Point]) -> Result<()> {
    let write = |path: &Path, text: String| fs::write(path, text).with_context(|| path.display().to_string());
    if let Some(path) = &flags.csv {
        write(path, csv(points))?;
    }
    if let Some(path) = &flags.json {
        write(path, serde_json::to_string(points)? + "\n")?;
    }
    if let Some(path) = &flags.html {
        write(path, html(flags, points))?;
    }
    Ok(())
}

fn csv(points: &[Point]) -> String {
    let mut csv = String::from(
        "schedule,stages,micro_batches,virtual,kind,clock,step_seconds,bubble,bubble_ideal,bubble_simulated,throughput,peak_live,peak_bytes\n",
    );
    for point in points {
        let Point { schedule, stages, micro_batches, r#virtual, kind, clock, step_seconds, .. } = point;
        let Point { bubble, bubble_ideal, bubble_simulated, throughput, peak_live, peak_bytes, .. } = point;
        let peak_bytes = peak_bytes.map_or_else(String::new, |bytes| bytes.to_string());
        let _ = writeln!(
            csv,
            "{schedule},{stages},{micro_batches},{virtual},{kind},{clock},{step_seconds},{bubble},{bubble_ideal},{bubble_simulated},\
             {throughput},{peak_live},{peak_bytes}"
        );
    }
    csv
}

fn html(flags: &Flags, points: &[Point]) -> String {
    let mut page = Page::new("The bubble against M");
    page.section("How it was measured", &about(flags));
    let mut schedules: Vec<_> = points.iter().map(|point| point.schedule).collect();
    schedules.dedup();
    for schedule in schedules {
        let selected: Vec<_> = points.iter().filter(|point| point.schedule == schedule).collect();
        page.section(schedule, "Solid: measured. Dashed: simulated with the measured costs. Dotted: in theory.");
        page.pictures([
            chart("Bubble", &share(&selected), &selected, &BUBBLES),
            chart("Throughput", unit(flags.kind), &selected, &[(Line::Solid, |point| point.throughput)]),
            chart(
                "Live micro-batches",
                "most of a worker",
                &selected,
                &[(Line::Solid, |point| point.peak_live as f64)],
            ),
            chart("Memory", "peak MB of a worker", &selected, &[(Line::Solid, bytes)]),
        ]);
        page.pictures(workers(&selected).into_iter().map(|workers| idle(workers, &selected)));
    }
    page.section("All figures", "Medians of the measured steps; memory and idle time by cause are of the last one.");
    let columns = [
        "schedule",
        "P",
        "M",
        "V",
        "step, ms",
        "bubble",
        "clock",
        "ideal",
        "simulated",
        unit(flags.kind),
        "peak live",
        "peak bytes",
    ];
    page.table(&columns, points.iter().map(row));
    page.html()
}

fn about(flags: &Flags) -> String {
    let what = match flags.kind {
        Kind::Paced => format!(
            "Paced stages: the forwards of a worker take {} ms a micro-batch, its backwards {} ms, and no core; threads, \
             channels, transfers and flush are real.",
            flags.forward_ms, flags.backward_ms
        ),
        Kind::Cpu | Kind::Cuda => format!(
            "A GPT of {} blocks, width {}, context {}, {} samples a micro-batch.",
            flags.layers, flags.width, flags.context, flags.micro_batch_size
        ),
    };
    let clock = match flags.kind {
        Kind::Cuda => {
            " Bubbles are measured in steps that wait for the device after every compute, step time and throughput in steps that do \
             not."
        }
        Kind::Paced | Kind::Cpu => "",
    };
    format!("{what}{clock} Medians of {} steps. stageline {}.", flags.rounds, env!("CARGO_PKG_VERSION"))
}

fn unit(kind: Kind) -> &'static str {
    if kind == Kind::Paced { "samples a second" } else { "tokens a second" }
}

/// Returns the peak memory in MB, or NaN if it was not counted: a chart leaves NaN out.
fn bytes(point: &Point) -> f64 {
    point.peak_bytes.map_or(f64::NAN, |bytes| bytes as f64 / 1e6)
}

/// One line of a chart: its style, and the figure that it shows.
type Figure = (Line, fn(&Point) -> f64);

const BUBBLES: [Figure; 3] = [
    (Line::Solid, |point| point.bubble),
    (Line::Dashed, |point| point.bubble_simulated),
    (Line::Dotted, |point| point.bubble_ideal),
];

/// Returns the values of P, each once.
fn workers(points: &[&Point]) -> Vec<usize> {
    let mut workers: Vec<_> = points.iter().map(|point| point.stages).collect();
    workers.dedup();
    workers
}

fn chart(title: &str, y: &str, points: &[&Point], figures: &[Figure]) -> String {
    let mut series = Vec::new();
    for (colour, workers) in workers(points).into_iter().enumerate() {
        let own = || points.iter().filter(|point| point.stages == workers);
        for &(line, figure) in figures {
            let points = own().map(|point| (point.micro_batches as f64, figure(point))).collect();
            series.push(Series { name: format!("P = {workers}, {}", legend(line)), points, line, colour });
        }
    }
    LineChart { title, x: "micro-batches, M", y, scale: Scale::Doubling, series }.svg()
}

fn legend(line: Line) -> &'static str {
    match line {
        Line::Solid => "measured",
        Line::Dashed => "simulated",
        Line::Dotted => "in theory",
    }
}

/// Draws the idle time by cause against M, for one P.
fn idle(workers: usize, points: &[&Point]) -> String {
    let own: Vec<_> = points.iter().filter(|point| point.stages == workers).collect();
    let Some(first) = own.first() else { return String::new() };
    let parts = first.causes.iter().enumerate();
    let parts = parts.map(|(at, (name, _))| (*name, own.iter().map(|point| point.causes[at].1).collect())).collect();
    let title = format!("Idle time by cause, P = {workers}");
    let categories = own.iter().map(|point| point.micro_batches.to_string()).collect();
    StackedBars { title: &title, x: "micro-batches, M", y: &share(points), categories, parts }.svg()
}

/// Returns the label of an axis of bubbles, with the clock that all points of a run share.
fn share(points: &[&Point]) -> String {
    let clock = points.first().map_or("host clock", |point| &point.clock);
    format!("share of the total stage time, {clock}")
}

fn row(point: &Point) -> Vec<String> {
    vec![
        point.schedule.to_owned(),
        point.stages.to_string(),
        point.micro_batches.to_string(),
        point.r#virtual.to_string(),
        format!("{:.2}", 1e3 * point.step_seconds),
        format!("{:.4}", point.bubble),
        point.clock.clone(),
        format!("{:.4}", point.bubble_ideal),
        format!("{:.4}", point.bubble_simulated),
        format!("{:.1}", point.throughput),
        point.peak_live.to_string(),
        point.peak_bytes.map_or_else(String::new, |bytes| bytes.to_string()),
    ]
}
