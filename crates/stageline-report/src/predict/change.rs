//! A setting that a recommended training changes: [`Change`].

use std::fmt;

/// The setting in which a predicted training differs from the plan that is asked about, besides its number of
/// micro-batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// No setting changes, except perhaps the number of micro-batches.
    None,
    /// The schedule changes, to the one with this name.
    Schedule {
        /// The name of the schedule, such as `zb-h1`.
        name: &'static str,
        /// The number of chunks (stages) of the schedule on each worker.
        chunks: usize,
    },
    /// The number of workers (P) changes, to this one.
    Workers(usize),
    /// Micro-batches have this many times the rows (samples) of the run's micro-batches.
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
