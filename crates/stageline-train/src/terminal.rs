//! Prints lines for the user, on the standard output ([`say`]) and on stderr ([`tell`], [`first_of`]).

use std::fmt::Display;
use std::io::{self, Write};

use anyhow::{Context, Error, Result};

/// Prints a line on the standard output, or returns an error. Programs should use it for their own lines instead of
/// `println!`, which panics if it cannot write, so that the training run would end without its last checkpoint.
///
/// # Errors
/// Returns an error if the line cannot be written, for example because a pipe's reader has exited or a disk is full.
pub fn say(line: impl Display) -> Result<()> {
    writeln!(io::stdout(), "{line}")
        .context("the standard output cannot be written; direct it to a file with room, or to a reader that stays")
}

/// Prints a line on stderr, ignoring errors, because there is nowhere left to report them.
pub(crate) fn tell(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Returns the first of several errors, as the likely cause of the others, and prints the others on stderr.
pub(crate) fn first_of(errors: impl IntoIterator<Item = Error>) -> Result<()> {
    let mut errors = errors.into_iter();
    let first = errors.next();
    errors.for_each(|later| tell(format_args!("after the error: {later:#}")));
    first.map_or(Ok(()), Err)
}
