//! Lines for the user, on the standard output ([`say`]) and on stderr ([`tell`], [`first_of`]).

use std::fmt::Display;
use std::io::{self, Write};

use anyhow::{Context, Error, Result};

/// Prints a line on the standard output. A program should print its own lines with this function, too. If `println!`
/// cannot write, it panics, and a training would then end without its last checkpoint.
///
/// # Errors
/// Returns an error if the line cannot be written, for example because the reader of a pipe has ended or a disk is
/// full.
pub fn say(line: impl Display) -> Result<()> {
    writeln!(io::stdout(), "{line}")
        .context("the standard output cannot be written; direct it to a file with room, or to a reader that stays")
}

/// Prints a line on stderr. If stderr cannot be written, the line is lost: there is no place left to say so.
pub(crate) fn tell(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Returns the first of several errors, which may be the cause of the later ones. These are printed on stderr.
pub(crate) fn first_of(errors: impl IntoIterator<Item = Error>) -> Result<()> {
    let mut errors = errors.into_iter();
    let first = errors.next();
    errors.for_each(|later| tell(format_args!("after the error: {later:#}")));
    first.map_or(Ok(()), Err)
}
