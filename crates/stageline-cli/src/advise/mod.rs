//! `stageline advise`: recommends settings for the next run, from the log of a run.

use std::ops::Range;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::Args;
use stageline_report::{Cause, Crossing, Cut, HostCut, Hosts, Link, Measured, Prediction, RunLog, Target};
use stageline_schedule::Schedule;

use crate::accumulation::accumulation;
use crate::output::print;
use crate::run::{LinkFlags, layers, read, schedule};
use crate::shape;

/// Recommends a number of micro-batches and a partition of the layers, from the log of a run.
///
/// Prints the smallest number of micro-batches M whose bubble is at most --bubble, how long trainings with M = 1 to 256
/// take to the loss of the run (by its gradient noise), whether the network links between
/// workers are fast enough, the most even partition of the measured layers, and the main cause of idle time. With
/// --hosts, compares the partitions over several hosts.
#[derive(Args)]
pub(crate) struct Flags {
    /// File with the log of a run, which a training program writes with `--log`
    #[arg(long, value_name = "FILE")]
    from: PathBuf,
    /// Number of workers P of the recommended run [default: the P of the logged run]
    #[arg(long)]
    stages: Option<usize>,
    /// Name of the schedule of the recommended run [default: the schedule of the logged run]
    #[arg(long)]
    schedule: Option<String>,
    /// Largest acceptable bubble of the recommended run, as a share of the total stage time (workers x step time)
    #[arg(long, default_value_t = 0.1)]
    bubble: f64,
    /// Largest number of micro-batches M to try
    #[arg(long, default_value_t = 512)]
    most: usize,
    /// Number of workers on each host, in order, such as `4,4`: compares the partitions of the layers over these hosts,
    /// with the bytes sent between hosts and the time of the slowest worker. Hosts are connected by the network link of
    /// --bandwidth and --latency, or else by the slowest link in the log
    #[arg(long, value_name = "WORKERS,WORKERS", value_delimiter = ',', conflicts_with = "stages")]
    hosts: Vec<usize>,
    #[command(flatten)]
    link: LinkFlags,
}

pub(crate) fn run(flags: &Flags) -> Result<()> {
    ensure!((0.0..1.0).contains(&flags.bubble), "--bubble {}: give a share, at least 0 and less than 1", flags.bubble);
    let log = read(&flags.from)?;
    let measured = Measured::of(&log)?;
    let (schedule, name) = schedule(&log, flags.schedule.as_deref(), None)?;
    let question = Question { flags, log: &log, schedule: &schedule, name: &name };
    let (mut text, cut) =
        if flags.hosts.is_empty() { question.any_cut(measured)? } else { question.cut_between_hosts(measured)? };
    for (stage, names) in layers(&log, &cut).into_iter().enumerate() {
        text += &format!("stage {stage}: {}\n", names.join(", "));
    }
    let starts: Vec<_> = cut.iter().map(|range| range.start.to_string()).collect();
    let workers = cut.len() / question.schedule.chunks();
    text += &format!("as flags of a training: --stages {workers} --cut {}\n", starts.join(","));
    if let Some((cause, share)) = log.main_cause() {
        text += &format!("main cause of idle time: {}, {:.1}% of the stage time\n", advice(cause), 100.0 * share);
    }
    print(&text)
}

/// The increase of the bubble above which `advise` calls a network link too slow, as a share of the total stage time
/// (workers x step time).
const TOO_SLOW: f64 = 0.02;

/// The input of a recommendation: the flags of `advise`, the log of the run, and the schedule of the recommended run.
struct Question<'a> {
    flags: &'a Flags,
    log: &'a RunLog,
    schedule: &'a dyn Schedule,
    name: &'a str,
}

