//! A run that was logged: predictions from it, advice about it, and a page of it.

use std::fs::{self, File};
use std::io::BufReader;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, ensure};
use clap::Args;
use serde::Serialize;
use stageline_report::{Cause, Cut, Link, Measured, RunLog, Target, run_page};
use stageline_schedule::Schedule;

use crate::costs::{amount, rate};
use crate::output::print;
use crate::shape;

/// What another P, M or schedule would give, from the log of a run.
///
/// Stages of another cut are made of the layers that the log names; where a stage of the run has several, each is taken for its
/// share of FLOPs. The same prediction for the run itself is compared with the run. The halves of a split backward are taken
/// to be halves.
#[derive(Args)]
pub(crate) struct PredictFlags {
    /// The log, from `--log` of a run
    #[arg(long, value_name = "FILE")]
    from: PathBuf,
    /// P: how many workers [default: those of the run]
    #[arg(long)]
    stages: Option<usize>,
    /// M: how many micro-batches, of the same size [default: those of the run]
    #[arg(long)]
    micro_batches: Option<usize>,
    /// The schedule [default: that of the run]
    #[arg(long)]
    schedule: Option<String>,
    /// V: in how many chunks every worker's part is cut, for schedules that leave the choice
    #[arg(long)]
    chunks: Option<usize>,
    #[command(flatten)]
    link: LinkFlags,
    /// One line of JSON instead of text
    #[arg(long)]
    json: bool,
}

/// The smallest M for a bubble, the cut that balances the measured layers, and what held the run back.
#[derive(Args)]
pub(crate) struct AdviseFlags {
    /// The log, from `--log` of a run
    #[arg(long, value_name = "FILE")]
    from: PathBuf,
    /// P: how many workers [default: those of the run]
    #[arg(long)]
    stages: Option<usize>,
    /// The schedule [default: that of the run]
    #[arg(long)]
    schedule: Option<String>,
    /// The bubble not to be above, as a share of the total stage time
    #[arg(long, default_value_t = 0.1)]
    bubble: f64,
    /// The largest M to try
    #[arg(long, default_value_t = 512)]
    most: usize,
    #[command(flatten)]
    link: LinkFlags,
}

/// What the run's stages would be joined by, such as a network, if that is not what joined them.
#[derive(Args)]
struct LinkFlags {
    /// The latency of a transfer between two workers, in ms
    #[arg(long, value_name = "MS", default_value = "0", value_parser = amount, requires = "bandwidth")]
    latency: f64,
    /// The bandwidth between two workers, each way, in GB/s
    #[arg(long, value_name = "GB/S", value_parser = rate)]
    bandwidth: Option<f64>,
}

impl LinkFlags {
    fn link(&self) -> Option<Link> {
        Some(Link { latency: 1e-3 * self.latency, bandwidth: 1e9 * self.bandwidth? })
    }

    /// The run's stages, joined so.
    fn between(&self, stages: Measured) -> Result<Measured> {
        match self.link() {
            Some(link) => Ok(stages.over(link)?),
            None => Ok(stages),
        }
    }
}

/// A page about a run, from its log.
#[derive(Args)]
pub(crate) struct PageFlags {
    /// The log, from `--log` of a run
    #[arg(long, value_name = "FILE")]
    from: PathBuf,
    /// The page
    #[arg(long, value_name = "FILE.html")]
    html: PathBuf,
}

/// What `predict` says. Bubbles are shares of the total stage time.
#[derive(Serialize)]
struct Predicted<'a> {
    schedule: &'a str,
    stages: usize,
    micro_batches: usize,
    step_seconds: f64,
    bubble: f64,
    tokens_per_s: f64,
    peak_live: &'a [usize],
    /// In bytes; none where the run did not count what it held.
    peak_bytes: Option<&'a [f64]>,
    /// The layers of each stage.
    layers: Vec<Vec<&'a str>>,
    /// How far the same prediction for the run itself is from the run, relative: of the step, and of the bubble absolute.
    own_step_error: f64,
    own_bubble_error: f64,
}

