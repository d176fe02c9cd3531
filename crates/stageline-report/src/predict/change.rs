//! A setting that a recommended training changes: [`Change`].

use std::fmt;

/// The setting in which a predicted training differs from the plan that is asked about, besides its number of
/// micro-batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// A predicted training changes no setting, except perhaps the number of micro-batches.
    None,
    /// A predicted training changes its schedule; the fields are the name of the new schedule and its number of chunks
    /// on a worker.
    Schedule {
        /// The name of the schedule to which a predicted training changes, such as `zb-h1`.
        name: &'static str,
        /// The number of chunks (stages) that the new schedule of a predicted training has on each worker.
        chunks: usize,
    },
    /// A predicted training changes its number of workers (P), to the number in this variant.
    Workers(usize),
    /// A predicted training changes the size of its micro-batches: they have this many times the rows (samples) of the
    /// run's micro-batches.
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
