//! Replaces `stageline devices` in a build without the feature `devices`: the subcommand exists, and its error message
//! says how to install a build that can list devices.

use anyhow::{Result, bail};
use clap::Args;

/// Lists the devices of this host (not in this build: install with `--features devices`)
#[derive(Args)]
pub struct Flags {}

/// Runs `stageline devices` in a build without the feature `devices`, which cannot list devices. Returns an error with
/// the command to install a build that can.
///
/// # Errors
/// Always returns an error, because this build has no backend.
pub fn run(Flags {}: Flags) -> Result<()> {
    bail!(
        "this build of `stageline` cannot list devices; install one with the features of the devices to look for, such as \
         cargo install --locked --path crates/stageline-cli --features devices,wgpu"
    )
}
