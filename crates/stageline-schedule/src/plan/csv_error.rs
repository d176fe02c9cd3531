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
    /// Why the faulty cell in a plan's CSV text is rejected.
    pub cause: CellError,
}

/// Why a cell in a plan's CSV text is rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CellError {
    /// The error for a cell of a plan's CSV text that is neither an action (a forward or backward pass) nor a transfer.
    Unreadable(ParseActionError),
    /// The error for an action (a forward or backward pass) whose send or receive is missing in a plan's CSV text. A
    /// text with some sends and receives must have all of them.
    Missing {
        /// The send or receive that is missing in a plan's CSV text.
        transfer: Instruction,
        /// The action (a forward or backward pass) that needs the missing send or receive in a plan's CSV text.
        compute: Action,
    },
    /// The error for a misplaced transfer in a plan's CSV text: a receive after the action that uses its tensor, or a
    /// send before the action that makes its tensor.
    Misplaced {
        /// The misplaced transfer in a plan's CSV text: a receive after the action that uses its tensor, or a send
        /// before the action that makes its tensor.
        transfer: Instruction,
        /// The action (a forward or backward pass) that makes or uses the tensor of the misplaced transfer.
        compute: Action,
    },
    /// The error for a send or receive in a plan's CSV text that belongs to no action of its worker, or that is a
    /// duplicate.
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
