//! The one changed setting (schedule, number of workers or micro-batch size) of a training run that `stageline advise`
//! predicts: [`Change`].

use std::fmt;

/// The setting that `stageline advise` changes for a predicted training run, compared with the settings that the user
/// gives to it. At most one setting, such as the schedule, differs; the number of micro-batches may differ as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// `stageline advise` predicts the training run with the settings that the user gives, except perhaps the number of
    /// micro-batches.
    None,
    /// `stageline advise` predicts the training run with another schedule than the user gives. The fields are the name
    /// of the new schedule and its number of chunks (stages) per worker.
    Schedule {
        /// The name of the schedule, such as `zb-h1`, that replaces the schedule that the user gives to `stageline
        /// advise`.
        name: &'static str,
        /// The number of chunks (stages) per worker in the schedule that replaces the schedule that the user gives to
        /// `stageline advise`.
        chunks: usize,
    },
    /// `stageline advise` predicts the training run with another number of workers (P) than the user gives. The value
    /// is the new number.
    Workers(usize),
    /// `stageline advise` predicts the training run with larger micro-batches. The value is a factor: a micro-batch has
    /// this many times the rows (samples) of a micro-batch in the logged run.
    Rows(usize),
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => write!(f, "no change"),
            Self::Schedule { name, chunks: 1 } => write!(f, "{name}"),
            Self::Schedule { name, chunks } => write!(f, "{name}, V = {chunks}"),
            Self::Workers(workers) => write!(f, "P = {workers}"),
            Self::Rows(rows) => write!(f, "{rows} x the rows"),
        }
    }
}
