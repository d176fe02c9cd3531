//! Errors in the CSV text of a plan, with the row and column of the faulty cell.

use std::fmt;

use super::action::{Action, ParseActionError};
use super::lower::Instruction;

/// The first error in the CSV text of a plan, with the row and column of the faulty cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParsePlanError {
    /// The row of the faulty cell in the CSV text, counted from 1.
    pub row: usize,
    /// The column of the faulty cell in the CSV text, counted from 1.
    pub column: usize,
    /// The reason why a cell in the CSV text of a plan is rejected.
    pub cause: CellError,
}

/// The reason why one cell in the CSV text of a plan is rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CellError {
    /// The text of a cell in a plan's CSV is neither an action (a forward or backward) nor a transfer.
    Unreadable(ParseActionError),
    /// The plan's CSV text has sends and receives, but not all: the action in this cell (a forward or backward) needs
    /// one that is missing.
    Missing {
        /// The send or receive that is missing in the CSV text of the plan.
        transfer: Instruction,
        /// The action (a forward or backward) in the plan's CSV text that needs the missing send or receive.
        compute: Action,
    },
    /// The CSV text of the plan has a receive after the action that needs its tensor, or a send before the action that
    /// makes its tensor.
    Misplaced {
        /// The misplaced send or receive in the plan's CSV text. A receive is misplaced if it comes after the action
        /// that uses its tensor, a send if it comes before the action that makes its tensor.
        transfer: Instruction,
        /// The action (a forward or backward) in the plan's CSV text to which the misplaced send or receive belongs.
        compute: Action,
    },
    /// The send or receive in this cell of a plan's CSV text belongs to no action of its worker, or is a duplicate.
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
