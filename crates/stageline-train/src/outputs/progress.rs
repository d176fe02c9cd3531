//! Shows the progress of a training run: a progress bar if stderr is a terminal. Otherwise it prints lines on the
//! standard output: one for the first step, and then about ten over the whole run.

use std::io::{self, Write};

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};
use stageline::StepReport;

use crate::terminal::say;

/// A progress bar with results of the last step: its loss, its metrics and its bubbles. A bubble is the idle part of
/// the total stage time (workers x step time), shown in percent.
///
/// Text that is written to it, such as warnings, appears on stderr above the bar.
#[derive(Clone)]
pub struct Progress {
    bar: ProgressBar,
    /// The unit of the throughput that the progress bar shows, as a plural: `tokens` or `samples`.
    counted: &'static str,
}

impl Default for Progress {
    fn default() -> Self {
        Self { bar: ProgressBar::no_length(), counted: "tokens" }
    }
}

impl Progress {
    /// Sets the unit of the throughput that the progress bar shows, as a plural: `tokens` (the default) or `samples`.
    pub fn counting(self, counted: &'static str) -> Self {
        Self { counted, ..self }
    }

    /// Starts the progress bar. The training run has `steps` steps, and `start` of them are already done.
    pub fn begin(&self, start: usize, steps: usize) -> Result<()> {
        self.bar.set_style(ProgressStyle::with_template("{bar:16} {pos}/{len} {msg}, {eta} left")?);
        self.bar.set_length(steps as u64);
        self.bar.reset();
        self.bar.set_position(start as u64);
        self.bar.reset_eta();
        Ok(())
    }

    /// Advances the progress bar by a training step and shows the loss, metrics and bubbles of that step. `utilisation`
    /// is the step's model FLOP utilisation, from 0 to 1.
    ///
    /// # Errors
    /// Returns an error if a line cannot be written to the standard output.
    pub fn step(&self, report: &StepReport, utilisation: Option<f64>) -> Result<()> {
        let mut message = format!(
            "loss {:.3}, {:.0} {}/s, bubble {:.1}% by the {} (ideal {:.1}%, simulated {:.1}%)",
            report.loss,
            report.weight() / report.step_time.as_secs_f64(),
            self.counted,
            100.0 * report.bubble(),
            report.recording.clock(),
            100.0 * report.ideal_bubble(),
            100.0 * report.recording.simulated_bubble(),
        );
        for metric in &report.metrics {
            message += &format!(", {} {:.3}", metric.name, metric.value);
        }
        if let Some(utilisation) = utilisation {
            message += &format!(", {:.1}% of the peak FLOP/s", 100.0 * utilisation);
        }
        let (done, all) = (report.step as u64 + 1, self.bar.length().unwrap_or(1));
        // Without a terminal there is no bar, so lines show the progress: one for the first step, and ten in all after
        // it.
        let is_first = self.bar.message().is_empty();
        if self.bar.is_hidden() && (is_first || done.is_multiple_of(all.div_ceil(10).max(1)) || done == all) {
            say(format_args!("step {done}/{all}: {message}"))?;
        }
        self.bar.set_message(message);
        self.bar.inc(1);
        Ok(())
    }

    /// Ends the progress bar, if it has not ended. It stays visible on the terminal.
    pub fn end(&self) {
        if !self.bar.is_finished() {
            self.bar.finish();
        }
    }
}

impl Write for Progress {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.bar.suspend(|| io::stderr().write_all(text))?;
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}