impl Question<'_> {
    fn target(&self, workers: usize, cut: Cut) -> Target<'_> {
        Target { workers, micro_batches: self.log.plan.micro_batches(), schedule: self.schedule, cut }
    }

    /// Returns the recommendation without --hosts as text, and the recommended partition of the layers into stages,
    /// which is the most even one by the measured time of a forward and backward.
    fn any_cut(&self, measured: Measured) -> Result<(String, Vec<Range<usize>>)> {
        let measured = self.flags.link.apply(measured)?;
        let workers = self.flags.stages.unwrap_or(self.log.plan.workers());
        let mut text = self.micro_batches(&measured, &self.target(workers, Cut::Balanced))?;
        text += &accumulation(&measured, self.log, &self.target(workers, Cut::Balanced))?;
        text += &self.links(&measured, &self.target(workers, Cut::OfTheRun))?;
        let cut = measured.balanced(workers * self.schedule.chunks())?;
        text += if measured.cut() == cut {
            "the partition of the run is the most even one:\n"
        } else {
            "the most even partition:\n"
        };
        Ok((text, cut))
    }

    /// Returns the recommendation with --hosts as text, and the recommended partition of the layers into stages. This
    /// partition has the shortest predicted step of those whose boundaries between hosts are stage boundaries of the
    /// logged run.
    fn cut_between_hosts(&self, measured: Measured) -> Result<(String, Vec<Range<usize>>)> {
        let hosts = Hosts::new(self.flags.hosts.clone())?;
        let link = self.flags.link.link().or(measured.slowest_link());
        let link = link.context("the log has no links; give the link between hosts with --bandwidth and --latency")?;
        let cuts = measured.host_cuts(&hosts, link, self.schedule, self.log.plan.micro_batches())?;
        let cut = cuts[0].prediction.cut.clone();
        let best = self.target(hosts.workers(), Cut::Given(cut.clone()));
        let measured = measured.between(hosts, link)?;
        let mut text = self.micro_batches(&measured, &best)?;
        text += &self.links(&measured, &best)?;
        text += &self.host_cuts(&measured, &cuts);
        Ok((text + "the best partition over these hosts:\n", cut))
    }

    /// Returns the line of the recommendation that names the smallest number of micro-batches (M) whose predicted
    /// bubble is at most `--bubble`.
    fn micro_batches(&self, measured: &Measured, target: &Target) -> Result<String> {
        let (name, workers, Flags { bubble, most, .. }) = (self.name, target.workers, self.flags);
        let share = 100.0 * bubble;
        let Some((micro_batches, prediction)) = measured.least_micro_batches(target, *bubble, *most)? else {
            return Ok(format!(
                "no M up to {most} has a bubble of at most {share:.1}% under {name} at P = {workers}\n"
            ));
        };
        Ok(format!(
            "M = {micro_batches} is the smallest with a bubble of at most {share:.1}% under {name} at P = {workers}: {:.1}%, \
             {:.0} tokens a second, at most {} live micro-batches\n",
            100.0 * prediction.bubble,
            prediction.tokens_per_s,
            most_live(&prediction),
        ))
    }

    /// Returns a text with a table of the network links between stages; an empty text if the plan uses no link. Each
    /// row of the table shows the bubble that is predicted if only transfers over its link take time, and the last two
    /// rows show the bubbles with all links and with no links. A line follows for each of the schedules eager-1f1b,
    /// zb-h1 and zb-h2 whose predicted bubble over these links is smaller.
    fn links(&self, measured: &Measured, target: &Target) -> Result<String> {
        let crossings = measured.crossings(target)?;
        if crossings.is_empty() {
            return Ok(String::new());
        }
        let (without, with) = (measured.clone().without_links().predict(target)?, measured.predict(target)?);
        let mut text = format!(
            "link          GB/s     latency  MB each way      round trip    stage before  bubble, at M = {} under {}\n",
            target.micro_batches, self.name
        );
        for (crossing, alone) in crossings {
            let Crossing { stage, link: Link { latency, bandwidth }, bytes } = crossing;
            text += &format!(
                "{:<9} {:>8.4} {:>8.3} ms {:>12.3} {:>12.3} ms {:>12.3} ms  {}\n",
                format!("{stage} to {}", stage + 1),
                bandwidth / 1e9,
                1e3 * latency,
                bytes / 1e6,
                1e3 * crossing.takes(),
                1e3 * measured.computes(with.cut[stage].clone()),
                verdict(without.bubble, alone),
            );
        }
        let mut line = |links, bubble: String| text += &format!("{links:<77}{bubble}\n");
        line("all links", verdict(without.bubble, with.bubble));
        line("no links", format!("{:.1}%", 100.0 * without.bubble));
        Ok(text + &self.tolerant_schedules(measured, target, with.bubble)?)
    }

    /// Returns a line for each of the schedules eager-1f1b, zb-h1 and zb-h2 whose predicted bubble with the same
    /// network links is smaller than `bubble`.
    fn tolerant_schedules(&self, measured: &Measured, target: &Target, bubble: f64) -> Result<String> {
        let mut text = String::new();
        for name in ["eager-1f1b", "zb-h1", "zb-h2"].into_iter().filter(|name| *name != self.name) {
            let schedule = shape::schedule(name, None)?;
            // Not every schedule has a plan of every shape.
            let Ok(found) = measured.predict(&Target { schedule: &schedule, cut: target.cut.clone(), ..*target })
            else {
                continue;
            };
            if found.bubble < bubble {
                let (bubble, live) = (100.0 * found.bubble, most_live(&found));
                text +=
                    &format!("over these links {name} has a bubble of {bubble:.1}%, with {live} live micro-batches\n");
            }
        }
        Ok(text)
    }

    /// Returns a text table with a row for each of the partitions `cuts` of the layers over hosts: the layers after
    /// which the hosts meet, the bytes sent there, the time of the slowest worker, the step time and the bubble.
    fn host_cuts(&self, measured: &Measured, cuts: &[HostCut]) -> String {
        let end = |stage: &usize| self.log.run.layers[measured.cut()[*stage].end - 1].name.as_str();
        let places: Vec<_> = cuts.iter().map(|cut| cut.behind.iter().map(end).collect::<Vec<_>>().join(", ")).collect();
        let megabytes = |cut: &HostCut| cut.bytes.iter().map(|bytes| format!("{:.3}", bytes / 1e6)).collect::<Vec<_>>();
        let megabytes: Vec<_> = cuts.iter().map(|cut| megabytes(cut).join(", ")).collect();
        let longest =
            |texts: &[String], heading: &str| texts.iter().map(String::len).max().unwrap_or(0).max(heading.len());
        let (width, most) = (longest(&places, "hosts split after"), longest(&megabytes, "MB each way"));
        let table = |place: &str, bytes: &str, slowest: &str, step: &str, bubble: &str| {
            format!("{place:width$}  {bytes:>most$}  {slowest:>14}  {step:>12}  {bubble:>6}\n")
        };
        let mut text = table("hosts split after", "MB each way", "slowest worker", "step", "bubble");
        for ((place, megabytes), HostCut { slowest, prediction, .. }) in places.iter().zip(&megabytes).zip(cuts) {
            let milliseconds = |seconds: f64| format!("{:.3} ms", 1e3 * seconds);
            let bubble = format!("{:.1}%", 100.0 * prediction.bubble);
            text += &table(place, megabytes, &milliseconds(*slowest), &milliseconds(prediction.step), &bubble);
        }
        let same = cuts.iter().flat_map(|cut| &cut.bytes).all(|bytes| *bytes == cuts[0].bytes[0]);
        text + match (cuts.len(), same) {
            (1, _) => "the run has no other boundary at which these hosts could split; log a run of more stages\n",
            (_, true) => "all of these boundaries carry the same bytes, so only the balance decides\n",
            (_, false) => "",
        }
    }
}

