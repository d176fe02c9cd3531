//! `stageline plan`: writes the plan that a schedule generates, as text, CSV or SVG.

use std::path::PathBuf;

use clap::Args;
use stageline_schedule::{check, simulate};

use crate::costs::CostFlags;
use crate::output::{draw, picture, print, write_to};
use crate::plan_flags::Shape;

/// Writes the plan that a schedule generates as text, CSV or SVG.
#[derive(Args)]
pub(crate) struct Flags {
    #[command(flatten)]
    shape: Shape,
    /// CSV file to which the plan is written in PyTorch's format, one row for each worker; without a file name, CSV
    /// goes to the terminal
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    csv: Option<PathBuf>,
    /// Adds the sends and receives of each worker to the CSV
    #[arg(long, requires = "csv")]
    lowered: bool,
    /// SVG file to which a picture of the plan is written
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    #[command(flatten)]
    costs: CostFlags,
}

pub(crate) fn run(flags: &Flags) -> anyhow::Result<()> {
    let plan = flags.shape.plan()?;
    let capacity = plan.micro_batches();
    let checked = check(plan, capacity)?;
    let plan = checked.plan();
    // Costs are parsed first, so that invalid costs are an error before a file is written.
    let costs = flags.costs.costs(&checked.placement())?;
    if let Some(path) = &flags.csv {
        write_to(path, &if flags.lowered { checked.to_lowered_csv() } else { plan.to_csv() })?;
    }
    match (&flags.svg, &flags.csv) {
        (Some(path), _) => draw(path, &simulate(&checked, &costs)),
        (None, Some(_)) => Ok(()),
        (None, None) => {
            let timeline = simulate(&checked, &costs);
            print(&picture(&timeline))
        }
    }
}
