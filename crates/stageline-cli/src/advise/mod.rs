//! `stageline advise`: recommends settings for the next run, from the log of a run.
//!
//! - `flags`: the flags of the command, and the schedule that they choose.
//! - `input`: the input of a recommendation: the flags, the log and the schedule.
//! - `accumulation`: how many micro-batches (M) a step should have, and which other setting shortens the training run.
//! - `links`: whether network links are fast enough, and the partitions over several hosts.
//!
//! Input: the flags, with the path of a log. Output: text on the terminal. `stageline-report` makes all predictions:
//! the code here must not compute costs or simulate a plan itself.

mod accumulation;
mod flags;
mod input;
mod links;

use std::ops::Range;

use anyhow::{Context, Error, Result, ensure};
use stageline_report::{Cause, Change, Cut, Hosts, Measured, Target, layer_range};

use self::accumulation::Answer;
pub(crate) use self::flags::Flags;
use self::input::Asked;
use self::links::most_live;
use crate::logged_run::{layers, other_share, read, unequal_devices};
use crate::measured_search::cut_flag;
use crate::output::print;
use crate::predicted_schedule::Chosen;

pub(crate) fn run(flags: &Flags) -> Result<()> {
    ensure!((0.0..1.0).contains(&flags.bubble), "--bubble {}: give a share, at least 0 and less than 1", flags.bubble);
    let log = read(&flags.from)?;
    let measured = Measured::of(&log)?;
    let Chosen { schedule, name, .. } = flags.schedule(&log)?;
    flags.check_stages(&log, &schedule)?;
    flags.check_most_stages(&log)?;
    flags.check_size(&log, &schedule)?;
    let other_size = flags.other_size.as_deref().map(|path| Ok::<_, Error>(Measured::of(&read(path)?)?)).transpose()?;
    let question = Asked { flags, log: &log, schedule: &schedule, name: &name, other_size };
    let text =
        if flags.hosts.is_empty() { question.any_cut(measured)? } else { question.cut_between_hosts(measured)? };
    print(&text)
}

