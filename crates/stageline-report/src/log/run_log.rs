//! Reads the log of a run into a [`RunLog`], and summarises its steps: step time, bubble, throughput, main cause of
//! idle time.

use std::io::BufRead;

use serde_json::Value;
use stageline_schedule::Plan;

use super::error::LogError;
use super::median::median;
use super::record::{Account, Line, Run, Step, Validation, clock};

/// The parsed log of a run, the input of pages, traces and predictions: the run's description, plan, training steps and
/// validations.
#[derive(Clone, Debug, PartialEq)]
pub struct RunLog {
    /// The first line of the log, which describes the run: its plan, layers, settings and machine.
    pub run: Run,
    /// The plan that the workers of the run followed: the order of forward and backward passes of each worker.
    pub plan: Plan,
    /// The measurements of the training steps, in the order of the steps.
    pub steps: Vec<Step>,
    /// The validations of the run, each with its loss and metrics, in the order of the steps.
    pub validations: Vec<Validation>,
    /// Zero-based number of the first step that `run` describes. A resumed run writes a new description, whose plan,
    /// layers and devices may differ from those of earlier steps.
    pub resumed_at: usize,
}

impl RunLog {
    /// Reads the log of a run from its lines. Skips an incomplete last line, for example after a crash. If the run was
    /// resumed from an earlier step, its new steps and validations replace all those that the log has from that step
    /// on.
    ///
    /// # Errors
    /// Returns [`LogError`] in these cases:
    ///
    /// - The lines cannot be read or parsed.
    /// - The description of the run does not come before its steps.
    /// - The plan or a number is invalid, or the model has too many layers or replicas.
    /// - A step has an event of a stage that does not exist in the plan.
    pub fn read(lines: impl BufRead) -> Result<Self, LogError> {
        let (mut described, mut steps, mut validations) = (None, Vec::new(), Vec::new());
        let (mut unreadable, mut resumed_at) = (None, None);
        // A crash may truncate the last line within a UTF-8 character, so lines are read as bytes.
        for (number, line) in lines.split(b'\n').enumerate() {
            let line = line?;
            if line.trim_ascii().is_empty() {
                continue;
            }
            if let Some(error) = unreadable {
                return Err(error);
            }
            match Line::from_bytes(&line) {
                Ok(Line::Run(latest)) => {
                    let plan = latest.checked_plan(number + 1)?;
                    (described, resumed_at) = (Some((*latest, plan)), None);
                }
                Ok(Line::Step(step)) => {
                    let (_, plan) = described.as_ref().ok_or(LogError::NoRun)?;
                    step.check(number + 1, plan.stages())?;
                    pop_while(&mut validations, |last: &Validation| last.after_steps > step.step);
                    pop_while(&mut steps, |last: &Step| last.step >= step.step);
                    resumed_at = Some(resumed_at.map_or(step.step, |first: usize| first.min(step.step)));
                    steps.push(*step);
                }
                Ok(Line::Validation(validation)) => {
                    pop_while(&mut validations, |last| last.after_steps >= validation.after_steps);
                    validations.push(validation);
                }
                Ok(Line::Other(_)) => {}
                Err(cause) => unreadable = Some(LogError::Line { line: number + 1, cause }),
            }
        }
        let (run, plan) = described.ok_or(LogError::NoRun)?;
        let after_all = || steps.last().map_or(0, |last| last.step.saturating_add(1));
        let resumed_at = resumed_at.unwrap_or_else(after_all);
        Ok(Self { run, plan, steps, validations, resumed_at })
    }

    /// Returns the steps that the run made since it was last started or resumed. `run` describes their plan, layers and
    /// devices; earlier steps may have had others.
    pub fn steps_since_resume(&self) -> impl Iterator<Item = &Step> {
        self.steps.iter().filter(|step| step.step >= self.resumed_at)
    }

    /// Returns the steps that count for the run's medians. These are the steps that updated parameters since the run
    /// was last started or resumed. If there are more than two, the first two are left out as warm-up steps, because
    /// memory and threads are still cold.
    ///
    /// If some of these steps are synchronised (workers waited for their devices after every action), returns only
    /// those.
    pub fn warm_steps(&self) -> impl Iterator<Item = &Step> {
        let synchronised = self.synchronised();
        self.warm().filter(move |step| step.synchronised == synchronised)
    }

    /// Whether the run has synchronised steps, where workers waited for their devices after every action. If so, the
    /// run's medians are computed from these steps only, because they have device times instead of host times.
    ///
    /// Ignores steps that updated no parameters, and the first two steps if there are more.
    pub fn synchronised(&self) -> bool {
        self.warm().any(|step| step.synchronised)
    }

