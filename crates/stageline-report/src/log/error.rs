//! The errors of reading the log of a run: [`LogError`].

use stageline_schedule::{CheckError, ParsePlanError};

/// The reason why the log of a run cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The log file of a run cannot be read; the field is the operating system's error. Give the file that a training
    /// run writes with `--log`.
    #[error("the log cannot be read; give the file that a training writes with `--log`")]
    Io(#[from] std::io::Error),
    /// A line of a run's log is not valid JSON, or lacks a required field. Write a new log with `--log`.
    #[error("line {line} of the log cannot be read: {cause}; write a new log with `--log`")]
    Line {
        /// Number of the log line that cannot be parsed, counted from 1.
        line: usize,
        /// Error that the JSON parser returned for the log line.
        cause: serde_json::Error,
    },
    /// The log of a run lacks its first line, which describes the run. Write a new log with `--log`.
    #[error(
        "the log does not describe its run: the first line, with `schedule` and `plan`, is missing; write a new log with `--log`"
    )]
    NoRun,
    /// A line of a run's log has a time, size or weight that is below 0, above 1e30 or NaN.
    #[error(
        "line {line} of the log has the number {value:?} as `{field}`; give one from 0 to 1e30, or write a new log with `--log`"
    )]
    Number {
        /// Number of the log line with the invalid number, counted from 1.
        line: usize,
        /// Name of the JSON field that has the invalid number in the log line.
        field: &'static str,
        /// Invalid number in the log line: a time in seconds, a size in bytes or a weight.
        value: f64,
    },
    /// A step in a run's log has an event of a stage that does not exist in the run's plan. Write a new log with
    /// `--log`.
    #[error(
        "line {line} of the log has an event of stage {stage}, and the plan has {stages} stages; write a new log with `--log`"
    )]
    Stage {
        /// Number of the log line with the event of an unknown stage, counted from 1.
        line: usize,
        /// Zero-based index of the stage that does not exist in the run's plan.
        stage: usize,
        /// Number of stages of the run's plan, so the largest valid stage index is one less.
        stages: usize,
    },
    /// The model in a run's log has too many layers. Log a model with fewer, larger layers.
    #[error(
        "line {line} of the log describes a model of {layers} layers, and at most {most} can be read; log a model with fewer, \
         larger layers"
    )]
    Layers {
        /// Number of the log line that describes the model with too many layers, counted from 1.
        line: usize,
        /// Number of layers of the model that the log describes.
        layers: usize,
        /// Maximum number of layers that the model in a log may have.
        most: usize,
    },
    /// The run in a log has too many data-parallel replicas, which no training has. Write a new log with `--log`.
    #[error(
        "line {line} of the log has the number {replicas} as `replicas`, and at most {most} can be read; write a new log with `--log`"
    )]
    Replicas {
        /// Number of the log line that describes the run with too many replicas, counted from 1.
        line: usize,
        /// Number of data-parallel replicas that the log gives.
        replicas: usize,
        /// Maximum number of data-parallel replicas that the run in a log may have.
        most: usize,
    },
    /// The plan in the first line of a run's log is incomplete, or deadlocks with channels of any capacity. Write a new
    /// log with `--log`.
    #[error("the plan of the log is invalid, so write a new log with `--log`: {0}")]
    InvalidPlan(Box<CheckError>),
    /// The plan in the first line of a run's log cannot be parsed as CSV.
    #[error("the plan of the log cannot be read: {0}")]
    Plan(ParsePlanError),
}
