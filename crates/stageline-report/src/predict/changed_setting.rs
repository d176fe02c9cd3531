//! The one setting (schedule, number of workers or micro-batch size) that `stageline advise` changes in a predicted
//! training run: [`Change`].

use std::fmt;

/// The one setting, such as the schedule, that `stageline advise` changes in a predicted training run, compared with
/// the user's settings. The number of micro-batches may differ as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Keep all settings of the user's plan, except possibly the number of micro-batches.
    None,
    /// Use another schedule than the user's.
    Schedule {
        /// Name of the schedule that replaces the user's, such as `zb-h1`.
        name: &'static str,
        /// Number of chunks (stages) per worker in the schedule that replaces the user's.
        chunks: usize,
    },
    /// Use another number of workers (P) than the user's. The value is the new number.
    Workers(usize),
    /// Use larger micro-batches. The value is the ratio of their number of rows (samples) to the logged run's.
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
