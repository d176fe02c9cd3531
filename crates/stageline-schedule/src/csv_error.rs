//! What can be wrong with a plan in a file.

use std::fmt;

use crate::action::{Action, ParseActionError};
use crate::lower::Instruction;

/// What is wrong with a CSV plan, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParsePlanError {
    /// The row, from 1.
    pub row: usize,
    /// The column, from 1.
    pub column: usize,
    /// What is wrong with the cell.
    pub cause: CellError,
}

/// What is wrong with a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CellError {
    /// It is neither an action nor a transfer.
    Unreadable(ParseActionError),
    /// A lowered plan lacks a transfer of this compute.
    Missing {
        /// The send or receive.
        transfer: Instruction,
        /// The compute that needs or makes it.
        compute: Action,
    },
    /// A receive stands after its compute, or a send before it.
    Misplaced {
        /// The send or receive.
        transfer: Instruction,
        /// The compute that needs or makes it.
        compute: Action,
    },
    /// No compute of this worker needs or makes this, or it stands there twice.
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
                write!(f, "{transfer} belongs to no compute of this row, or stands there twice; leave it out")
            }
        }
    }
}

impl std::error::Error for ParsePlanError {}