    /// Returns the name of the clock that measured the run's times and bubbles. It is `device clock` if workers waited
    /// for their devices after every action in some steps, else `host clock`.
    pub fn clock(&self) -> &'static str {
        clock(self.synchronised())
    }

    /// Whether the logged times only measure how long it takes to give work to the devices, and not the work itself.
    /// True if the run had stages on GPUs or on other hosts, and none of its [warm steps](Self::warm_steps) is
    /// synchronised (workers wait for their devices after every action).
    pub fn only_asks(&self) -> bool {
        let is_asynchronous = self.devices().iter().any(|device| *device != "cpu");
        (is_asynchronous || self.run.links.iter().any(Option::is_some)) && !self.synchronised()
    }

    fn warm(&self) -> impl Iterator<Item = &Step> {
        let computed = || self.steps_since_resume().filter(|step| step.gradient_norm.is_some());
        let cold = if computed().count() > 2 { 2 } else { 0 };
        computed().skip(cold)
    }

    /// Returns the median throughput of the run: the tokens or samples that it read per second. Synchronised steps,
    /// where workers waited for their devices after every action, do not count. Returns `None` if there are no other
    /// steps.
    pub fn throughput(&self) -> Option<f64> {
        median(self.warm().filter(|step| !step.synchronised).map(|step| step.tokens_per_s))
    }

    /// Returns the median model FLOP utilisation, from 0 to 1, over the same steps as [`throughput`](Self::throughput).
    /// Returns `None` if no such step logged it.
    pub fn model_flop_utilisation(&self) -> Option<f64> {
        median(self.warm().filter(|step| !step.synchronised).filter_map(|step| step.model_flop_utilisation))
    }

    /// Whether the optimizer of the run is Adam or a variant of it; false if the log does not name the optimizer.
    pub fn is_adam(&self) -> bool {
        matches!(self.run.configuration.get("optimizer").and_then(Value::as_str), Some("adamw" | "adafactor"))
    }

    /// Returns the median loss weight of the steps' batches, which is usually the number of unmasked targets. The
    /// median is over the [warm steps](Self::warm_steps), which leave out the first two steps. Returns `None` if no
    /// step updated parameters.
    pub fn weight(&self) -> Option<f64> {
        median(self.warm_steps().map(|step| step.weight))
    }

    /// Returns the median step time in seconds, and the median bubble as a fraction of the total stage time (workers x
    /// step time); 0.1 is 10%. Both are medians over the [warm steps](Self::warm_steps), which leave out the first two
    /// steps. Both exclude the overhead of synchronising with devices to measure times.
    ///
    /// Returns `None` if no step updated parameters.
    pub fn typical(&self) -> Option<(f64, f64)> {
        let typical = |figure: fn(&Step) -> f64| median(self.warm_steps().map(figure));
        let bubble = |step: &Step| 1.0 - (1.0 - step.bubble) * step.step_seconds / step.seconds_without_asking();
        Some((typical(Step::seconds_without_asking)?, typical(bubble)?))
    }

    /// Returns the largest cause of the workers' idle time, and the fraction of the total stage time (workers x step
    /// time) that it explains; 0.1 is 10%. Filling and draining the pipeline count as one cause. The stage time does
    /// not include the overhead of synchronising with devices to measure times.
    ///
    /// Returns `None` if no step updated parameters.
    pub fn main_cause(&self) -> Option<(Cause, f64)> {
        let accounts = || self.warm_steps().flat_map(|step| &step.workers);
        let total: f64 = self.warm_steps().map(|step| step.seconds_without_asking() * step.workers.len() as f64).sum();
        let share = |cause: fn(&Account) -> f64| accounts().map(cause).sum::<f64>() / total;
        let shares = [
            (Cause::Pipeline, share(|account| account.fill + account.drain)),
            (Cause::Imbalance, share(|account| account.imbalance)),
            (Cause::Transfer, share(|account| account.transfer)),
            (Cause::Flush, share(|account| account.flush)),
            (Cause::Other, share(|account| account.other)),
        ];
        shares.into_iter().filter(|_| total > 0.0).max_by(|a, b| a.1.total_cmp(&b.1))
    }
}

/// Removes entries from the end of `list`, as long as `is_replaced` is true for the last one. For a list in ascending
/// order, this removes all that a resumed run replaces, without a pass over the others.
fn pop_while<T>(list: &mut Vec<T>, is_replaced: impl Fn(&T) -> bool) {
    while list.last().is_some_and(&is_replaced) {
        list.pop();
    }
}

/// A cause of the workers' idle time in a run. [`RunLog::main_cause`] returns the largest one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Workers are idle while the pipeline fills and drains.
    Pipeline,
    /// Workers are idle because stages have unequal work.
    Imbalance,
    /// Workers are idle because transfers between stages take time.
    Transfer,
    /// Workers are idle because their parts of the flush take unequal time. The flush is the gradient norms and the
    /// optimizer step at the end of a step.
    Flush,
    /// Workers are idle because of the runtime's overhead, such as threads, channels and splitting the batch.
    Other,
}
