//! Writes all measurements of the bubble bench into a folder: as CSV, JSON, a Markdown table, an HTML page, and
//! pictures.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::bubble::flags::Flags;
use crate::bubble::pictures::{page, pictures};
use crate::bubble::point::{Point, unsettled};

/// The header above the lines that the bubble bench prints, one for each measured case. The column `s` is the size of a
/// micro-batch in samples, and the column `warm-up` is the number of steps before the measured ones.
pub const HEADER: &str = "schedule                P    M    s   step ms   bubble    ideal simulated       per s predicted  live warm-up  bubble by";

/// Writes the bubble bench's measurements as CSV, JSON, Markdown, HTML and SVG files into the folder of the flag
/// `--output`; does nothing without that flag.
///
/// # Errors
/// Returns an error if a file cannot be written.
pub fn write(flags: &Flags, points: &[Point]) -> Result<()> {
    let Some(folder) = &flags.output else { return Ok(()) };
    let write = |path: &Path, text: String| fs::write(path, text).with_context(|| path.display().to_string());
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    write(&folder.join("bubble.csv"), csv(points))?;
    write(&folder.join("bubble.json"), serde_json::to_string_pretty(points)? + "\n")?;
    write(&folder.join("bubble.md"), markdown(flags, points))?;
    write(&folder.join("bubble.html"), page(flags, points))?;
    for (name, svg) in pictures(flags, points) {
        write(&folder.join(format!("{name}.svg")), svg)?;
    }
    Ok(())
}

fn csv(points: &[Point]) -> String {
    let mut csv = String::from(
        "schedule,stages,micro_batches,micro_batch_size,virtual,kind,clock,step_seconds,step_predicted_seconds,bubble,\
         bubble_ideal,bubble_simulated,throughput,throughput_predicted,warm_up_steps,warm_up_spread,\
         warm_up_settled,peak_live,peak_bytes",
    );
    let Some(first) = points.first() else { return csv + "\n" };
    for (cause, _) in first.causes {
        let _ = write!(csv, ",idle_{cause}");
    }
    let or_empty = |value: Option<f64>| value.map_or_else(String::new, |value| value.to_string());
    for point in points {
        let Point { schedule, stages, micro_batches, micro_batch_size, r#virtual, kind, clock, .. } = point;
        let Point { step_seconds, bubble, bubble_ideal, bubble_simulated, throughput, peak_live, .. } = point;
        let _ = write!(
            csv,
            "\n{schedule},{stages},{micro_batches},{micro_batch_size},{virtual},{kind},{clock},{step_seconds},{},{bubble},\
             {bubble_ideal},{bubble_simulated},{throughput},{},{},{},{},{peak_live},{}",
            or_empty(point.step_predicted_seconds),
            or_empty(point.throughput_predicted),
            point.warm_up_steps,
            point.warm_up_spread,
            point.warm_up_settled,
            point.peak_bytes.map_or_else(String::new, |bytes| bytes.to_string()),
        );
        for (_, share) in point.causes {
            let _ = write!(csv, ",{share}");
        }
    }
    csv + "\n"
}

/// Returns the bubble bench's measurements as a Markdown table with one row for each measurement. If a warm-up did not
/// settle, its number of steps has an asterisk, which a line below the table explains.
fn markdown(flags: &Flags, points: &[Point]) -> String {
    let mut table = String::from(
        "| schedule | P | M | samples of a micro-batch | step, ms | bubble | ideal | simulated | per second | predicted | live | warm-up |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for point in points {
        let predicted = point.throughput_predicted.map_or_else(String::new, |predicted| format!("{predicted:.1}"));
        let _ = writeln!(
            table,
            "| {} | {} | {} | {} | {:.2} | {:.4} | {:.4} | {:.4} | {:.1} | {predicted} | {} | {} |",
            point.schedule,
            point.stages,
            point.micro_batches,
            point.micro_batch_size,
            1e3 * point.step_seconds,
            point.bubble,
            point.bubble_ideal,
            point.bubble_simulated,
            point.throughput,
            point.peak_live,
            point.warm_up()
        );
    }
    if let Some(line) = unsettled(flags.warm_up(), points) {
        // Without the backslash, the asterisk would begin a list.
        let _ = writeln!(table, "\n\\{line}");
    }
    table
}
