//! Stands for `stageline serve` in a build without the feature `serve`, which needs burn.

use anyhow::{Result, bail};
use clap::Args;

/// Serves this host's devices to trainings elsewhere (this build cannot: install it with `--features serve`)
#[derive(Args)]
pub struct Flags {
    #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

/// Says how to get a build that can serve.
///
/// # Errors
/// Always.
pub fn run(Flags { rest: _ }: Flags) -> Result<()> {
    bail!(
        "this build of `stageline` has no `serve`; install one that has it: \
         cargo install --locked --path crates/stageline-cli --features serve"
    )
}
