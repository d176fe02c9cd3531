//! `stageline advise`: recommends settings for the next run, from the log of a run.
//!
//! - `accumulation`: how many micro-batches (M) a step should have, and what else shortens the training.
//! - `links`: whether network links are fast enough, and the partitions over several hosts.

mod accumulation;
mod links;

use std::ops::Range;
use std::path::PathBuf;

use anyhow::{Context, Error, Result, bail, ensure};
use clap::Args;
use stageline_report::{Cause, Cut, Hosts, Measured, RunLog, Target};
use stageline_schedule::Schedule;

use self::accumulation::{Accumulation, Answer};
use self::links::most_live;
use crate::chosen::{Chosen, SEARCH, has_generator};
use crate::costs::amount;
use crate::measured_search::cut_flag;
use crate::output::print;
use crate::run::{LinkFlags, layers, read};

/// Recommends a number of micro-batches, or another change, and a partition of the layers, from the log of a run.
///
/// Prints how long trainings with M = 1 to 256 take to reach the loss of the run, as estimated from its gradient noise.
/// Other schedules, other numbers of workers and larger micro-batches are compared. It also prints the smallest number
/// of micro-batches M whose bubble is at most --bubble, whether the network links between workers are fast enough, the
/// partition of the layers, and the main cause of idle time. At the end it recommends the fastest training with the
/// reason and the flags for it. With --hosts, it compares the partitions over several hosts. If a program cuts its
/// model into stages by hand, the stages stay as they are: other numbers of workers and chunks are not compared, and
/// the recommended flags do not contain --cut.
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
    /// Largest number of micro-batches M to try for --bubble
    #[arg(long, default_value_t = 512)]
    most: usize,
    /// Number of workers on each host, separated by commas, such as `4,4`. Compares partitions of the layers over these
    /// hosts: the bytes sent between hosts, the time of the slowest worker, the step time and the bubble. Hosts are
    /// connected by the network link of --bandwidth and --latency or, if --bandwidth is unset, by the slowest link in
    /// the log
    #[arg(long, value_name = "WORKERS,WORKERS", value_delimiter = ',', conflicts_with = "stages")]
    hosts: Vec<usize>,
    /// Memory of each worker, in GB: trainings that need more are not recommended. The host's memory for batches and
    /// for optimizer states of `--optimizer-state host` does not count
    #[arg(long, value_name = "GB", value_parser = amount)]
    memory: Option<f64>,
    /// Largest number of workers P to recommend [default: the number of layers of the model]
    #[arg(long, value_name = "P", conflicts_with = "hosts")]
    most_stages: Option<usize>,
    /// File with the log of a second run of the same model, in which micro-batches have another size. If this file is
    /// given, larger micro-batches are also compared
    #[arg(long, value_name = "FILE")]
    other_size: Option<PathBuf>,
    #[command(flatten)]
    link: LinkFlags,
}

impl Flags {
    /// Returns the schedule of the recommended run: the one that the flag --schedule names, or else that of the logged
    /// run.
    fn schedule(&self, log: &RunLog) -> Result<Chosen> {
        match self.schedule.as_deref() {
            Some(SEARCH) => bail!(
                "--schedule {SEARCH}: a search finds a plan for one M, and advise compares many; name a schedule, and then search a plan \
                 for the recommended M with `stageline search --from {}`",
                self.from.display()
            ),
            Some(name) => Chosen::named(name, None),
            None => {
                let workers = self.stages.unwrap_or(log.plan.workers());
                Chosen::of_run(log, None)?.checked(log, workers, log.plan.micro_batches())
            }
        }
    }

    /// Checks that the recommended run has as many stages as the logged one, if the user has cut the model by hand.
    /// Such a model cannot have other stages. `chunks` is the number of stages of each worker.
    fn check_stages(&self, log: &RunLog, chunks: usize) -> Result<()> {
        let own = log.plan.stages();
        let workers = match &self.hosts[..] {
            [] => self.stages.unwrap_or(log.plan.workers()),
            hosts => hosts.iter().copied().fold(0, usize::saturating_add),
        };
        let stages = workers.saturating_mul(chunks);
        ensure!(
            !log.run.cut_by_hand || stages == own,
            "the model of the log is cut by hand into {own} stages, and P = {workers} with V = {chunks} has {stages}; leave --stages and \
             --schedule out, or give numbers of workers and chunks with {own} stages"
        );
        Ok(())
    }
}

