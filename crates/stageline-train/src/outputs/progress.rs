//! Shows a training run's progress: as a bar if stderr is a terminal, and otherwise as lines on the standard output. A
//! line is printed for the first and the last step, after every tenth of the run, and whenever a step ends a minute or
//! more after the last line.

use std::fmt::Display;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use indicatif::{HumanDuration, ProgressBar, ProgressStyle};
use parking_lot::Mutex;
use stageline::{StepReport, Update};

use crate::outputs::amount::Amount;
use crate::terminal::say;

/// A training run's progress, with the last step's loss, metrics and bubble. The bubble is the idle share of the total
/// worker time (workers x step time), in percent. The progress is a bar on stderr or, without a terminal, lines on the
/// standard output.
///
/// Text that is written to this value, such as warnings, appears on stderr above the bar.
#[derive(Clone)]
pub struct Progress {
    bar: ProgressBar,
    /// Amount of data per step and epoch, to display the throughput and the number of epochs; `None` before training
    /// begins.
    amount: Option<Amount>,
    /// Time of the last progress line, for runs without a terminal; `None` before the first line.
    printed: Arc<Mutex<Option<Instant>>>,
}

/// Maximum time without a progress line in a run without a terminal; the next step then prints one. Lines are also
/// printed for the first step, each tenth of the run, and the last step.
const SILENCE: Duration = Duration::from_secs(60);

impl Default for Progress {
    fn default() -> Self {
        Self { bar: ProgressBar::no_length(), amount: None, printed: Arc::default() }
    }
}

impl Progress {
    /// Sets the amount of data per step and epoch, to display the throughput and the number of epochs.
    pub fn counting(self, amount: Amount) -> Self {
        Self { amount: Some(amount), ..self }
    }

    /// Starts the progress bar of a training run of `steps` steps, `start` of which were done before a resume.
    pub fn begin(&self, start: usize, steps: usize) -> Result<()> {
        self.bar.set_style(ProgressStyle::with_template("{bar:16} {pos}/{len} {msg}, {eta} left")?);
        self.bar.set_length(steps as u64);
        self.bar.reset();
        self.bar.set_position(start as u64);
        self.bar.reset_eta();
        Ok(())
    }

    /// Advances the progress bar by one training step and shows the step's loss, metrics and bubble. `utilisation` is
    /// the step's model FLOP utilisation, from 0 to 1.
    ///
    /// # Errors
    /// Returns an error if a line cannot be written to the standard output.
    pub fn step(&self, report: &StepReport, utilisation: Option<f64>) -> Result<()> {
        let (done, all) = (report.step as u64 + 1, self.bar.length().unwrap_or(1));
        let message = match report.update {
            Update::NoWeight => "skipped, because the batch has no target that is trained on".to_owned(),
            _ => self.figures(report, utilisation),
        };
        self.bar.set_message(message.clone());
        self.bar.inc(1); // advances before `eta` is read
        // Without a terminal, the bar is hidden, and lines show the progress.
        let is_due = self.printed.lock().is_none_or(|printed| printed.elapsed() >= SILENCE);
        if self.bar.is_hidden() && (is_due || done.is_multiple_of(all.div_ceil(10).max(1)) || done == all) {
            *self.printed.lock() = Some(Instant::now());
            say(format_args!("step {done}/{all}: {message}{}", self.further(report)))?;
        }
        Ok(())
    }

    /// Formats a step's figures for the bar's message: loss, throughput, bubble, metrics and model FLOP utilisation.
    fn figures(&self, report: &StepReport, utilisation: Option<f64>) -> String {
        let mut message = format!("loss {:.3}", report.loss);
        if let Some(amount) = self.amount {
            let (unit, seconds) = (amount.unit(), report.step_time.as_secs_f64());
            message += &format!(", {:.0} {unit}/s", amount.per_step() / seconds);
        }
        message += &format!(
            ", bubble {:.1}% by the {} (ideal {:.1}%, simulated {:.1}%)",
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
        message
    }

    /// Formats the figures that only a printed line shows, not the bar: learning rate, gradient norm, number of epochs
    /// and time left.
    fn further(&self, report: &StepReport) -> String {
        let mut text = String::new();
        if let Some(rate) = report.stages.last().and_then(|stage| stage.learning_rate) {
            text += &format!(", learning rate {rate:.2e}");
        }
        if let Update::Stepped { gradient_norm, .. } = report.update {
            text += &format!(", gradient norm {gradient_norm:.3}");
        }
        if let Some(epochs) = self.amount.and_then(|amount| amount.epochs(report.step + 1)) {
            text += &format!(", epoch {epochs:.2}");
        }
        let left = self.bar.eta();
        if left.as_secs() > 0 {
            text += &format!(", {} left", HumanDuration(left));
        }
        text
    }

    /// Prints a line on the standard output, above the bar if there is one.
    ///
    /// # Errors
    /// Returns an error if the line cannot be written.
    pub fn say(&self, line: impl Display) -> Result<()> {
        self.bar.suspend(|| say(line))
    }

    /// Ends the progress bar, unless it has already ended; the bar stays visible at the last trained step.
    pub fn end(&self) {
        if !self.bar.is_finished() {
            self.bar.abandon();
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