pub(crate) fn predict(flags: &PredictFlags) -> Result<()> {
    let log = read(&flags.from)?;
    let measured = Measured::of(&log)?;
    let (schedule, name) = schedule(&log, flags.schedule.as_deref(), flags.chunks)?;
    let workers = flags.stages.unwrap_or(log.plan.workers());
    let micro_batches = flags.micro_batches.unwrap_or(log.plan.micro_batches());
    let own = own_error(&log, &measured)?;
    let measured = flags.link.between(measured)?;
    let prediction = measured.predict(&Target { workers, micro_batches, schedule: &schedule, cut: Cut::OfTheRun })?;
    let predicted = Predicted {
        schedule: &name,
        stages: workers,
        micro_batches,
        step_seconds: prediction.step,
        bubble: prediction.bubble,
        tokens_per_s: prediction.tokens_per_s,
        peak_live: &prediction.peak_live,
        peak_bytes: prediction.peak_bytes.as_deref(),
        layers: layers(&log, &prediction.cut),
        own_step_error: own.step,
        own_bubble_error: own.bubble,
    };
    print(&if flags.json { serde_json::to_string(&predicted)? + "\n" } else { text(&predicted) })
}

fn text(predicted: &Predicted) -> String {
    let Predicted { schedule, stages, micro_batches, step_seconds, bubble, tokens_per_s, peak_live, .. } = predicted;
    let layers = predicted.layers.iter().enumerate();
    let layers =
        layers.map(|(stage, names)| format!("stage {stage:>4}     {}\n", names.join(", "))).collect::<String>();
    let megabytes =
        |bytes: &[f64]| bytes.iter().map(|bytes| format!("{:.1}", bytes / 1e6)).collect::<Vec<_>>().join(", ");
    let memory = predicted
        .peak_bytes
        .map_or_else(String::new, |bytes| format!("peak memory    {} MB a worker\n", megabytes(bytes)));
    format!(
        "{schedule}, P = {stages}, M = {micro_batches}\n\
         step           {:.1} ms\n\
         bubble         {:.2}% of the total\n\
         throughput     {tokens_per_s:.0} tokens a second\n\
         peak live      {peak_live:?} micro-batches a worker\n\
         {memory}\
         {layers}\
         of the run itself the same prediction is {:.1}% off in the step, and {:.4} in the bubble\n",
        1e3 * step_seconds,
        100.0 * bubble,
        100.0 * predicted.own_step_error,
        predicted.own_bubble_error,
    )
}

/// How far a prediction of the run itself is from the run.
struct OwnError {
    step: f64,
    bubble: f64,
}

fn own_error(log: &RunLog, measured: &Measured) -> Result<OwnError> {
    let (workers, micro_batches) = (log.plan.workers(), log.plan.micro_batches());
    let target = Target { workers, micro_batches, schedule: &log.plan, cut: Cut::OfTheRun };
    let own = measured.predict(&target)?;
    let (step, bubble) = log.typical().ok_or_else(|| anyhow!("the log has no steps"))?;
    Ok(OwnError { step: (own.step / step - 1.0).abs(), bubble: (own.bubble - bubble).abs() })
}

pub(crate) fn advise(flags: &AdviseFlags) -> Result<()> {
    ensure!((0.0..1.0).contains(&flags.bubble), "--bubble {}: give a share, at least 0 and less than 1", flags.bubble);
    let log = read(&flags.from)?;
    let local = Measured::of(&log)?;
    let measured = flags.link.between(local.clone())?;
    let (schedule, name) = schedule(&log, flags.schedule.as_deref(), None)?;
    let workers = flags.stages.unwrap_or(log.plan.workers());
    let bubble = 100.0 * flags.bubble;
    let mut text = match measured.least_micro_batches(workers, &schedule, flags.bubble, flags.most)? {
        Some((micro_batches, prediction)) => format!(
            "M = {micro_batches} is the smallest with a bubble of at most {bubble:.1}% under {name} at P = {workers}: {:.1}%, \
             {:.0} tokens a second, at most {} live micro-batches\n",
            100.0 * prediction.bubble,
            prediction.tokens_per_s,
            prediction.peak_live.iter().max().copied().unwrap_or(0),
        ),
        None => {
            format!("no M up to {} has a bubble of at most {bubble:.1}% under {name} at P = {workers}\n", flags.most)
        }
    };
    if let Some(link) = flags.link.link() {
        let target =
            Target { workers, micro_batches: log.plan.micro_batches(), schedule: &schedule, cut: Cut::OfTheRun };
        text += &about_links(&local, &measured, &target, (link, &name))?;
    }
    let cut = measured.balanced(workers * schedule.chunks())?;
    text += if measured.cut() == cut { "the run is cut as evenly as layers go:\n" } else { "the most even cut:\n" };
    for (stage, names) in layers(&log, &cut).into_iter().enumerate() {
        text += &format!("stage {stage}: {}\n", names.join(", "));
    }
    if let Some((cause, share)) = log.main_cause() {
        text += &format!("what held the run back most: {}, {:.1}% of its stage time\n", reason(cause), 100.0 * share);
    }
    print(&text)
}

