//! A log, read.

use std::io::BufRead;

use stageline_schedule::{ParsePlanError, Plan};

use crate::record::{Account, Line, Run, Step, Validation};

/// A run, as its log tells it.
#[derive(Clone, Debug, PartialEq)]
pub struct RunLog {
    /// What was run.
    pub run: Run,
    /// The plan that was run.
    pub plan: Plan,
    /// What its steps did, in order.
    pub steps: Vec<Step>,
    /// The losses on what is not trained on, in order.
    pub validations: Vec<Validation>,
}

impl RunLog {
    /// Reads a log. A last line that is cut short, as by a crash, is left out; so are steps that were made again, after the run
    /// went on from a checkpoint.
    ///
    /// # Errors
    /// [`LogError`], with the line.
    pub fn read(lines: impl BufRead) -> Result<Self, LogError> {
        let (mut run, mut steps, mut validations) = (None, Vec::new(), Vec::new());
        let mut unreadable = None;
        for (number, line) in lines.lines().enumerate() {
            let line = line?;
            if line.trim().is_empty() {
                continue;
            }
            if let Some(error) = unreadable {
                return Err(error);
            }
            match Line::read(&line) {
                Ok(Line::Run(latest)) => run = Some(*latest),
                Ok(Line::Step(step)) => {
                    validations.retain(|before: &Validation| before.after_steps <= step.step);
                    while steps.last().is_some_and(|last: &Step| last.step >= step.step) {
                        steps.pop();
                    }
                    steps.push(*step);
                }
                Ok(Line::Validation(validation)) => {
                    validations.retain(|before| before.after_steps < validation.after_steps);
                    validations.push(validation);
                }
                Ok(Line::Other(_)) => {}
                Err(cause) => unreadable = Some(LogError::Line { line: number + 1, cause }),
            }
        }
        let run = run.ok_or(LogError::NoRun)?;
        let plan = Plan::from_csv(&run.plan).map_err(LogError::Plan)?;
        Ok(Self { run, plan, steps, validations })
    }

    /// The steps that stepped, but for the first two, in which memory and threads are not yet warm; the first
    /// ones, where there are no others. If any of them are synchronised with their devices, these only.
    pub fn warm_steps(&self) -> impl Iterator<Item = &Step> {
        let synchronised = self.synchronised();
        self.warm().filter(move |step| step.synchronised == synchronised)
    }

    /// Whether times are those of steps that are synchronised with their devices.
    pub fn synchronised(&self) -> bool {
        self.warm().any(|step| step.synchronised)
    }

    /// The clock of the run's times and bubbles: `device clock` if workers waited for their devices, else `host clock`.
    pub fn clock(&self) -> &'static str {
        if self.synchronised() { "device clock" } else { "host clock" }
    }

    /// Whether stages were on other hosts and times are those of asking them, not of what they did.
    pub fn only_asks(&self) -> bool {
        self.run.links.iter().any(Option::is_some) && !self.synchronised()
    }

    /// The worker of a stage.
    pub(crate) fn worker_of(&self, stage: usize) -> Option<usize> {
        self.plan.rows().iter().position(|row| row.iter().any(|action| action.stage == stage))
    }

    fn warm(&self) -> impl Iterator<Item = &Step> {
        let computed = || self.steps.iter().filter(|step| step.gradient_norm.is_some());
        let cold = if computed().count() > 2 { 2 } else { 0 };
        computed().skip(cold)
    }

    /// The median of the tokens a second, in steps that are not synchronised; `None` if there are none.
    pub fn throughput(&self) -> Option<f64> {
        median(self.warm().filter(|step| !step.synchronised).map(|step| step.tokens_per_s))
    }

    /// The median step, in seconds, and the median bubble, both without what it took to ask devices whether they were done; `None`
    /// without steps.
    pub fn typical(&self) -> Option<(f64, f64)> {
        let of = |figure: fn(&Step) -> f64| median(self.warm_steps().map(figure));
        let bubble = |step: &Step| 1.0 - (1.0 - step.bubble) * step.step_seconds / step.seconds_unasked();
        Some((of(Step::seconds_unasked)?, of(bubble)?))
    }

    /// The cause of most of the idle time, and its share of the total stage time; `None` without steps. Filling and draining
    /// are one, and questions to devices are none.
    pub fn main_cause(&self) -> Option<(Cause, f64)> {
        let accounts = || self.warm_steps().flat_map(|step| &step.workers);
        let total: f64 = self.warm_steps().map(|step| step.seconds_unasked() * step.workers.len() as f64).sum();
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

/// Why workers idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It is filled and drained.
    Pipeline,
    /// Stages have unequal work.
    Imbalance,
    /// Transfers take their time.
    Transfer,
    /// Parts of the flush are unequal.
    Flush,
    /// The runtime.
    Other,
}

/// Why a log cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The file cannot be read.
    #[error("the log cannot be read: {0}")]
    Io(#[from] std::io::Error),
    /// A line is not one of a log.
    #[error("line {line} of the log cannot be read: {cause}; write the log anew with `--log`")]
    Line {
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        cause: serde_json::Error,
    },
    /// There is no first line.
    #[error(
        "the log does not say what was run: its first line, with `schedule` and `plan`, is missing; write it anew with `--log`"
    )]
    NoRun,
    /// The plan in the first line is none.
    #[error("the plan of the log cannot be read: {0}")]
    Plan(ParsePlanError),
}

/// The middle value; `None` of none.
pub(crate) fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<_> = values.filter(|value| value.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}
