//! Writes a run's output files: a log, a trace, TensorBoard event files, and an HTML page.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufReader, BufWriter, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use burn::tensor::Device;
use serde_json::Value;
use stageline::StepReport;
use stageline_report::record::{Line, Noise, Run, Step, Validation};
use stageline_report::{RunLog, TensorBoard, Trace, Unit, run_page};

use crate::outputs::amount::Amount;
use crate::outputs::log_file;
use crate::outputs::paths::{try_out, unwritable};
use crate::outputs::record;
use crate::outputs::smoothing::SmoothedNoise;
use crate::terminal::first_of;

/// Number of consecutive training steps in the trace file, beginning with the step of `--draw-step`.
const TRACED: usize = 5;

/// Paths of a run's output files: log, trace, TensorBoard events and HTML page.
#[derive(Clone, Default)]
pub struct Outputs {
    /// The file for the log, with one JSON object per line; `None` writes no log.
    pub log: Option<PathBuf>,
    /// The file for the trace of five training steps; `None` writes no trace.
    pub trace: Option<PathBuf>,
    /// The folder for TensorBoard event files; `None` writes none.
    pub tensorboard: Option<PathBuf>,
    /// The file for the HTML page; `None` writes no page.
    pub report: Option<PathBuf>,
    /// Zero-based index, from the start of the run, of the step whose timeline the log and the HTML page show. A
    /// shorter run shows its last step. If only some steps are synchronised (workers wait for their devices after every
    /// action, so that times are exact), the first synchronised step from this one on is shown, or the last one if none
    /// follows.
    pub draw_step: usize,
}

impl Outputs {
    /// Whether log records are needed: for the log file, or for the HTML page, which is made from them.
    pub fn have_lines(&self) -> bool {
        self.log.is_some() || self.report.is_some()
    }
}

/// Figures for a step's log record that the pipeline's [`StepReport`] lacks: the model FLOP utilisation, the wait for
/// the batch, and the amount of data.
#[derive(Clone, Copy)]
pub struct Figures {
    /// The step's model FLOP utilisation (MFU), from 0 to 1. It is `None` if the peak FLOP/s of the devices or the
    /// model's FLOPs are unknown.
    pub utilisation: Option<f64>,
    /// The time that the training step waited for its batch.
    pub waited: Duration,
    /// The amount of data per step and epoch, from which the log's tokens per second and number of epochs are computed.
    pub amount: Amount,
}

/// A run's open output files: its log, its trace, its TensorBoard events and its HTML page.
pub struct Log {
    outputs: Outputs,
    file: Option<BufWriter<File>>,
    /// The log so far, in memory, to make the HTML page from it. `None` without a page, or if the page is made from the
    /// log file.
    text: Option<Vec<u8>>,
    trace: Trace,
    board: Option<TensorBoard<BufWriter<File>>>,
    /// Zero-based index of the step whose timeline the log and the HTML page show, and with which the trace begins,
    /// counted from the start of the training (including runs before a resume).
    drawn: usize,
    /// The interval, in steps, between synchronised steps, in which workers wait for their devices after every action;
    /// 0 if no step is synchronised.
    synchronise_every: usize,
    /// Running averages, over this run's steps, of the gradient's squared norm and its noise.
    noise: SmoothedNoise,
    /// This host's GPUs that run stages, without duplicates; their allocated device memory is logged.
    gpus: Vec<Device>,
}

impl Log {
    /// Creates a run's output files. The log's first line is `run`, a description of the run.
    ///
    /// `steps` is the range of steps to train. A resumed run, whose range does not begin at 0, appends to its log; any
    /// other run replaces an existing log. Every `synchronise_every`-th step is synchronised (workers wait for their
    /// devices after every action); 0 synchronises none. `gpus` are the GPUs whose allocated memory is logged.
    ///
    /// # Errors
    /// Returns an error if an output file cannot be written. Files that are written only after the last step are
    /// checked too. Also returns an error if the log would replace a file that is not a log, or the log of a run that
    /// goes on.
    pub fn create(
        outputs: Outputs,
        run: Run,
        steps: Range<usize>,
        synchronise_every: usize,
        gpus: Vec<Device>,
    ) -> Result<Self> {
        for path in [&outputs.trace, &outputs.report].into_iter().flatten() {
            try_out(path).with_context(|| unwritable(path))?;
        }
        let file = outputs.log.as_deref().map(|path| log_file::open(path, steps.start > 0)).transpose()?;
        let in_folder = |folder: &PathBuf| TensorBoard::in_folder(folder, now()).with_context(|| unwritable(folder));
        let board = outputs.tensorboard.as_ref().map(in_folder).transpose()?;
        let drawn = drawn_step(steps, outputs.draw_step, synchronise_every);
        let (trace, noise) = (Trace::new(), SmoothedNoise::default());
        // A long log is read back from its file, unless the file is a pipe, or is standard output, which has other
        // lines too.
        let is_own = |path: &Path| path.is_file() && !log_file::is_of_system(path);
        let is_in_file = outputs.log.as_deref().is_some_and(is_own);
        let text = (outputs.report.is_some() && !is_in_file).then(Vec::new);
        let mut log = Self { outputs, file, text, trace, board, drawn, synchronise_every, noise, gpus };
        log.write(&Line::Run(Box::new(run)))?;
        Ok(log)
    }

