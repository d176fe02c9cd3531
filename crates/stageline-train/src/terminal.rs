//! Lines for the user on the standard output ([`say`]).

use std::fmt::Display;
use std::io::{self, Write};

use anyhow::{Context, Result};

/// Prints a line on the standard output.
///
/// # Errors
/// Returns an error if the line cannot be written, for example because the reader of a pipe has ended or a disk is full.
/// `println!` would panic instead, and a training would end without its last checkpoint.
pub fn say(line: impl Display) -> Result<()> {
    writeln!(io::stdout(), "{line}")
        .context("the standard output cannot be written; direct it to a file with room, or to a reader that stays")
}
