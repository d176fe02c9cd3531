//! The `stageline` command: pipeline schedules as plans, simulated, searched for and checked.
//!
//! - `shape`: which schedule, how many stages and micro-batches.
//! - `costs`: what everything takes and holds.
//! - `run`: what the log of a run says: predictions, a page; `advise`: what to change.
//! - `serve`: this host's devices, for a training elsewhere; the only one that needs burn.
//! - `plan`, `simulate`, `search`, `check`: a subcommand each; `report`: what the middle two say; `output`:
//!   where it goes.

mod advise;
mod check;
mod costs;
mod output;
mod plan;
mod report;
mod run;
mod search;
#[cfg_attr(feature = "serve", path = "serve/enabled.rs")]
#[cfg_attr(not(feature = "serve"), path = "serve/disabled.rs")]
mod serve;
mod shape;
mod simulate;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Pipeline schedules: plans, simulations, searches and checks.
///
/// P stages, one a worker, run M micro-batches a step. Schedules with chunks cut every stage in V chunks and spread
/// these over the workers. An action is written as in PyTorch: `2F0` is the forward of micro-batch 0 on stage 2, `B` a
/// whole backward, `I` and `W` its input-gradient and weight-gradient halves; with chunks, stages count chunks.
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
    Predict(run::PredictFlags),
    Advise(advise::Flags),
    Page(run::PageFlags),
    Serve(serve::Flags),
}

fn main() -> ExitCode {
    let done = match Command::parse().subcommand {
        Subcommands::Plan(flags) => plan::run(&flags),
        Subcommands::Simulate(flags) => simulate::run(&flags),
        Subcommands::Search(flags) => search::run(&flags),
        Subcommands::Check(flags) => check::run(&flags),
        Subcommands::Predict(flags) => run::predict(&flags),
        Subcommands::Advise(flags) => advise::run(&flags),
        Subcommands::Page(flags) => run::page(&flags),
        Subcommands::Serve(flags) => serve::run(flags),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
