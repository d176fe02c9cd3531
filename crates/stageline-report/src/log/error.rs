//! The errors of reading the log of a run: [`LogError`].

use stageline_schedule::ParsePlanError;

/// The reason why the log of a run cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The log of a run cannot be read because reading the file failed; the field is the error of the operating system.
    #[error("the log cannot be read: {0}")]
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
    /// The log of a run cannot be read because the plan in its first line cannot be parsed.
    #[error("the plan of the log cannot be read: {0}")]
    Plan(ParsePlanError),
}
