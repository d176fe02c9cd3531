//! The command-line flags that choose a plan ([`Shape`]): a schedule, and the numbers of workers, micro-batches and
//! chunks (stages of a worker). Also reads plans from files.

use std::io::Read;
use std::path::Path;

use anyhow::{Context, anyhow, ensure};
use clap::Args;
use stageline_schedule::{Plan, SCHEDULES, Schedule, schedule_named};

/// Maximum number of stage x micro-batch pairs that a plan may have. A plan of this size takes about 10 GB of host
/// memory.
const MOST_PAIRS: usize = 100_000_000;

/// The command-line flags that choose a plan: a schedule, and the numbers of workers (P), of micro-batches (M) and of
/// stages per worker (chunks, V).
#[derive(Args)]
pub(crate) struct Shape {
    #[arg(long, default_value = "1f1b", help = names())]
    schedule: String,
    /// Number of workers P. Each has one stage, or V stages (chunks) in schedules with chunks
    #[arg(long)]
    stages: usize,
    /// Number of micro-batches M in a step
    #[arg(long)]
    micro_batches: usize,
    /// Number of stages (chunks) V of each worker, for schedules in which it can be chosen
    #[arg(long)]
    chunks: Option<usize>,
}

fn names() -> String {
    let names: Vec<_> = SCHEDULES.iter().map(|schedule| schedule.name()).collect();
    format!("Schedule: {}", names.join(", "))
}

impl Shape {
    pub(crate) fn plan(&self) -> anyhow::Result<Plan> {
        let schedule = schedule(&self.schedule, self.chunks)?;
        // The flag --stages counts workers, so that schedules are compared at the same P.
        let stages = schedule.stages_on(self.stages);
        not_too_large(stages, self.micro_batches)?;
        Ok(schedule.plan(stages, self.micro_batches)?)
    }
}

/// Returns the schedule with the given name, with `chunks` stages (chunks) on each worker. If `chunks` is `None`, the
/// schedule has its default number of chunks. Returns an error if the name is not known, or if the schedule has a fixed
/// number of chunks other than `chunks`.
pub(crate) fn schedule(name: &str, chunks: Option<usize>) -> anyhow::Result<Box<dyn Schedule>> {
    let named = schedule_named(name)?;
    match chunks {
        None => Ok(Box::new(named)),
        Some(chunks) if chunks == named.chunks() => Ok(Box::new(named)),
        Some(chunks) => named.with_chunks(chunks).ok_or_else(|| {
            let own = named.chunks();
            anyhow!("{name} has {own} chunks per worker, not {chunks}; omit --chunks")
        }),
    }
}

/// Returns an error if a plan of this size would be too large to build (over 100 million stage x micro-batch pairs).
pub(crate) fn not_too_large(stages: usize, micro_batches: usize) -> anyhow::Result<()> {
    ensure!(
        stages.max(1).saturating_mul(micro_batches.max(1)) <= MOST_PAIRS,
        "{stages} stages x {micro_batches} micro-batches are more than the limit of {MOST_PAIRS}; ask for fewer"
    );
    Ok(())
}

/// Reads a plan from the CSV file at `path`, or from the standard input if the path is `-`. Returns an error if the
/// file cannot be read or does not contain a plan.
pub(crate) fn read_plan(path: &Path) -> anyhow::Result<Plan> {
    let csv = if path == "-" {
        let mut csv = String::new();
        std::io::stdin().read_to_string(&mut csv).map(|_| csv)
    } else {
        std::fs::read_to_string(path)
    };
    let csv = csv.with_context(|| format!("cannot read {}", path.display()))?;
    Plan::from_csv(&csv).with_context(|| path.display().to_string())
}
