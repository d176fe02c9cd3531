//! Lowered plans (plans with their sends and receives) as CSV. This module writes the sends and receives between the
//! actions, and checks the transfers of a parsed plan.

use std::collections::HashMap;

use super::action::{Action, Compute};
use super::csv_error::{CellError, ParsePlanError};
use super::lower::{Carried, Instruction, Transfer, around, lower};
use super::rows::Plan;

impl Plan {
    /// Returns the lowered plan (the plan with its sends and receives) as a CSV string, one row per worker. Transfers
    /// between stages of one worker are left out. The caller must have checked the plan.
    pub(crate) fn to_lowered_csv(&self) -> String {
        let placement = self.placement();
        let crosses = |transfer: &Transfer| placement.worker(transfer.from) != placement.worker(transfer.to());
        let row = |worker| {
            let (mut cells, mut last) = (Vec::new(), Vec::new());
            for instruction in lower(self, worker) {
                match instruction {
                    Instruction::Send(transfer) | Instruction::Receive(transfer) if !crosses(&transfer) => {}
                    Instruction::Send(Transfer { from, carried: Carried::Gradient, micro_batch }) => {
                        cells.push(instruction.to_string());
                        last.push(format!("{from}WAIT_SEND_B{micro_batch}"));
                    }
                    Instruction::Compute(Action { stage, compute, micro_batch }) => {
                        cells.push(instruction.to_string());
                        let sent = Transfer { from: stage, carried: Carried::Activation, micro_batch };
                        let returned = matches!(compute, Compute::Backward | Compute::InputGradient);
                        if returned && stage + 1 < placement.stages() && crosses(&sent) {
                            cells.push(format!("{stage}WAIT_SEND_F{micro_batch}"));
                        }
                    }
                    _ => cells.push(instruction.to_string()),
                }
            }
            cells.extend(last);
            cells.join(",") + "\n"
        };
        (0..self.workers()).map(row).collect()
    }
}

/// One row of a plan's CSV: a worker's instructions, each with its zero-based column index.
pub(crate) type Row = Vec<(usize, Instruction)>;

/// Checks that a lowered plan (a plan with its sends and receives) has exactly the transfers that its actions need. A
/// send must come after the action that makes its tensor, and a receive before the action that needs its tensor.
/// Transfers between stages of one worker are optional. The error names the row and column of a transfer that is
/// missing, misplaced or superfluous.
pub(crate) fn validate_transfers(rows: &[Row]) -> Result<(), ParsePlanError> {
    let mut worker_of = HashMap::new();
    for (worker, row) in rows.iter().enumerate() {
        worker_of.extend(
            row.iter().filter_map(|(_, instruction)| instruction.compute()).map(|action| (action.stage, worker)),
        );
    }
    let stages = worker_of.keys().max().map_or(0, |last| last + 1);
    for (worker, row) in rows.iter().enumerate() {
        let wrong = |column: usize, cause| ParsePlanError { row: worker + 1, column: column + 1, cause };
        let mut transfers = HashMap::new();
        for &(column, instruction) in row.iter().filter(|(_, instruction)| instruction.compute().is_none()) {
            if transfers.insert(instruction, column).is_some() {
                return Err(wrong(column, CellError::Superfluous(instruction)));
            }
        }
        for (column, action) in row.iter().filter_map(|(column, instruction)| Some((*column, instruction.compute()?))) {
            for needed in around(action, stages).into_iter().flatten() {
                let (other, in_order): (usize, fn(usize, usize) -> bool) = match needed {
                    Instruction::Compute(_) => continue,
                    Instruction::Receive(transfer) => (transfer.from, |transfer, compute| transfer < compute),
                    Instruction::Send(transfer) => (transfer.to(), |transfer, compute| transfer > compute),
                };
                match transfers.remove(&needed) {
                    None if worker_of.get(&other) == Some(&worker) => {}
                    None => return Err(wrong(column, CellError::Missing { transfer: needed, compute: action })),
                    Some(place) if in_order(place, column) => {}
                    Some(place) => {
                        return Err(wrong(place, CellError::Misplaced { transfer: needed, compute: action }));
                    }
                }
            }
        }
        let first = transfers.into_iter().min_by_key(|(_, column)| *column);
        first.map_or(Ok(()), |(transfer, column)| Err(wrong(column, CellError::Superfluous(transfer))))?;
    }
    Ok(())
}
