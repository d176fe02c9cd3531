//! The change of one setting (schedule, number of workers or micro-batch size) by which a predicted training differs
//! from the plan that the user gives to `stageline advise`: [`Change`].

use std::fmt;

/// The one setting, such as the schedule, in which a predicted training differs from the plan that the user gives to
/// `stageline advise`. The number of micro-batches may differ as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The predicted training changes no setting of the plan that the user gives to `stageline advise`, except perhaps
    /// the number of micro-batches.
    None,
    /// A change of a predicted training's schedule; the fields are the name of the new schedule and its number of
    /// chunks (stages) on a worker.
    Schedule {
        /// The name of the new schedule of a predicted training, such as `zb-h1`.
        name: &'static str,
        /// The number of chunks (stages) that the new schedule of a predicted training has on each worker.
        chunks: usize,
    },
    /// A change of a predicted training's number of workers (P); the value of this variant is the new number.
    Workers(usize),
    /// A change of a predicted training's micro-batch size. The value of this variant is a factor: a micro-batch has
    /// this many times the rows (samples) of one in the logged run.
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
