//! Formats the results of `simulate` and `search`, as text or JSON: [`Report`].

use std::fmt;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use stageline_schedule::{Checked, Costs, Idle, Memory, Timeline};

use crate::output::{draw, picture, print};

/// Command-line flags of `simulate` and `search` that choose the output format.
#[derive(Args)]
pub(crate) struct ReportFlags {
    /// Prints the report as one line of JSON instead of text
    #[arg(long)]
    json: bool,
    /// SVG file to which a picture of the simulated timeline is written
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// Prints the simulated timeline as text, after the report
    #[arg(long)]
    grid: bool,
}

/// The results of a simulated training step, as `stageline simulate` and `stageline search` print them. Times are in
/// ms, and lists have one entry per worker.
#[derive(Serialize)]
pub(crate) struct Report {
    #[serde(flatten)]
    found: Option<Found>,
    step_ms: f64,
    /// Longest span of a worker in the simulated step, in ms. A span is the time from the start of a worker's first
    /// forward or backward pass to the end of its last.
    span_ms: f64,
    /// The bubble of the simulated step: the idle fraction of the total stage time, from 0 to 1.
    bubble_total: f64,
    /// Bubble by span (arXiv:2401.10241), from 0 to 1: `1 - c / s`, where c is the compute time of the busiest worker,
    /// and s is the longest span of a worker. A span is the time from the start of a worker's first forward or backward
    /// pass to the end of its last.
    bubble_span: f64,
    /// Lower bound on the step time, in ms, of any plan with the same costs, memory limit and placement of stages on
    /// workers. In the result of a search, it is a lower bound for all placements that the search tried.
    bound_ms: f64,
    /// Peak number of live micro-batches of each worker, counted over all its stages. A micro-batch is live while the
    /// worker retains its activations for a backward pass.
    peak_live: Vec<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    peak_bytes: Option<Vec<f64>>,
    idle_ms: Vec<IdleMs>,
}

/// The best plan that a search found: its schedule, its smallest channel capacity without a deadlock, and the flags for
/// a training run with this plan.
#[derive(Serialize)]
struct Found {
    schedule: &'static str,
    /// Smallest channel capacity (number of micro-batches that each channel between two stages holds) without a
    /// deadlock in the found plan.
    capacity: usize,
    /// Flags for a training run with the found plan and its partition of the layers; `None` if the costs of the search
    /// are not from the log of a run.
    #[serde(flatten)]
    training: Option<TrainingFlags>,
}

/// The command-line flags for a training run with the plan that a search found. They do not include `--schedule`, which
/// takes the file of the plan.
#[derive(Serialize)]
struct TrainingFlags {
    stages: usize,
    micro_batches: usize,
    /// Zero-based index of the first layer of each stage. `None` for a model that is partitioned (cut) by hand, because
    /// its program rejects `--cut`.
    #[serde(skip_serializing_if = "Option::is_none")]
    cut: Option<Vec<usize>>,
}

/// The partition of the model's layers into the stages of the plan that `stageline search` found. It is known only if
/// the search used a logged run's costs.
pub(crate) enum FoundCut {
    /// The partition of the layers is not known, because the costs came from command-line flags, which do not describe
    /// a model's layers.
    Unknown,
    /// The logged run's model is partitioned (cut) by hand, and the found plan keeps its stages. So a training run does
    /// not take the flag `--cut`.
    ByHand,
    /// The partition of the layers is known. The value has the zero-based index of each found stage's first layer.
    Starts(Vec<usize>),
}

