//! The `stageline` command: writes, simulates, searches and checks pipeline plans, and evaluates the logs of runs.
//!
//! Each subcommand has flags and a function that runs it:
//!
//! - `plan`, `simulate`, `search`, `check`: write, simulate, find and check plans, without a run. `report` formats the
//!   results of `simulate` and `search`.
//! - `logged_run`: the subcommands `predict` and `page`, which predict and draw from the log of a run. `advise`:
//!   recommends settings from such a log.
//! - `devices`: lists the devices of this host, and `serve`: serves them to training programs on another host. Only
//!   these two need burn.
//!
//! The subcommands share some modules: `plan_flags` (the flags that choose a plan), `predicted_schedule` (the schedule
//! of a prediction) and `measured_search` (searches with the costs of a log). They also share `costs` (the flags for
//! times and sizes) and `output` (writes to files and to the terminal).

mod advise;
mod check;
mod costs;
#[cfg_attr(feature = "devices", path = "devices/enabled.rs")]
#[cfg_attr(not(feature = "devices"), path = "devices/disabled.rs")]
mod devices;
mod logged_run;
mod measured_search;
mod output;
mod plan;
mod plan_flags;
mod predicted_schedule;
mod report;
mod search;
#[cfg_attr(feature = "serve", path = "serve/enabled.rs")]
#[cfg_attr(not(feature = "serve"), path = "serve/disabled.rs")]
mod serve;
mod simulate;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Plans, simulates and searches pipeline schedules, and evaluates the logs of runs.
///
/// A step runs M micro-batches through the stages of P workers. Each worker has one stage or, in some schedules, V
/// stages, which are called chunks. The flag --stages is the number of workers P. Actions are written as in PyTorch:
/// `2F0` is the forward pass of micro-batch 0 on stage 2, `B` a whole backward pass, `I` and `W` the input and weight
/// gradient of a split backward pass. Stages are counted from 0 over all workers.
#[derive(Parser)]
#[command(name = "stageline", version)]
struct Command {
    #[command(subcommand)]
    subcommand: Subcommands,
}

#[derive(Subcommand)]
enum Subcommands {
    Plan(plan::Flags),
    Simulate(simulate::Flags),
    Search(search::Flags),
    Check(check::Flags),
    Predict(logged_run::PredictFlags),
    Advise(advise::Flags),
    Page(logged_run::PageFlags),
    Devices(devices::Flags),
    Serve(serve::Flags),
}

fn main() -> ExitCode {
    let done = match Command::parse().subcommand {
        Subcommands::Plan(flags) => plan::run(&flags),
        Subcommands::Simulate(flags) => simulate::run(&flags),
        Subcommands::Search(flags) => search::run(&flags),
        Subcommands::Check(flags) => check::run(&flags),
        Subcommands::Predict(flags) => logged_run::predict(&flags),
        Subcommands::Advise(flags) => advise::run(&flags),
        Subcommands::Page(flags) => logged_run::page(&flags),
        Subcommands::Devices(flags) => devices::run(flags),
        Subcommands::Serve(flags) => serve::run(flags),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::print_error(&format!("error: {error:#}\n"));
            ExitCode::FAILURE
        }
    }
}
