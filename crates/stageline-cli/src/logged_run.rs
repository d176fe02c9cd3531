//! `stageline predict` and `stageline page`: predictions and an HTML page from the log of a run.

use std::fs::File;
use std::io::BufReader;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use clap::Args;
use serde::Serialize;
use stageline_report::{Cut, Link, Measured, RunLog, Target, Unit, layer_range, run_page};
use stageline_schedule::Schedule;

use crate::costs::{amount, rate};
use crate::measured_search::{cut_flag, starts};
use crate::output::{check_keeps, print, print_error, printable, write_to};
use crate::plan_flags::not_too_large;
use crate::predicted_schedule::{Chosen, SEARCH};

/// Predicts step time, bubble, throughput and memory for another number of workers (P), number of micro-batches (M) or
/// schedule, from the log of a run.
///
/// The prediction is a simulation with the costs that the run measured. With another P, stages are made of the layers
/// in the log; each layer has a share of its stage's time in proportion to its FLOPs. The input and weight gradients of
/// a split backward pass take the shares of time that the run measured, or half each if the run did not split backward
/// passes. Workers have the network links of the run, unless --bandwidth is given. To show how far the prediction can
/// be trusted, the command also predicts the run itself and prints the error. If a program cuts its model into stages
/// by hand, no flag of the program changes these stages. A prediction with fewer stages is still possible: it joins
/// whole stages, and says so.
#[derive(Args)]
pub(crate) struct PredictFlags {
    /// File with the log of a run, which a training program writes with `--log`
    #[arg(long, value_name = "FILE")]
    from: PathBuf,
    /// Number of workers P of the predicted run [default: the P of the logged run]
    #[arg(long)]
    stages: Option<usize>,
    /// Number of micro-batches M of the predicted run, each of the same size as in the logged run [default: the M of
    /// the logged run]
    #[arg(long)]
    micro_batches: Option<usize>,
    /// Name of the schedule of the predicted run, or `search` for the best plan with the measured costs [default: the
    /// schedule of the logged run]
    #[arg(long)]
    schedule: Option<String>,
    /// Number of stages (chunks) V of each worker, for schedules in which it can be chosen [default: the V of the
    /// logged run for its own schedule, and 2 for others]
    #[arg(long)]
    chunks: Option<usize>,
    /// Number of micro-batches that a channel between two stages can hold in the predicted run [default: that of the
    /// logged run]
    #[arg(long)]
    channel_capacity: Option<NonZeroUsize>,
    #[command(flatten)]
    link: LinkFlags,
    /// Prints the prediction as one line of JSON instead of text
    #[arg(long)]
    json: bool,
}

/// The command-line flags for a network link that connects any two workers in a prediction. It replaces the links that
/// the run measured.
#[derive(Args)]
pub(crate) struct LinkFlags {
    /// Latency of the network link between any two workers, in ms
    #[arg(long, value_name = "MS", default_value = "0", value_parser = amount, requires = "bandwidth")]
    #[arg(allow_hyphen_values = true)]
    latency: f64,
    /// Bandwidth of the network link between any two workers in each direction, in GB/s [default: the links of the run]
    #[arg(long, value_name = "GB/S", value_parser = rate, allow_hyphen_values = true)]
    bandwidth: Option<f64>,
}

impl LinkFlags {
    pub(crate) fn link(&self) -> Option<Link> {
        Some(Link { latency: 1e-3 * self.latency, bandwidth: 1e9 * self.bandwidth? })
    }

    /// Applies the link flags to a run's measured costs. If --bandwidth is set, a network link with --bandwidth and
    /// --latency connects any two workers in predictions. Otherwise workers keep the links of the run.
    pub(crate) fn apply(&self, measured: Measured) -> Result<Measured> {
        match self.link() {
            Some(link) => Ok(measured.over(link)?),
            None => Ok(measured),
        }
    }
}

