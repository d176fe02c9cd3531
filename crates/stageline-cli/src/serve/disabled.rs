//! Replaces `stageline serve` in a build without the feature `serve`: the subcommand exists, and its error message says
//! how to install a build that can serve devices.

use anyhow::{Result, bail};
use clap::Args;

/// Serves devices of this host to a training run on another host (not in this build: install with `--features serve`)
#[derive(Args)]
pub struct Flags {
    #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

/// Runs `stageline serve` in a build without the feature `serve`, which cannot serve devices. Returns an error with the
/// command to install a build that can.
///
/// # Errors
/// Always returns an error, because this build has no server.
pub fn run(Flags { rest: _ }: Flags) -> Result<()> {
    bail!(
        "this build of `stageline` cannot serve devices; install one with the feature `serve`: \
         cargo install --locked --path crates/stageline-cli --features serve"
    )
}
