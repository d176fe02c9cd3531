//! The one changed setting (schedule, number of workers or micro-batch size) of a training run that `stageline advise`
//! predicts: [`Change`].

use std::fmt;

/// The setting that `stageline advise` changes for a predicted training run, compared with the user's settings. At most
/// one setting, such as the schedule, differs; the number of micro-batches may differ as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// No setting but the number of micro-batches differs from the user's settings.
    None,
    /// The training run has another schedule than the user's.
    Schedule {
        /// The name of the new schedule, such as `zb-h1`.
        name: &'static str,
        /// The number of chunks (stages) per worker in the new schedule.
        chunks: usize,
    },
    /// The training run has another number of workers (P) than the user's. The value is the new number.
    Workers(usize),
    /// The training run has larger micro-batches. The value is the factor by which they have more rows (samples) than
    /// in the logged run.
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