/// Writes an HTML page about a run, from its log.
#[derive(Args)]
pub(crate) struct PageFlags {
    /// File with the log of a run, which a training program writes with `--log`
    #[arg(long, value_name = "FILE")]
    from: PathBuf,
    /// HTML file to which the page about the run is written; `-` writes to the standard output
    #[arg(long, value_name = "FILE.html")]
    html: PathBuf,
}

/// The prediction from the log of a run, as `stageline predict` prints it. Bubbles are fractions, from 0 to 1, of the
/// total stage time.
#[derive(Serialize)]
struct Predicted<'a> {
    schedule: &'a str,
    stages: usize,
    /// Number of stages (chunks) of each worker in the predicted plan; `None` if workers have unequal numbers.
    chunks: Option<usize>,
    micro_batches: usize,
    /// Number of stages of a model that the user has cut into stages by hand, if the predicted plan merges them into
    /// fewer; otherwise `None`.
    joined_stages: Option<usize>,
    step_seconds: f64,
    bubble: f64,
    tokens_per_s: f64,
    /// Unit of `tokens_per_s`: `tokens`, or `samples` if the data has no tokens.
    unit: Unit,
    peak_live: &'a [usize],
    /// The predicted peak memory of each worker in bytes; `None` if the run did not measure memory.
    peak_bytes: Option<&'a [f64]>,
    /// The names of the layers of each stage in the predicted plan.
    layers: Vec<Vec<&'a str>>,
    /// The host's number of CPU cores, if each worker would get more or fewer of them than in the logged run, so that
    /// the prediction is unreliable. `None` if the number of cores per worker is the same or not known.
    other_cores: Option<usize>,
    /// Whether workers of the logged run shared a device, and this prediction is for another number of workers, so that
    /// it is unreliable.
    shared_device: bool,
    /// Whether the devices of the logged run are not equally fast, and this prediction moves layers between them, so
    /// that it is unreliable.
    unequal_devices: bool,
    /// Relative error of the simulated step time for the logged run's own plan: `|simulated / measured - 1|`. If the
    /// run has no network links, predictions are corrected for this error.
    own_step_error: f64,
    /// Absolute error of the predicted bubble for the logged run itself: `|predicted - measured|`. A bubble is the idle
    /// fraction, from 0 to 1, of workers x step time.
    own_bubble_error: f64,
}

/// Remedy for a plan that no schedule generates for the predicted numbers: the flags of `predict` that replace it.
const OTHER_SCHEDULE: &str = "give --schedule NAME, or --schedule search to search for a plan with the measured costs";

pub(crate) fn predict(flags: &PredictFlags) -> Result<()> {
    let log = read(&flags.from)?;
    let measured = Measured::of(&log)?;
    let workers = flags.stages.unwrap_or(log.plan.workers());
    let micro_batches = flags.micro_batches.unwrap_or(log.plan.micro_batches());
    let own = own_error(&log, &measured)?;
    let measured = flags.link.apply(measured)?;
    let measured = match flags.channel_capacity {
        Some(capacity) => measured.with_channels(capacity),
        None => measured,
    };
    let Chosen { schedule, name, cut } = match flags.schedule.as_deref() {
        Some(SEARCH) => Chosen::searched(&measured, workers, micro_batches, flags.chunks)?,
        Some(name) => Chosen::named(&log, name, flags.chunks)?,
        None => Chosen::of_run(&log, flags.chunks)?.checked(&log, workers, micro_batches, OTHER_SCHEDULE)?,
    };
    not_too_large(schedule.stages_on(workers), micro_batches)?;
    let prediction = measured.predict(&Target { workers, micro_batches, schedule: &schedule, cut })?;
    let about_devices = unequal_devices(&log, &prediction.cut);
    let predicted = Predicted {
        schedule: &name,
        stages: workers,
        chunks: Some(schedule.chunks()).filter(|chunks| schedule.stages_on(workers) == workers * chunks),
        micro_batches,
        joined_stages: joined(&log, &prediction.cut),
        step_seconds: prediction.step,
        bubble: prediction.bubble,
        tokens_per_s: prediction.tokens_per_s,
        unit: prediction.unit,
        peak_live: &prediction.peak_live,
        peak_bytes: prediction.peak_bytes.as_deref(),
        layers: layers(&log, &prediction.cut),
        other_cores: log.other_cores(workers),
        shared_device: log.shares_another(workers),
        unequal_devices: !about_devices.is_empty(),
        own_step_error: own.step,
        own_bubble_error: own.bubble,
    };
    if flags.json {
        return print(&(serde_json::to_string(&predicted)? + "\n"));
    }
    let cut = cut_flag(&log, &prediction.cut);
    let devices = match about_devices.as_str() {
        "" => String::new(),
        lines => format!("not comparable {lines}{}\n", cut.trim_start()),
    };
    print(&text(&predicted, &devices))
}

