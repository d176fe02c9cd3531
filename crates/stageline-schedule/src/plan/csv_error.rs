//! Errors in a plan's CSV, with the row and column of the faulty cell.

use std::fmt;

use super::action::{Action, ParseActionError};
use super::lower::Instruction;

/// The first error in a plan's CSV, with the row and column of the faulty cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParsePlanError {
    /// Row of the faulty cell in the plan's CSV, counted from 1.
    pub row: usize,
    /// Column of the faulty cell in the plan's CSV, counted from 1.
    pub column: usize,
    /// Reason why the cell at this row and column of the plan's CSV is rejected.
    pub cause: CellError,
}

/// The reason why a cell in a plan's CSV is rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CellError {
    /// A cell of the plan's CSV is neither an action (such as `2F0`) nor a transfer (such as `2SEND_F0`).
    Unreadable(ParseActionError),
    /// A plan's CSV has some sends and receives, but lacks one that an action (a forward or backward pass) needs. Add
    /// it, or leave all transfers out.
    Missing {
        /// Send or receive that is missing in the plan's CSV.
        transfer: Instruction,
        /// Action (a forward or backward pass) that needs the missing send or receive.
        compute: Action,
    },
    /// A transfer in a plan's CSV is misplaced: a receive comes after the action that uses its tensor, or a send before
    /// the action that makes its tensor.
    Misplaced {
        /// Misplaced transfer: a receive after the action that uses its tensor, or a send before the action that makes
        /// its tensor.
        transfer: Instruction,
        /// Action (a forward or backward pass) that makes or uses the tensor of the misplaced transfer.
        compute: Action,
    },
    /// A send or receive in a plan's CSV belongs to no action of its worker, or is a duplicate. Remove it.
    Superfluous(Instruction),
}

impl fmt::Display for ParsePlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "row {}, column {}: {}", self.row, self.column, self.cause)
    }
}

impl fmt::Display for CellError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(cause) => cause.fmt(f),
            Self::Missing { transfer, compute } => {
                write!(f, "{transfer} is missing, which {compute} needs; add it, or leave all transfers out")
            }
            Self::Misplaced { transfer, compute } => {
                write!(
                    f,
                    "{transfer} is on the wrong side of {compute}; receives come before their computes, sends after them"
                )
            }
            Self::Superfluous(transfer) => {
                write!(f, "{transfer} belongs to no compute of this row, or is a duplicate; remove it")
            }
        }
    }
}

impl std::error::Error for ParsePlanError {}