pub(crate) fn run(flags: &Flags) -> Result<()> {
    ensure!((0.0..1.0).contains(&flags.bubble), "--bubble {}: give a share, at least 0 and less than 1", flags.bubble);
    let log = read(&flags.from)?;
    let measured = Measured::of(&log)?;
    let Chosen { schedule, name, .. } = flags.schedule(&log)?;
    flags.check_stages(&log, schedule.chunks())?;
    let other_size = flags.other_size.as_deref().map(|path| Ok::<_, Error>(Measured::of(&read(path)?)?)).transpose()?;
    let question = Asked { flags, log: &log, schedule: &schedule, name: &name, other_size };
    let text =
        if flags.hosts.is_empty() { question.any_cut(measured)? } else { question.cut_between_hosts(measured)? };
    print(&text)
}

/// The input of a recommendation by `stageline advise`: the flags of the command, the log of a run, and the schedule of
/// the recommended run.
struct Asked<'a> {
    flags: &'a Flags,
    log: &'a RunLog,
    schedule: &'a dyn Schedule,
    name: &'a str,
    /// The costs measured in a second run of the same model, with micro-batches of another size; `None` if the user
    /// gives no such log. Trainings with larger micro-batches are predicted from them.
    other_size: Option<Measured>,
}

impl Asked<'_> {
    fn target(&self, workers: usize, cut: Cut) -> Target<'_> {
        Target { workers, micro_batches: self.log.plan.micro_batches(), schedule: self.schedule, cut }
    }

    /// Returns the text that `stageline advise` prints without --hosts. It shows the most even partition of the layers
    /// into stages, by the measured times of a forward and backward.
    fn any_cut(&self, measured: Measured) -> Result<String> {
        let measured = self.flags.link.apply(measured)?;
        let workers = self.flags.stages.unwrap_or(self.log.plan.workers());
        let answer = self.accumulation().answer(&measured, self.target(workers, Cut::Balanced))?;
        let mut text = answer.tables.clone();
        text += &self.micro_batches(&measured, &self.target(workers, Cut::Balanced))?;
        text += &self.links(&measured, &self.target(workers, Cut::OfTheRun))?;
        let cut = match &answer.cut {
            Some(cut) => cut.clone(),
            None => measured.balanced(workers * self.schedule.chunks())?,
        };
        text += if self.log.run.cut_by_hand {
            "the stages of the run, into which its model is cut by hand:\n"
        } else if measured.cut() == cut {
            "the partition of the run is the most even one:\n"
        } else {
            "the most even partition:\n"
        };
        Ok(text + &self.ending(&answer, &cut))
    }

    /// Returns the text that `stageline advise` prints with --hosts. It shows the partition of the layers over these
    /// hosts that has the shortest predicted step. The model is split between hosts only at stage boundaries of the
    /// logged run.
    fn cut_between_hosts(&self, measured: Measured) -> Result<String> {
        let hosts = Hosts::new(self.flags.hosts.clone())?;
        let link = self.flags.link.link().or(measured.slowest_link());
        let link = link.context("the log has no links; give the link between hosts with --bandwidth and --latency")?;
        let cuts = measured.host_cuts(&hosts, link, self.schedule, self.log.plan.micro_batches())?;
        let cut = cuts[0].prediction.cut.clone();
        let best = self.target(hosts.workers(), Cut::Given(cut.clone()));
        let measured = measured.between(hosts, link)?;
        let answer = self.accumulation().answer(&measured, self.target(best.workers, best.cut.clone()))?;
        let mut text = answer.tables.clone();
        text += &self.micro_batches(&measured, &best)?;
        text += &self.links(&measured, &best)?;
        text += &self.host_cuts(&measured, &cuts);
        text += "the best partition over these hosts:\n";
        Ok(text + &self.ending(&answer, &cut))
    }

    /// Returns the end of the text that `stageline advise` prints: the layers of each stage in the partition `cut`, the
    /// main cause of idle time, and the recommendation. If nothing is recommended, the last line has the flags of the
    /// partition.
    fn ending(&self, answer: &Answer, cut: &[Range<usize>]) -> String {
        let mut text = String::new();
        for (stage, names) in layers(self.log, cut).into_iter().enumerate() {
            text += &format!("stage {stage}: {}\n", names.join(", "));
        }
        if let Some((cause, share)) = self.log.main_cause() {
            let advice = advice(cause, self.log.run.cut_by_hand);
            text += &format!("main cause of idle time: {advice}, {:.1}% of the stage time\n", 100.0 * share);
        }
        text += &answer.recommendation;
        if answer.cut.is_none() {
            let workers = cut.len() / self.schedule.chunks();
            text += &format!("the partition as flags of a training: --stages {workers}{}\n", cut_flag(self.log, cut));
        }
        text
    }

    fn accumulation(&self) -> Accumulation<'_> {
        Accumulation {
            log: self.log,
            schedule: self.name,
            chunks: self.schedule.chunks(),
            other_size: self.other_size.as_ref(),
            memory: self.flags.memory.map(|gigabytes| 1e9 * gigabytes),
            most_workers: self.flags.most_stages,
        }
    }

    /// Returns the line of `stageline advise` that names the smallest number of micro-batches (M) whose predicted bubble
    /// is at most `--bubble`.
    fn micro_batches(&self, measured: &Measured, target: &Target) -> Result<String> {
        let (name, workers, Flags { bubble, most, .. }) = (self.name, target.workers, self.flags);
        let share = 100.0 * bubble;
        if self.flags.schedule.is_none() && !has_generator(self.log) {
            let own = 100.0 * measured.predict(target)?.bubble;
            return Ok(format!(
                "the log has a plan for M = {} and P = {workers}, with a bubble of {own:.1}%, which no schedule generates for other \
                 numbers; give --schedule NAME to compare them\n",
                target.micro_batches
            ));
        }
        let Some((micro_batches, prediction)) = measured.least_micro_batches(target, *bubble, *most)? else {
            return Ok(format!(
                "no M up to {most} has a bubble of at most {share:.1}% under {name} at P = {workers}\n"
            ));
        };
        let batch = self.log.weight().unwrap_or(f64::NAN) * micro_batches as f64 / self.log.plan.micro_batches() as f64;
        Ok(format!(
            "a bubble of at most {share:.1}% needs M = {micro_batches} or more under {name} at P = {workers}: {:.1}%, {:.0} tokens a \
             second, at most {} live micro-batches\n",
            100.0 * prediction.bubble,
            batch / prediction.step,
            most_live(&prediction),
        ))
    }
}

/// Returns the name of a cause of idle time, with a remedy in brackets. `by_hand` is true for a model that its program
/// cuts into stages by hand. The remedy is then another one, because no flag changes the stages of such a model.
fn advice(cause: Cause, by_hand: bool) -> &'static str {
    match cause {
        Cause::Pipeline if by_hand => "filling and draining the pipeline (use a larger M)",
        Cause::Pipeline => "filling and draining the pipeline (use a larger M, or a schedule with chunks)",
        Cause::Imbalance if by_hand => "stages with unequal work (cut the model elsewhere in its program)",
        Cause::Imbalance => "stages with unequal work (use the most even partition, or fewer stages)",
        Cause::Transfer if by_hand => {
            "transfers (cut the model where activations are small in its program, or use faster links)"
        }
        Cause::Transfer => "transfers (split where activations are small, which --hosts finds, or use faster links)",
        Cause::Flush => "unequal parts of the flush (spread the parameters more evenly)",
        Cause::Other => "overhead of the runtime (use larger micro-batches)",
    }
}
