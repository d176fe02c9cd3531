//! Errors of reading a log.

use stageline_schedule::ParsePlanError;

/// The reason why a log cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The file cannot be read.
    #[error("the log cannot be read: {0}")]
    Io(#[from] std::io::Error),
    /// A line is no JSON, or lacks a field of its kind.
    #[error("line {line} of the log cannot be read: {cause}; write a new log with `--log`")]
    Line {
        /// The line, counted from 1.
        line: usize,
        /// The error of the JSON parser.
        cause: serde_json::Error,
    },
    /// The line that describes the run is missing.
    #[error(
        "the log does not describe its run: the first line, with `schedule` and `plan`, is missing; write a new log with `--log`"
    )]
    NoRun,
    /// The plan in the first line cannot be parsed.
    #[error("the plan of the log cannot be read: {0}")]
    Plan(ParsePlanError),
}