    /// Adds a training step's report, figures and metrics to the log and the TensorBoard files. Five steps also go to
    /// the trace. Metrics that are NaN or infinite are left out.
    ///
    /// # Errors
    /// Returns an error if an output file cannot be written.
    pub fn step(&mut self, report: &StepReport, figures: Figures, mut metrics: BTreeMap<String, f64>) -> Result<()> {
        if self.outputs.trace.is_some() && (self.drawn..self.drawn + TRACED).contains(&report.step) {
            let added =
                self.trace.add(report.step, report.step_time.as_secs_f64(), report.recording.of_replica(0).events());
            if !added {
                tracing::warn!(step = report.step, "the trace has no room for this step: it has too many actions");
            }
        }
        if self.file.is_none() && self.board.is_none() && self.outputs.report.is_none() {
            return Ok(());
        }
        let mut step = record::step(report, report.step == self.drawn);
        step.batch_wait_seconds = figures.waited.as_secs_f64();
        // A step whose targets are all masked out computes nothing.
        let computed = step.has_target();
        step.model_flop_utilisation = figures.utilisation.filter(|_| computed);
        step.tokens_per_s = if computed { figures.amount.per_step() / step.step_seconds } else { 0.0 };
        step.epoch = figures.amount.epochs(report.step + 1);
        if step.synchronised {
            // In other steps, reading the memory would wait for all queued GPU work. If steps overlap, the memory
            // includes tensors of the next step, which is already running.
            step.device_memory = record::device_memory(&self.gpus);
        }
        if let (Some(noise), Some(gradient_norm)) = (&mut step.noise, step.gradient_norm) {
            self.noise.smooth(noise, gradient_norm);
        }
        // JSON has no NaN and no infinity.
        metrics.retain(|_, value| value.is_finite());
        step.metrics = metrics;
        self.scalars(&step, figures.amount.unit())?;
        self.write(&Line::Step(Box::new(step)))
    }

    /// Writes a training step's scalars to the TensorBoard files, if the run has any.
    fn scalars(&mut self, step: &Step, unit: Unit) -> Result<()> {
        let Some(board) = &mut self.board else { return Ok(()) };
        // On a GPU, bubbles are exact only in synchronised steps, in which workers wait for their devices after every
        // action. Synchronisation slows a step down, so throughput is measured in the other steps.
        let (timed, free) = match self.synchronise_every {
            0 | 1 => (true, true),
            _ => (step.synchronised, !step.synchronised),
        };
        let [measured, simulated] =
            ["measured", "simulated"].map(|bubble| format!("bubble/{bubble}, {}", step.clock()));
        let rate = format!("{unit} a second");
        let figures = [
            ("loss", step.loss),
            ("learning rate", step.learning_rate),
            ("gradient norm", step.gradient_norm),
            ("epoch", step.epoch),
            (&rate, (free && step.has_target()).then_some(step.tokens_per_s)),
            ("model FLOP utilisation", step.model_flop_utilisation),
            (&measured, timed.then_some(step.bubble)),
            (&simulated, timed.then_some(step.bubble_simulated)),
            ("bubble/in theory", Some(step.bubble_ideal)),
        ];
        let peak = step.memory.iter().map(|memory| memory.peak).max();
        let figures = figures.into_iter().chain([("memory/peak bytes of a worker", peak.map(|peak| peak as f64))]);
        let noise = step.noise.iter().flat_map(noise_scales);
        let metrics = step.metrics.iter().map(|(name, value)| (format!("metric/{name}"), *value));
        let of_devices = step.device_memory.iter().flat_map(|memory| {
            let tag = |kind: &str| format!("memory/bytes {kind} on {}", memory.device);
            [(tag("in use"), memory.in_use as f64), (tag("reserved"), memory.reserved as f64)]
        });
        let more: Vec<_> = metrics.chain(noise).chain(of_devices).collect();
        let figures = figures.filter_map(|(tag, figure)| Some((tag, figure?)));
        let figures: Vec<_> = figures.chain(more.iter().map(|(tag, value)| (tag.as_str(), *value))).collect();
        board
            .scalars(now(), step.step, &figures)
            .context(lost("TensorBoard's files", self.outputs.tensorboard.as_deref()))
    }

    /// Writes the loss and the metrics on held-out samples to the log and to TensorBoard.
    ///
    /// # Errors
    /// Returns an error if an output file cannot be written.
    pub fn validation(&mut self, mut validation: Validation) -> Result<()> {
        validation.metrics.retain(|_, value| value.is_finite());
        if let Some(board) = &mut self.board {
            let metrics = validation.metrics.iter().map(|(name, value)| (format!("validation {name}"), *value));
            let figures: Vec<_> =
                [("validation loss".to_owned(), validation.validation_loss)].into_iter().chain(metrics).collect();
            let figures: Vec<_> = figures.iter().map(|(tag, value)| (tag.as_str(), *value)).collect();
            let lost = || lost("TensorBoard's files", self.outputs.tensorboard.as_deref());
            board.scalars(now(), validation.after_steps, &figures).with_context(lost)?;
        }
        self.write(&Line::Validation(validation))
    }

