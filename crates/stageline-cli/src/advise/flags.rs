//! The flags of `stageline advise` ([`Flags`]), and the schedule that they choose for the recommended run.

use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use stageline_report::{Measured, PredictError, RunLog};
use stageline_schedule::Schedule;

use crate::costs::amount;
use crate::logged_run::LinkFlags;
use crate::plan_flags::not_too_large;
use crate::predicted_schedule::{Chosen, SEARCH, has_generator};

/// Recommends a number of micro-batches, or another change of settings, and a partition of the layers, from the log of
/// a run.
///
/// Recommends the settings of the next training run, with the reason and the flags for it. Then it prints how long
/// training runs with M = 1 to 256 take to reach the logged run's final loss, as estimated from its gradient noise.
/// Other schedules, other numbers of workers and larger micro-batches are compared. It also prints the smallest number
/// of micro-batches M whose bubble is at most --bubble, whether the network links between workers are fast enough, the
/// partition of the layers, and the main cause of idle time. With --hosts, it compares the partitions over several
/// hosts. If a program cuts its model into stages by hand, the stages stay as they are: other numbers of workers and
/// chunks are not compared, and the recommended flags do not contain --cut.
#[derive(Args)]
pub(crate) struct Flags {
    /// File with the log of a run, which a training program writes with `--log`
    #[arg(long, value_name = "FILE")]
    pub(super) from: PathBuf,
    /// Number of workers P of the baseline run that other settings are compared with [default: the P of the logged run]
    #[arg(long)]
    pub(super) stages: Option<usize>,
    /// Name of the baseline schedule that other settings are compared with [default: the schedule of the logged run].
    /// The schedule of the logged run keeps its number of chunks V (stages of a worker), and another schedule has its
    /// default number
    #[arg(long)]
    pub(super) schedule: Option<String>,
    /// Largest acceptable bubble, as a share of the total stage time (workers x step time): the command prints the
    /// smallest number of micro-batches M that stays within it
    #[arg(long, default_value_t = 0.1, allow_hyphen_values = true)]
    pub(super) bubble: f64,
    /// Largest number of micro-batches M to try for --bubble. The time grows with its square [default: 512, or fewer if
    /// the plans have so many stages that this would take too long]
    #[arg(long)]
    most: Option<usize>,
    /// Number of workers on each host, separated by commas, such as `4,4`. Compares partitions of the layers over these
    /// hosts: the bytes sent between hosts, the time of the slowest worker, the step time and the bubble. Hosts are
    /// connected by the network link of --bandwidth and --latency or, if --bandwidth is unset, by the slowest link in
    /// the log
    #[arg(long, value_name = "WORKERS,WORKERS", value_delimiter = ',', conflicts_with = "stages")]
    pub(super) hosts: Vec<usize>,
    /// Memory of each worker, in GB: training runs that need more are not recommended. The host's memory for batches
    /// and for optimizer states of `--optimizer-state host` does not count
    #[arg(long, value_name = "GB", value_parser = amount, allow_hyphen_values = true)]
    pub(super) memory: Option<f64>,
    /// Largest number of workers P to recommend [default: the number of layers of the model]
    #[arg(long, value_name = "P", conflicts_with = "hosts")]
    pub(super) most_stages: Option<usize>,
    /// File with the log of a second run of the same model, with another micro-batch size. If this file is given,
    /// larger micro-batches are also compared
    #[arg(long, value_name = "FILE")]
    pub(super) other_size: Option<PathBuf>,
    #[command(flatten)]
    pub(super) link: LinkFlags,
}

impl Flags {
    /// Returns the baseline schedule that other settings are compared with: the one that --schedule names, or else the
    /// logged run's.
    pub(super) fn schedule(&self, log: &RunLog) -> Result<Chosen> {
        match self.schedule.as_deref() {
            Some(SEARCH) => bail!(
                "--schedule {SEARCH}: a search finds a plan for one M, and advise compares many; name a schedule, and then search a plan \
                 for the recommended M with `stageline search --from {}`",
                self.from.display()
            ),
            Some(name) => Chosen::named(log, name, None),
            None => {
                let workers = self.stages.unwrap_or(log.plan.workers());
                Chosen::of_run(log, None)?.checked(log, workers, log.plan.micro_batches(), "give --schedule NAME")
            }
        }
    }

    /// Rejects a change of the number of stages for a model that the user has cut into stages by hand, because no flag
    /// can change these stages.
    pub(super) fn check_stages(&self, log: &RunLog, schedule: &dyn Schedule) -> Result<()> {
        let (own, workers) = (log.plan.stages(), self.workers(log));
        let (stages, chunks) = (schedule.stages_on(workers), schedule.chunks());
        ensure!(
            !log.run.cut_by_hand || stages == own,
            "the model of the log is cut by hand into {own} stages, and P = {workers} with V = {chunks} has {stages}; leave --stages and \
             --schedule out, or give numbers of workers and chunks with {own} stages"
        );
        Ok(())
    }

    /// Returns an error if the baseline run that other settings are compared with has more workers than --most-stages
    /// allows.
    pub(super) fn check_most_stages(&self, log: &RunLog) -> Result<()> {
        let workers = self.workers(log);
        match self.most_stages {
            Some(most) if workers > most => bail!(
                "--most-stages {most}: all settings are compared with a run of P = {workers}; also give --stages, at most {most}"
            ),
            _ => Ok(()),
        }
    }

    /// Returns an error if the largest plan to compare would be too large to build (over 100 million stage x
    /// micro-batch pairs), or if all plans up to --most would take too long to simulate. The number of micro-batches of
    /// the largest plan is --most, or the run's own number if that is larger.
    pub(super) fn check_size(&self, log: &RunLog, schedule: &dyn Schedule) -> Result<()> {
        let stages = schedule.stages_on(self.workers(log));
        let (most, fewer) = (self.most(stages), Measured::most_to_search(stages));
        not_too_large(stages, most.max(log.plan.micro_batches()))
            .context("the plans up to --most cannot be compared")?;
        if most > fewer && self.compares_micro_batches(log) {
            return Err(PredictError::TooManyPlans { stages, most, fewer }.into());
        }
        Ok(())
    }

    /// Returns the largest number of micro-batches to try for --bubble, for plans of `stages` stages: --most, or else
    /// as many as do not take too long to simulate, at most 512.
    pub(super) fn most(&self, stages: usize) -> usize {
        self.most.unwrap_or_else(|| Measured::most_to_search(stages).min(512))
    }

    /// Whether plans for several numbers of micro-batches are compared for --bubble. A plan that was searched or read
    /// from a file exists for one number only.
    pub(super) fn compares_micro_batches(&self, log: &RunLog) -> bool {
        self.schedule.is_some() || has_generator(log)
    }

    /// Returns the baseline number of workers that other settings are compared with: the sum of --hosts, or else
    /// --stages, or else the logged run's number.
    fn workers(&self, log: &RunLog) -> usize {
        match &self.hosts[..] {
            [] => self.stages.unwrap_or(log.plan.workers()),
            hosts => hosts.iter().copied().fold(0, usize::saturating_add),
        }
    }
}