/// Returns the prediction as text. `devices` is empty, or has lines that say why the run's devices make it unreliable.
fn text(predicted: &Predicted, devices: &str) -> String {
    let Predicted { schedule, stages, micro_batches, step_seconds, bubble, tokens_per_s, unit, peak_live, .. } =
        predicted;
    let chunks = match predicted.chunks {
        None | Some(1) => String::new(),
        Some(chunks) => format!(", V = {chunks}"),
    };
    let layers = predicted.layers.iter().enumerate();
    let line = |(stage, names): (usize, &Vec<_>)| {
        format!("stage {stage:>4}     {}\n", layer_range(names.iter().map(AsRef::as_ref)))
    };
    let layers = layers.map(line).collect::<String>();
    let megabytes =
        |bytes: &[f64]| bytes.iter().map(|bytes| format!("{:.1}", bytes / 1e6)).collect::<Vec<_>>().join(", ");
    let memory = predicted
        .peak_bytes
        .map_or_else(String::new, |bytes| format!("peak memory    {} MB a worker\n", megabytes(bytes)));
    let what_if = |own: usize| {
        let joined = predicted.layers.len();
        format!(
            "what if        the program of this model, which is cut by hand into {own} stages, joins them into {joined}; no flag does so\n"
        )
    };
    let what_if = predicted.joined_stages.map_or_else(String::new, what_if);
    // Unlike the throughput in a log, a predicted throughput does not count masked tokens.
    let trained = if *unit == Unit::Tokens { "trained " } else { "" };
    let cores = of_other_share(predicted.other_cores, predicted.shared_device, *stages);
    format!(
        "{schedule}, P = {stages}{chunks}, M = {micro_batches}\n\
         {cores}\
         {devices}\
         {what_if}\
         step           {:.1} ms\n\
         bubble         {:.2}% of the total\n\
         throughput     {tokens_per_s:.0} {trained}{unit} a second\n\
         peak live      {peak_live:?} micro-batches a worker\n\
         {memory}\
         {layers}\
         the run itself is simulated {:.1}% off in the step time, and predicted {:.4} off in the bubble\n",
        1e3 * step_seconds,
        100.0 * bubble,
        100.0 * predicted.own_step_error,
        predicted.own_bubble_error,
    )
}

/// Returns a warning line if each of `workers` workers would get a larger or smaller share of the host's cores or of a
/// device than in the logged run, so that its times do not apply. Otherwise returns an empty string.
pub(crate) fn other_share(log: &RunLog, workers: usize) -> String {
    of_other_share(log.other_cores(workers), log.shares_another(workers), workers)
}

fn of_other_share(other_cores: Option<usize>, shared_device: bool, workers: usize) -> String {
    match other_cores {
        Some(cores) => format!(
            "not comparable {cores} cores are shared by the workers, and each has another part of them than in the log; log a \
             short run with --stages {workers}\n"
        ),
        None if shared_device => format!(
            "not comparable workers of the log share a device, so it does not show how fast another number of them is; log a \
             short run with --stages {workers}\n"
        ),
        None => String::new(),
    }
}

