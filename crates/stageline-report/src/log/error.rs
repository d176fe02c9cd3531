//! The errors of reading the log of a run: [`LogError`].

use stageline_schedule::{CheckError, ParsePlanError};

/// Why the log of a run cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The log of a run cannot be read because reading the file failed; the field is the error of the operating system.
    #[error("the log cannot be read; give the file that a training writes with `--log`")]
    Io(#[from] std::io::Error),
    /// The log of a run cannot be read because one of its lines is not valid JSON or lacks a required field.
    #[error("line {line} of the log cannot be read: {cause}; write a new log with `--log`")]
    Line {
        /// The number of the faulty line in a run's log, counted from 1.
        line: usize,
        /// The error that the JSON parser returned for the faulty line of a run's log.
        cause: serde_json::Error,
    },
    /// The log of a run cannot be read because it lacks its first line, which describes the run.
    #[error(
        "the log does not describe its run: the first line, with `schedule` and `plan`, is missing; write a new log with `--log`"
    )]
    NoRun,
    /// The log of a run cannot be read because one of its lines has a time, size or weight that is negative or too
    /// large.
    #[error(
        "line {line} of the log has the number {value:?} as `{field}`; give one from 0 to 1e30, or write a new log with `--log`"
    )]
    Number {
        /// The number of the faulty line in a run's log, counted from 1.
        line: usize,
        /// The name of the field with the faulty number, in a line of a run's log.
        field: &'static str,
        /// The faulty number in a line of a run's log, in seconds, bytes or the unit of a weight.
        value: f64,
    },
    /// The log of a run cannot be read because a step has an event of a stage that the plan of the run lacks.
    #[error(
        "line {line} of the log has an event of stage {stage}, and the plan has {stages} stages; write a new log with `--log`"
    )]
    Stage {
        /// The number of the faulty line in a run's log, counted from 1.
        line: usize,
        /// The index, counted from 0, of the stage that the plan of the run lacks.
        stage: usize,
        /// The number of stages of the run's plan, which is too small for `stage`.
        stages: usize,
    },
    /// The log of a run cannot be read because its model has too many layers.
    #[error(
        "line {line} of the log describes a model of {layers} layers, and at most {most} can be read; log a model with fewer, \
         larger layers"
    )]
    Layers {
        /// The number of the faulty line in a run's log, counted from 1.
        line: usize,
        /// The number of layers of the model in the faulty line of a run's log.
        layers: usize,
        /// The largest number of layers that a log may have to be read.
        most: usize,
    },
    /// The log of a run cannot be read because the plan in its first line is incomplete, or deadlocks with channels of
    /// any capacity.
    #[error("the plan of the log is invalid, so write a new log with `--log`: {0}")]
    InvalidPlan(Box<CheckError>),
    /// The log of a run cannot be read because the plan in its first line cannot be parsed.
    #[error("the plan of the log cannot be read: {0}")]
    Plan(ParsePlanError),
}
