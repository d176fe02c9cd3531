//! Errors in a plan's CSV text.

use std::fmt;

use super::action::{Action, ParseActionError};
use super::lower::Instruction;

/// The first error in a CSV plan, with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParsePlanError {
    /// The row, counted from 1.
    pub row: usize,
    /// The column, counted from 1.
    pub column: usize,
    /// The fault of the cell.
    pub cause: CellError,
}

/// The fault of one cell.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CellError {
    /// The cell is neither an action nor a transfer.
    Unreadable(ParseActionError),
    /// A lowered plan lacks a transfer of the compute in this cell.
    Missing {
        /// The send or receive.
        transfer: Instruction,
        /// The compute that receives or sends it.
        compute: Action,
    },
    /// A receive comes after its compute, or a send before it.
    Misplaced {
        /// The send or receive.
        transfer: Instruction,
        /// The compute that receives or sends it.
        compute: Action,
    },
    /// The transfer belongs to no compute of this worker, or is a duplicate.
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