/// Returns lines about a run whose devices differ, if the partition `cut` moves layers between them: the log has no time
/// of a layer on another device than its own. With `--speeds`, a training program also rejects the flag `--cut`.
/// Otherwise returns an empty string.
pub(crate) fn unequal_devices(log: &RunLog, cut: &[Range<usize>]) -> String {
    let starts_a_stage = |layer: &usize| *layer == 0 || log.run.layers[layer - 1].stage != log.run.layers[*layer].stage;
    let of_run: Vec<_> = (0..log.run.layers.len()).filter(starts_a_stage).collect();
    if !log.has_unequal_devices() || log.run.cut_by_hand || of_run == starts(cut) {
        return String::new();
    }
    let speeds = if log.run.configuration.contains_key("speeds") { "leave --speeds out beside --cut\n" } else { "" };
    format!(
        "the devices of the run ({}) are not equally fast, and layers that move to another device count as long as on their own: \
         log a short run with this --cut\n{speeds}",
        printable(&log.devices().join(", "))
    )
}

/// Returns the number of stages of a model that the user has cut by hand, if the partition `cut` merges them into
/// fewer; otherwise `None`.
fn joined(log: &RunLog, cut: &[Range<usize>]) -> Option<usize> {
    let own = log.run.layers.len();
    (log.run.cut_by_hand && cut.len() < own).then_some(own)
}

/// Errors of a prediction for the logged run itself: `step` is `|simulated / measured - 1|` of the step time, and
/// `bubble` is `|predicted - measured|` of the bubble. A bubble is the idle fraction of workers x step time.
struct OwnError {
    step: f64,
    bubble: f64,
}

fn own_error(log: &RunLog, measured: &Measured) -> Result<OwnError> {
    let (workers, micro_batches) = (log.plan.workers(), log.plan.micro_batches());
    let target = Target { workers, micro_batches, schedule: &log.plan, cut: Cut::OfTheRun };
    let own = measured.predict(&target)?;
    let (step, bubble) = log.typical().ok_or_else(|| anyhow!("the log has no steps"))?;
    Ok(OwnError { step: (own.step / measured.variation() / step - 1.0).abs(), bubble: (own.bubble - bubble).abs() })
}

pub(crate) fn page(flags: &PageFlags) -> Result<()> {
    check_keeps(&flags.from, "--html", Some(&flags.html))?;
    write_to(&flags.html, &run_page(&read(&flags.from)?))
}

/// Reads the log of a run, and escapes the invisible characters in the names of its layers and its schedule. Prints a
/// warning if the log only measures how long it took to give work to GPUs or other hosts, not the work itself.
pub(crate) fn read(path: &Path) -> Result<RunLog> {
    let file = File::open(path).with_context(|| path.display().to_string())?;
    let mut log = RunLog::read(BufReader::new(file)).with_context(|| path.display().to_string())?;
    // These names are escaped here, because every command prints them.
    let names = log.run.layers.iter_mut().map(|layer| &mut layer.name);
    names.chain([&mut log.run.schedule]).for_each(|name| *name = printable(name));
    if log.only_asks() {
        print_error(&format!(
            "warning: {} has the times of giving work to the devices, not of the work: no step after the first two is synchronised; \
             log a run of at least 21 steps with --synchronise-every 20\n",
            path.display()
        ));
    }
    Ok(log)
}

/// Returns the names of the layers of each stage. `cut` is a partition of the layers of the run's model into stages.
pub(crate) fn layers<'a>(log: &'a RunLog, cut: &[Range<usize>]) -> Vec<Vec<&'a str>> {
    let names = |range: &Range<usize>| log.run.layers[range.clone()].iter().map(|layer| layer.name.as_str()).collect();
    cut.iter().map(names).collect()
}