/// The idle time of a worker in the simulated step, by its cause, in ms.
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
        memory: Option<&Memory>,
    ) -> Self {
        // Some times are differences of others and have their rounding errors, so all are rounded to the same digit.
        let time = |time: f64| rounded(time, timeline.step());
        let idle_ms = |idle: Idle| IdleMs {
            fill: time(idle.fill),
            drain: time(idle.drain),
            imbalance: time(idle.imbalance),
            transfer: time(idle.transfer),
            flush: time(idle.flush),
        };
        let peaks = |memory: &Memory| checked.plan().peak_memory(&memory.stages).into_iter().map(exact).collect();
        Self {
            found: None,
            step_ms: time(timeline.step()),
            span_ms: time(timeline.span()),
            bubble_total: rounded(timeline.bubble(), 1.0),
            bubble_span: rounded(timeline.span_bubble(), 1.0),
            bound_ms: time(bound_ms),
            peak_live: checked.plan().peak_live(),
            peak_bytes: memory.map(peaks),
            idle_ms: timeline.idle_by_cause(checked, costs).into_iter().map(idle_ms).collect(),
        }
    }

    /// Adds the results of a search to the report of a simulated step. They are the name of the found plan's schedule,
    /// the smallest channel capacity without a deadlock, and the flags for a training run. `cut` is the partition of
    /// the layers for these flags.
    pub(crate) fn found(self, schedule: &'static str, checked: &Checked, cut: FoundCut) -> Self {
        let (plan, capacity) = (checked.plan(), checked.least_capacity());
        let flags = |cut| TrainingFlags { stages: plan.workers(), micro_batches: plan.micro_batches(), cut };
        let training = match cut {
            FoundCut::Unknown => None,
            FoundCut::ByHand => Some(flags(None)),
            FoundCut::Starts(starts) => Some(flags(Some(starts))),
        };
        Self { found: Some(Found { schedule, capacity, training }), ..self }
    }

    /// Prints the report of a simulated step as text or JSON. Also writes the timeline to an SVG file, or prints it as
    /// text, if the flags `--svg` or `--grid` are set.
    pub(crate) fn give(&self, timeline: &Timeline, flags: &ReportFlags) -> anyhow::Result<()> {
        if let Some(path) = &flags.svg {
            draw(path, timeline)?;
        }
        print(&if flags.json { serde_json::to_string(self)? + "\n" } else { self.to_string() })?;
        if flags.grid { print(&picture(timeline)) } else { Ok(()) }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(Found { schedule, capacity, training }) = &self.found {
            let micro_batches = if *capacity == 1 { "micro-batch" } else { "micro-batches" };
            writeln!(f, "schedule       {schedule}, for channels that hold {capacity} {micro_batches} or more")?;
            if let Some(TrainingFlags { stages, micro_batches, cut }) = training {
                write!(f, "training       --stages {stages} --micro-batches {micro_batches}")?;
                if let Some(starts) = cut {
                    let starts: Vec<_> = starts.iter().map(usize::to_string).collect();
                    write!(f, " --cut {}", starts.join(","))?;
                }
                writeln!(f)?;
            }
        }
        // Times have three decimals. A short step gets more, up to 15, so that it has three significant digits.
        let decimals = usize::try_from(2 - magnitude(self.step_ms)).unwrap_or(0).clamp(3, 15);
        let (step, bound) = (self.step_ms, self.bound_ms);
        let above = if bound > 0.0 { 100.0 * (step / bound - 1.0) } else { 0.0 };
        writeln!(f, "step           {step:.decimals$} ms, {above:.1}% above the bound of {bound:.decimals$} ms")?;
        writeln!(f, "longest span   {:.decimals$} ms", self.span_ms)?;
        let (total, span) = (100.0 * self.bubble_total, 100.0 * self.bubble_span);
        writeln!(f, "bubble         {total:.2}% of the total, {span:.2}% by span")?;
        let (title, bytes) = self.peak_bytes.as_deref().map(memory_column).unwrap_or_default();
        writeln!(f, "worker  peak live{title}  idle ms: fill       drain   imbalance    transfer       flush")?;
        for (worker, (live, idle)) in self.peak_live.iter().zip(&self.idle_ms).enumerate() {
            write!(f, "{worker:>6}  {live:>9}{}", bytes.get(worker).map_or("", String::as_str))?;
            let IdleMs { fill, drain, imbalance, transfer, flush } = idle;
            write!(f, "  {fill:>13.decimals$}")?;
            for cause in [drain, imbalance, transfer, flush] {
                write!(f, "  {cause:>10.decimals$}")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// Returns the title and the cells of the column with the peak memory of each worker, in bytes, all equally wide.
fn memory_column(bytes: &[f64]) -> (String, Vec<String>) {
    let numbers: Vec<_> = bytes.iter().map(f64::to_string).collect();
    let width = numbers.iter().map(String::len).max().unwrap_or(0).max(12);
    let cell = |text: &str| format!("  {text:>width$}");
    (cell("peak memory"), numbers.iter().map(|number| cell(number)).collect())
}

/// Number of significant digits in printed reports. Rounding errors of sums are smaller than the last of them.
const DIGITS: i32 = 12;

/// Rounds a number of a printed report to 12 significant digits, or to a whole number if it has more digits before the
/// point. This hides the rounding errors of sums.
pub(crate) fn exact(number: f64) -> f64 {
    rounded(number, number)
}

/// Rounds a number of a printed report to the last of the 12 significant digits of `scale`, a number that is at least
/// as large. This hides the rounding errors of a difference of numbers as large as `scale`.
fn rounded(number: f64, scale: f64) -> f64 {
    let decimals = usize::try_from(DIGITS - 1 - magnitude(scale)).unwrap_or(0);
    // Adding 0 turns -0 into 0.
    format!("{number:.decimals$}").parse::<f64>().unwrap_or(number) + 0.0
}

/// Returns the decimal exponent of a number, which is that of its first significant digit: 2 for 345, and -1 for 0.5.
/// Returns 0 for 0.
fn magnitude(number: f64) -> i32 {
    if number == 0.0 { 0 } else { number.abs().log10().floor() as i32 }
}