impl Asked<'_> {
    /// Returns the text that `stageline advise` prints without --hosts. It includes a partition of the layers into
    /// stages, balanced by the measured times of forward and backward passes.
    fn any_cut(&self, measured: Measured) -> Result<String> {
        let measured = self.flags.link.apply(measured)?;
        let workers = self.flags.stages.unwrap_or(self.log.plan.workers());
        let answer = self.accumulation().answer(&measured, self.target(workers, Cut::Balanced))?;
        let cut = match &answer.cut {
            Some(cut) => cut.clone(),
            None => measured.cut_for(&self.target(workers, Cut::Balanced))?,
        };
        let mut text = self.beginning(&answer, workers, &cut);
        text += &self.micro_batches(&measured, &self.target(workers, Cut::Balanced))?;
        text += &self.links(&measured, &self.target(workers, Cut::OfTheRun))?;
        text += if self.log.run.cut_by_hand {
            "the stages of the run, into which its model is cut by hand:\n"
        } else if measured.cut() == cut {
            "the partition of the run is the most even one:\n"
        } else if answer.cut.is_some() {
            "the partition for the recommended plan:\n"
        } else {
            "the most even partition:\n"
        };
        Ok(text + &self.ending(&cut, measured.cut() == cut))
    }

    /// Returns the text that `stageline advise` prints with --hosts. It includes the partition of the layers over these
    /// hosts with the shortest predicted step. The model is split between hosts only at stage boundaries of the logged
    /// run.
    fn cut_between_hosts(&self, measured: Measured) -> Result<String> {
        let hosts = Hosts::new(self.flags.hosts.clone())?;
        let link = self.flags.link.link().or(measured.slowest_link());
        let link = link.context("the log has no links; give the link between hosts with --bandwidth and --latency")?;
        let cuts = measured.host_cuts(&hosts, link, self.schedule, self.log.plan.micro_batches())?;
        let cut = cuts[0].prediction.cut.clone();
        let best = self.target(hosts.workers(), Cut::Given(cut.clone()));
        let measured = measured.between(hosts, link)?;
        let answer = self.accumulation().answer(&measured, self.target(best.workers, best.cut.clone()))?;
        let mut text = self.beginning(&answer, best.workers, &cut);
        text += &self.micro_batches(&measured, &best)?;
        text += &self.links(&measured, &best)?;
        text += &self.host_cuts(&measured, &cuts);
        text += "the best partition over these hosts:\n";
        Ok(text + &self.ending(&cut, false))
    }

    /// Returns the beginning of the text that `stageline advise` prints: the recommendation and its tables. If nothing
    /// is recommended, a line has the flags for a training run with the partition `cut` over `workers` workers.
    fn beginning(&self, answer: &Answer, workers: usize, cut: &[Range<usize>]) -> String {
        let mut text = answer.recommendation.clone();
        if answer.cut.is_none() {
            let (schedule, missing) = self.accumulation().schedule_flags(&Change::None, workers);
            let unequal = unequal_devices(self.log, cut);
            let cut = cut_flag(self.log, cut);
            text +=
                &format!("the partition as flags of a training: --stages {workers}{schedule}{cut}\n{missing}{unequal}");
        }
        text += &other_share(self.log, self.flags.stages.unwrap_or(workers));
        text + &answer.tables
    }

    /// Returns the end of the text that `stageline advise` prints: the layers of each stage in the partition `cut`, and
    /// the main cause of idle time. `is_of_the_run` says whether the run already had this partition.
    fn ending(&self, cut: &[Range<usize>], is_of_the_run: bool) -> String {
        let mut text = String::new();
        for (stage, names) in layers(self.log, cut).into_iter().enumerate() {
            text += &format!("stage {stage}: {}\n", layer_range(names));
        }
        if let Some((cause, share)) = self.log.main_cause() {
            let advice = advice(cause, self.log.run.cut_by_hand, is_of_the_run);
            text += &format!("main cause of idle time: {advice}, {:.1}% of the stage time\n", 100.0 * share);
        }
        text
    }

    /// Returns a line with the smallest number of micro-batches (M) whose predicted bubble is at most `--bubble`. If no
    /// M up to `--most` has such a bubble, the line says so. If `--schedule` is unset and the run's plan was searched
    /// or read from a file, the plan exists for one M only, and the line has the bubble of this plan.
    fn micro_batches(&self, measured: &Measured, target: &Target) -> Result<String> {
        let (workers, bubble) = (target.workers, self.flags.bubble);
        let (name, most) = (self.name_with_chunks(), self.flags.most(self.schedule.stages_on(workers)));
        let share = 100.0 * bubble;
        if !self.flags.compares_micro_batches(self.log) {
            let own = 100.0 * measured.predict(target)?.bubble;
            return Ok(format!(
                "the plan of the log, with a bubble of {own:.1}%, was made for M = {} and P = {workers} alone; give --schedule NAME to \
                 compare other numbers\n",
                target.micro_batches
            ));
        }
        let Some((micro_batches, prediction)) = measured.least_micro_batches(target, bubble, most)? else {
            return Ok(format!(
                "no M up to {most} has a bubble of at most {share:.1}% under {name} at P = {workers}\n"
            ));
        };
        Ok(format!(
            "a bubble of at most {share:.1}% needs M = {micro_batches} or more under {name} at P = {workers}: {:.1}%, {:.0} {} a \
             second, at most {} live micro-batches\n",
            100.0 * prediction.bubble,
            prediction.tokens_per_s,
            prediction.unit,
            most_live(&prediction),
        ))
    }
}

/// Returns the name of a cause of idle time, with a remedy in brackets. `by_hand` is true for a model whose program
/// partitions (cuts) it into stages by hand. Its remedies differ, because no flag changes its stages. `is_most_even` is
/// true if the run already had the most even partition.
fn advice(cause: Cause, by_hand: bool, is_most_even: bool) -> &'static str {
    match cause {
        Cause::Pipeline if by_hand => "filling and draining the pipeline (use a larger M)",
        Cause::Pipeline => "filling and draining the pipeline (use a larger M, or a schedule with chunks)",
        Cause::Imbalance if by_hand => "stages with unequal work (cut the model elsewhere in its program)",
        Cause::Imbalance if is_most_even => {
            "stages with unequal work (no partition of whole layers is more even; use fewer stages, or a number of \
             blocks that the stages divide)"
        }
        Cause::Imbalance => "stages with unequal work (use the most even partition, or fewer stages)",
        Cause::Transfer if by_hand => {
            "transfers (cut the model where activations are small in its program, or use faster links)"
        }
        Cause::Transfer => "transfers (split where activations are small, which --hosts finds, or use faster links)",
        Cause::Flush => "unequal parts of the flush (spread the parameters more evenly)",
        Cause::Other => "threads and channels (use larger micro-batches; other programs on the same cores add to it)",
    }
}
