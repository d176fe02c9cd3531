//! What a simulation says, for people and for programs.

use std::io::Write;
use std::path::Path;

use anyhow::Context;
use clap::Args;
use serde::Serialize;
use stageline_schedule::{Checked, Costs, Idle, StageMemory, Timeline};

/// How a simulation is reported.
#[derive(Args)]
pub(crate) struct ReportFlags {
    /// One line of JSON instead of text
    #[arg(long)]
    json: bool,
    /// The timeline as a picture
    #[arg(long, value_name = "FILE")]
    svg: Option<std::path::PathBuf>,
    /// The timeline as text
    #[arg(long)]
    grid: bool,
}

/// What a simulation says. Times are in ms; lists have an entry a worker.
#[derive(Serialize)]
pub(crate) struct Report {
    /// The schedule that a search found.
    #[serde(skip_serializing_if = "Option::is_none")]
    schedule: Option<&'static str>,
    step_ms: f64,
    /// The longest from a worker's first compute to its last.
    span_ms: f64,
    /// The share of the total (workers x step) that is idle.
    bubble_total: f64,
    /// The share of the longest span in which the busiest worker idles.
    bubble_span: f64,
    /// No plan takes less.
    bound_ms: f64,
    /// Micro-batches forwarded and not yet backwarded, those of all chunks of a worker.
    peak_live: Vec<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    peak_bytes: Option<Vec<f64>>,
    idle_ms: Vec<IdleMs>,
}

/// Idle time by cause.
#[derive(Serialize)]
struct IdleMs {
    fill: f64,
    drain: f64,
    imbalance: f64,
    transfer: f64,
    flush: f64,
}

impl Report {
    pub(crate) fn new(
        checked: &Checked,
        costs: &Costs,
        timeline: &Timeline,
        bound_ms: f64,
        bytes: Option<&[StageMemory]>,
    ) -> Self {
        let idle_ms =
            |Idle { fill, drain, imbalance, transfer, flush }| IdleMs { fill, drain, imbalance, transfer, flush };
        Self {
            schedule: None,
            step_ms: exact(timeline.step()),
            span_ms: exact(timeline.span()),
            bubble_total: exact(timeline.bubble()),
            bubble_span: exact(timeline.span_bubble()),
            bound_ms: exact(bound_ms),
            peak_live: checked.plan().peak_live(),
            peak_bytes: bytes.map(|bytes| checked.plan().peak_memory(bytes)),
            idle_ms: timeline.idle_by_cause(checked, costs).into_iter().map(idle_ms).collect(),
        }
    }

    pub(crate) fn of_schedule(self, schedule: &'static str) -> Self {
        Self { schedule: Some(schedule), ..self }
    }

    /// Prints it, and draws the timeline where that is asked for.
    pub(crate) fn give(&self, timeline: &Timeline, flags: &ReportFlags) -> anyhow::Result<()> {
        if let Some(path) = &flags.svg {
            write_to(path, &timeline.svg("ms"))?;
        }
        if flags.json {
            println!("{}", serde_json::to_string(self)?);
        } else {
            self.print();
        }
        if flags.grid {
            print!("{}", timeline.grid(grid_slot(timeline)));
        }
        Ok(())
    }

    fn print(&self) {
        if let Some(schedule) = self.schedule {
            println!("schedule       {schedule}");
        }
        let above = 100.0 * (self.step_ms / self.bound_ms - 1.0);
        println!(
            "step           {:.3} ms, {:.1}% above the bound of {:.3} ms",
            self.step_ms,
            above.max(0.0),
            self.bound_ms
        );
        println!("longest span   {:.3} ms", self.span_ms);
        println!(
            "bubble         {:.2}% of the total, {:.2}% by span",
            100.0 * self.bubble_total,
            100.0 * self.bubble_span
        );
        println!(
            "worker  peak live{}  idle ms: fill  drain  imbalance  transfer  flush",
            self.peak_bytes.as_ref().map_or("", |_| "  peak bytes")
        );
        for (worker, (live, idle)) in self.peak_live.iter().zip(&self.idle_ms).enumerate() {
            let bytes = self.peak_bytes.as_ref().map_or_else(String::new, |bytes| format!("  {:>10}", bytes[worker]));
            let IdleMs { fill, drain, imbalance, transfer, flush } = idle;
            println!(
                "{worker:>6}  {live:>9}{bytes}  {fill:>13.3}  {drain:>5.3}  {imbalance:>9.3}  {transfer:>8.3}  {flush:>5.3}"
            );
        }
    }
}

/// To nine decimals: what lies behind them is rounding of sums.
fn exact(number: f64) -> f64 {
    (number * 1e9).round() / 1e9
}

/// A column of the grid for the shortest compute, as far as a line stays readable.
pub(crate) fn grid_slot(timeline: &Timeline) -> f64 {
    const MOST_COLUMNS: f64 = 400.0;
    let lengths = timeline.rows().iter().flatten().map(|span| span.end - span.start).filter(|length| *length > 0.0);
    let shortest = lengths.fold(f64::INFINITY, f64::min);
    let slot = shortest.max(timeline.flush() / MOST_COLUMNS);
    if slot.is_finite() && slot > 0.0 { slot } else { 1.0 }
}

/// Writes to a file, or to the terminal where the path is `-`.
pub(crate) fn write_to(path: &Path, text: &str) -> anyhow::Result<()> {
    let written = if path == "-" { std::io::stdout().write_all(text.as_bytes()) } else { std::fs::write(path, text) };
    written.with_context(|| format!("cannot write {}", path.display()))
}
