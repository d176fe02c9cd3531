//! `stageline search`: finds the plan with the shortest simulated step within a memory limit.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use stageline_report::Measured;
use stageline_schedule::{Best, Memory, Placement, best, check_search_size};

use crate::costs::{CostFlags, MemoryFlags};
use crate::logged_run::{other_share, read, unequal_devices};
use crate::measured_search::{MeasuredSearch, starts};
use crate::output::{check_keeps, print_error, write_to};
use crate::report::{FoundCut, Report, ReportFlags};

/// Finds the plan with the shortest simulated step within a memory limit, among all schedules and automatically
/// generated plans.
///
/// Schedules with several stages (chunks) on each worker are tried with 2 chunks, or with 2 to 4 if the number can be
/// chosen. The printed bound is a lower bound on the step time of all plans with the placements of stages on workers
/// that the search tries. The bound that `simulate` prints is for one placement, and may be higher.
#[derive(Args)]
pub(crate) struct Flags {
    /// Number of workers P. The search also tries plans in which each worker has several stages (chunks)
    #[arg(long)]
    stages: usize,
    /// File with the log of a run, which a training program writes with `--log`. The costs of stages are computed from
    /// the log. The model's layers are divided into stages as evenly as possible, and this partition is printed as
    /// --cut. A model that the user has cut into stages by hand keeps its stages. Transfers take the time of the links
    /// in the log, unless --transfer, or --bytes with --bandwidth, gives their times
    #[arg(long, value_name = "FILE", conflicts_with_all = ["forward", "input_grad", "weight_grad", "backward", "optimizer"])]
    from: Option<PathBuf>,
    /// Number of micro-batches M in a step
    #[arg(long)]
    micro_batches: usize,
    /// CSV file to which the found plan is written in PyTorch's format, one row for each worker
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    #[command(flatten)]
    costs: CostFlags,
    #[command(flatten)]
    memory: MemoryFlags,
    #[command(flatten)]
    report: ReportFlags,
}

pub(crate) fn run(flags: &Flags) -> Result<()> {
    check_search_size(flags.stages, flags.micro_batches)?;
    if let Some(log) = &flags.from {
        check_keeps(log, "--csv", flags.csv.as_deref())?;
        check_keeps(log, "--svg", flags.report.svg.as_deref())?;
    }
    let (found, cut) = flags.search()?;
    if let Some(path) = &flags.csv {
        write_to(path, &found.checked.plan().to_csv())?;
    }
    let memory = flags.memory.memory(&found.checked.placement())?;
    let report = Report::new(&found.checked, &found.costs, &found.timeline, found.bound, memory.as_ref());
    report.found(found.schedule, &found.checked, cut).give(&found.timeline, &flags.report)
}

impl Flags {
    /// Searches for the best plan. Returns it with its partition of the model's layers into stages.
    fn search(&self) -> Result<(Best, FoundCut)> {
        let Some(path) = &self.from else {
            let placement = Placement::in_turn(self.stages, 1);
            let costs = self.costs.costs(&placement)?;
            let memory = self.memory.memory(&placement)?.unwrap_or_else(|| Memory::unlimited(self.stages));
            return Ok((best(self.micro_batches, &costs, &memory, usize::MAX)?, FoundCut::Unknown));
        };
        let log = read(path)?;
        let measured = Measured::of(&log)?;
        let by_hand = measured.is_cut_by_hand();
        let search = MeasuredSearch::with_flags(measured, self.stages, &self.costs, &self.memory)?;
        // The search assumes channels that hold all micro-batches. The report names the capacity that the found plan
        // needs.
        let found = search.best(self.micro_batches, self.micro_batches)?;
        let cut = search.cut(found.checked.plan())?;
        let warnings = [other_share(&log, self.stages), unequal_devices(&log, &cut)];
        warnings.iter().filter(|text| !text.is_empty()).for_each(|warning| print_error(&format!("warning: {warning}")));
        let starts = starts(&cut);
        Ok((found, if by_hand { FoundCut::ByHand } else { FoundCut::Starts(starts) }))
    }
}