    /// Completes the log of a run that has finished: appends `last`, the final result, and then writes the trace file
    /// and the HTML page.
    ///
    /// # Errors
    /// Returns an error if an output file cannot be written.
    pub fn finish(mut self, last: Value) -> Result<()> {
        let written = self.write(&Line::Other(last));
        first_of([written, self.close()].into_iter().filter_map(Result::err))
    }

    /// Writes the trace file and the HTML page, if requested, at the end of any run, even one that ended early.
    ///
    /// # Errors
    /// Returns an error if one of the two cannot be written. The other is written all the same.
    pub fn close(&self) -> Result<()> {
        let trace = |path: &PathBuf| fs::write(path, self.trace.json()).with_context(|| unwritable(path));
        let page = |path: &PathBuf| {
            let log = match (&self.text, &self.outputs.log) {
                (None, Some(log)) => {
                    let file = File::open(log).with_context(|| format!("cannot read {}", log.display()))?;
                    RunLog::read(BufReader::new(file))?
                }
                (text, _) => RunLog::read(text.as_deref().unwrap_or_default())?,
            };
            fs::write(path, run_page(&log)).with_context(|| unwritable(path))
        };
        let written = [self.outputs.trace.as_ref().map(trace), self.outputs.report.as_ref().map(page)];
        first_of(written.into_iter().flatten().filter_map(Result::err))
    }

    /// Appends a line to the log and flushes it to the operating system, so that the log is complete even if the
    /// process crashes.
    fn write(&mut self, line: &Line) -> Result<()> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        if let Some(file) = &mut self.file {
            file.write_all(&text).and_then(|()| file.flush()).context(lost("the log", self.outputs.log.as_deref()))?;
        }
        self.text.iter_mut().for_each(|so_far| so_far.extend(&text));
        Ok(())
    }
}

/// Returns TensorBoard tags and values for a step's gradient noise scales: for the whole model and for each stage, one
/// of this step alone, and one smoothed over several steps. Unknown scales are left out.
fn noise_scales(noise: &Noise) -> Vec<(String, f64)> {
    let tagged = |name: &str, alone: Option<f64>, smoothed: Option<f64>| {
        [("of the step", alone), ("smoothed", smoothed)].map(|(kind, scale)| Some((format!("{name}/{kind}"), scale?)))
    };
    let of_stages =
        noise.stages.iter().enumerate().flat_map(|(stage, found)| {
            tagged(&format!("noise scale of stage {stage}"), found.scale, found.smoothed_scale)
        });
    tagged("noise scale", noise.scale, noise.smoothed_scale).into_iter().chain(of_stages).flatten().collect()
}

/// Returns the index, counted from the start of the training, of the step whose timeline the log and the HTML page
/// show. `steps` is this run's range of such indices. `draw_step` is the requested step ([`Outputs::draw_step`]),
/// counted from the start of this run. If only every `synchronise_every`-th step is synchronised (workers then wait for
/// their devices after every action), the result is one of these steps, if the run has one; 0 synchronises none.
fn drawn_step(steps: Range<usize>, draw_step: usize, synchronise_every: usize) -> usize {
    let last = steps.end.saturating_sub(1);
    let asked = steps.start.saturating_add(draw_step);
    let synchronised =
        last.checked_rem(synchronise_every).map(|after| last - after).filter(|step| steps.contains(step));
    match synchronised {
        Some(last) => asked.min(last).next_multiple_of(synchronise_every).min(last),
        None => asked.min(last),
    }
}

/// Returns the error message for an output that fails in the middle of a training run. `output` is the output's name,
/// such as `the log`, and `path` is its path, if it has one.
fn lost(output: &str, path: Option<&Path>) -> String {
    let path = path.map(|path| format!(" {}", path.display())).unwrap_or_default();
    format!("cannot write {output}{path}; make room on its disk, and resume from the last checkpoint, if there is one")
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drawn_step_is_in_the_run_and_synchronised_if_a_step_is() {
        assert_eq!(drawn_step(0..100, 7, 0), 7);
        assert_eq!(drawn_step(0..5, 7, 0), 4);
        assert_eq!(drawn_step(0..100, 7, 10), 10);
        assert_eq!(drawn_step(0..100, 97, 10), 90);
        assert_eq!(drawn_step(20..40, 7, 10), 30);
        // This resumed run has few steps, none of which is synchronised.
        assert_eq!(drawn_step(21..24, 0, 10), 21);
        assert_eq!(drawn_step(21..24, 7, 10), 23);
        assert_eq!(drawn_step(20..40, usize::MAX, 10), 30);
        assert_eq!(drawn_step(20..40, usize::MAX, 0), 39);
    }
}