/// Returns a text that shows the predicted bubble with transfers over the network links (`with`) and says whether the
/// links are fast enough. They are too slow if `with` exceeds `without`, the bubble with free transfers, by more than
/// 2% of the total stage time (workers x step time).
fn verdict(without: f64, with: f64) -> String {
    let (percent, more) = (100.0 * with, with - without);
    if more > TOO_SLOW {
        format!("{percent:.1}%, too slow for this split: {:.1}% of the stage time", 100.0 * more)
    } else {
        format!("{percent:.1}%, fast enough")
    }
}

/// Returns the largest predicted number of live micro-batches (those whose activations are kept for backwards) on any
/// worker.
fn most_live(prediction: &Prediction) -> usize {
    prediction.peak_live.iter().max().copied().unwrap_or(0)
}

/// Returns the name of a cause of idle time, with a remedy in brackets.
fn advice(cause: Cause) -> &'static str {
    match cause {
        Cause::Pipeline => "filling and draining the pipeline (use a larger M, or a schedule with chunks)",
        Cause::Imbalance => "stages with unequal work (use the most even partition, or fewer stages)",
        Cause::Transfer => "transfers (split where activations are small, which --hosts finds, or use faster links)",
        Cause::Flush => "unequal parts of the flush (spread the parameters more evenly)",
        Cause::Other => "overhead of the runtime (use larger micro-batches)",
    }
}
