//! Writes the subcommands' text and SVG output to files or to the terminal.

use std::io::{ErrorKind, Write};
use std::path::Path;

use anyhow::{Context, ensure};
use stageline_schedule::Timeline;

/// Maximum number of bars in an SVG picture of a timeline, because viewers do not open larger pictures. A bar is one
/// action: a forward or backward pass, or the input or weight gradient of a split backward pass.
const MOST_BARS: usize = 200_000;

/// Draws a simulated timeline as text. A column is as long as the shortest action (such as a forward pass). If this
/// would take more than 400 columns, columns are longer, and a last line says that actions may be missing. Another line
/// counts the actions that take no time, because they have no column.
pub(crate) fn picture(timeline: &Timeline) -> String {
    const MOST_COLUMNS: f64 = 400.0;
    let lengths = timeline.rows().iter().flatten().map(|span| span.end - span.start).filter(|length| *length > 0.0);
    let shortest = lengths.fold(f64::INFINITY, f64::min);
    let shortest = if shortest.is_finite() { shortest } else { 1.0 };
    let slot = shortest.max(timeline.flush() / MOST_COLUMNS);
    let mut picture = timeline.grid(slot);
    if slot > shortest {
        picture += "the columns are too few for all passes, so some are missing or too long";
        picture += if bars(timeline) <= MOST_BARS { "; --svg FILE draws all of them\n" } else { "\n" };
    }
    let without_time = timeline.rows().iter().flatten().filter(|span| span.end <= span.start).count();
    if without_time > 0 {
        picture += &format!("passes that take no time, and are therefore missing: {without_time}\n");
    }
    picture
}

/// Writes a picture of a simulated timeline to an SVG file at `path`. A timeline with more than 200,000 bars is an
/// error.
pub(crate) fn draw(path: &Path, timeline: &Timeline) -> anyhow::Result<()> {
    let bars = bars(timeline);
    ensure!(bars <= MOST_BARS, "{bars} computes are too many for a picture; draw a plan of at most {MOST_BARS}");
    write_to(path, &timeline.svg("ms"))
}

fn bars(timeline: &Timeline) -> usize {
    timeline.rows().iter().map(Vec::len).sum()
}

/// Writes `text` to the file at `path`, or to the standard output if the path is `-`. A pipe that its reader closes
/// early is not an error.
pub(crate) fn write_to(path: &Path, text: &str) -> anyhow::Result<()> {
    if path != "-" {
        return std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()));
    }
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot write to the standard output"),
    }
}

/// Escapes the invisible characters (such as control characters) of a string from a log, so that it cannot control the
/// terminal when printed.
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

/// Returns an error if the output file of the flag `flag` is the file `input` that the command reads, which writing the
/// output would replace.
pub(crate) fn check_keeps(input: &Path, flag: &str, output: Option<&Path>) -> anyhow::Result<()> {
    let Some(output) = output.filter(|output| *output != "-") else { return Ok(()) };
    // A terminal or a pipe may be both input and output.
    let is_input = input.is_file() && same_file(input, output).unwrap_or(false);
    ensure!(
        !is_input,
        "{flag} {}: the output would replace the file that is read; give another file",
        output.display()
    );
    Ok(())
}

/// Whether two paths name the same file. Returns an error if one of them does not exist.
fn same_file(one: &Path, other: &Path) -> std::io::Result<bool> {
    Ok(one.canonicalize()? == other.canonicalize()?)
}

/// Writes `text` to the standard output. A pipe that its reader closes early is not an error.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    write_to(Path::new("-"), text)
}

/// Writes a warning or an error, with its line break, to the standard error. If this fails, for example because the
/// disk is full, nothing is left to report it to, so the failure is ignored.
pub(crate) fn print_error(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}