/// What links cost above which they are too slow for a split, as a share of the stage time.
const TOO_SLOW: f64 = 0.02;

/// What links would cost, and which schedules wait for them less, because they have more micro-batches live.
fn about_links(local: &Measured, linked: &Measured, target: &Target, (link, name): (Link, &str)) -> Result<String> {
    let (before, after) = (local.predict(target)?, linked.predict(target)?);
    let verdict = if after.bubble - before.bubble > TOO_SLOW { "too slow for this split" } else { "fast enough" };
    let mut text = format!(
        "links of {:.4} GB/s and {:.3} ms are {verdict}: at M = {} and at most {:.3} MB a micro-batch, {name} has a bubble of \
         {:.1}%, and {:.1}% without them\n",
        link.bandwidth / 1e9,
        1e3 * link.latency,
        target.micro_batches,
        linked.most_crossing().unwrap_or(0.0) / 1e6,
        100.0 * after.bubble,
        100.0 * before.bubble,
    );
    for other in ["eager-1f1b", "zb-h1", "zb-h2"].into_iter().filter(|other| *other != name) {
        let schedule = shape::schedule(other, None)?;
        // Not every schedule has a plan of every shape.
        let Ok(found) = linked.predict(&Target { schedule: &schedule, cut: Cut::Balanced, ..*target }) else {
            continue;
        };
        if found.bubble < after.bubble {
            let live = found.peak_live.iter().max().copied().unwrap_or(0);
            text += &format!("over them {other} has {:.1}%, with {live} live micro-batches\n", 100.0 * found.bubble);
        }
    }
    Ok(text)
}

/// A cause, and what to do about it.
fn reason(cause: Cause) -> &'static str {
    match cause {
        Cause::Pipeline => "filling and draining the pipeline (take a larger M, or a schedule with chunks)",
        Cause::Imbalance => "stages that have unequal work (take the most even cut, or fewer stages)",
        Cause::Transfer => "transfers (cut where activations are small, or take faster links)",
        Cause::Flush => "unequal parts of the flush (spread the parameters more evenly)",
        Cause::Other => "what the runtime adds (take larger micro-batches)",
    }
}

pub(crate) fn page(flags: &PageFlags) -> Result<()> {
    let page = run_page(&read(&flags.from)?);
    fs::write(&flags.html, page).with_context(|| flags.html.display().to_string())
}

fn read(path: &Path) -> Result<RunLog> {
    let file = File::open(path).with_context(|| path.display().to_string())?;
    RunLog::read(BufReader::new(file)).with_context(|| path.display().to_string())
}

/// A schedule by its name, or that of the run with its chunks.
fn schedule(log: &RunLog, name: Option<&str>, chunks: Option<usize>) -> Result<(Box<dyn Schedule>, String)> {
    if let Some(name) = name {
        return Ok((shape::schedule(name, chunks)?, name.to_owned()));
    }
    let (name, own) = (&log.run.schedule, log.plan.stages() / log.plan.workers().max(1));
    let schedule = shape::schedule(name, chunks.or(Some(own))).context("name a schedule with --schedule")?;
    Ok((schedule, name.clone()))
}

/// The names of each stage's layers.
fn layers<'a>(log: &'a RunLog, cut: &[Range<usize>]) -> Vec<Vec<&'a str>> {
    let names = |range: &Range<usize>| log.run.layers[range.clone()].iter().map(|layer| layer.name.as_str()).collect();
    cut.iter().map(names).collect()
}
