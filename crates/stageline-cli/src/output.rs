//! Writes the texts and SVG pictures of the subcommands to files or to the terminal.

use std::io::{ErrorKind, Write};
use std::path::Path;

use anyhow::{Context, ensure};
use stageline_schedule::Timeline;

/// The largest number of bars in an SVG picture of a timeline, because viewers do not open larger pictures. A bar is a
/// forward pass, a backward pass or half of a backward pass.
const MOST_BARS: usize = 200_000;

/// Returns the time in ms of one column of characters in a timeline that is printed as text. It is the duration of the
/// shortest forward pass, backward pass or half of a backward pass. So that lines stay readable, it is at least a 400th
/// of the time until all workers have ended their passes. If no pass takes time, it is 1 ms.
pub(crate) fn grid_slot(timeline: &Timeline) -> f64 {
    const MOST_COLUMNS: f64 = 400.0;
    let lengths = timeline.rows().iter().flatten().map(|span| span.end - span.start).filter(|length| *length > 0.0);
    let shortest = lengths.fold(f64::INFINITY, f64::min);
    let slot = shortest.max(timeline.flush() / MOST_COLUMNS);
    if slot.is_finite() && slot > 0.0 { slot } else { 1.0 }
}

/// Writes a picture of a simulated timeline to an SVG file at `path`. A timeline with more than 200,000 bars is an
/// error.
pub(crate) fn draw(path: &Path, timeline: &Timeline) -> anyhow::Result<()> {
    let bars: usize = timeline.rows().iter().map(Vec::len).sum();
    ensure!(bars <= MOST_BARS, "{bars} computes are too many for a picture; draw a plan of at most {MOST_BARS}");
    write_to(path, &timeline.svg("ms"))
}

/// Writes `text` to the file at `path`, or to the standard output if the path is `-`. A pipe that its reader closes
/// early is no error.
pub(crate) fn write_to(path: &Path, text: &str) -> anyhow::Result<()> {
    let written = if path == "-" { std::io::stdout().write_all(text.as_bytes()) } else { std::fs::write(path, text) };
    match written {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.with_context(|| format!("cannot write {}", path.display())),
    }
}

/// Returns a text from a log with its invisible characters escaped, so that it cannot control the terminal on which it
/// is printed.
pub(crate) fn printable(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\'' | '"' | '\\' => escaped.push(character),
            _ => escaped.extend(character.escape_debug()),
        }
    }
    escaped
}

/// Writes `text` to the standard output. A pipe that its reader closes early is no error.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    write_to(Path::new("-"), text)
}
