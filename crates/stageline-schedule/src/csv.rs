//! Plans as comma-separated values, one row a worker, as PyTorch's `torch.distributed.pipelining` writes and reads them.

use std::fmt;

use crate::action::{Action, Compute, ParseActionError};
use crate::check::Checked;
use crate::lower::{Carried, Instruction, Transfer};
use crate::plan::Plan;

/// What PyTorch writes between the computes and the transfers when it has lowered a plan.
const NEITHER: [&str; 6] = ["WAIT_SEND_F", "WAIT_SEND_B", "UNSHARD", "RESHARD", "REDUCE_GRAD", "WAIT_REDUCE_GRAD"];

/// PyTorch's mark of a forward and a backward whose transfers overlap, behind both in parentheses.
const OVERLAPPED: &str = "OVERLAP_F_B";

impl Plan {
    /// The computes, one row a worker; PyTorch's loader takes it.
    pub fn to_csv(&self) -> String {
        let row = |row: &Vec<Action>| row.iter().map(Action::to_string).collect::<Vec<_>>().join(",") + "\n";
        self.rows().iter().map(row).collect()
    }

    /// Reads what [`to_csv`](Self::to_csv) or PyTorch wrote.
    ///
    /// Of lowered plans the computes are kept, because lowering puts the transfers in again: empty cells (idle slots),
    /// transfers, waits and sharding are skipped. An overlapped pair, `(0F7;7B3)OVERLAP_F_B`, is its two computes in order.
    ///
    /// # Errors
    /// The first cell that is none of these, with its row and column from 1.
    pub fn from_csv(csv: &str) -> Result<Self, ParsePlanError> {
        let row = |(row, line): (usize, &str)| {
            let mut actions = Vec::new();
            for (column, cell) in line.split(',').enumerate() {
                read_cell(cell.trim(), &mut actions).map_err(|cause| ParsePlanError {
                    row: row + 1,
                    column: column + 1,
                    cause,
                })?;
            }
            Ok(actions)
        };
        Ok(Self::new(csv.lines().enumerate().map(row).collect::<Result<_, _>>()?))
    }
}

impl Checked {
    /// The computes, and the transfers between workers, one row a worker, in PyTorch's lowered form (`compute_comms`): an
    /// activation's send is waited for once its gradient is back, a gradient's at the end of the step.
    pub fn to_lowered_csv(&self) -> String {
        let placement = self.placement();
        let crosses = |transfer: &Transfer| placement.worker(transfer.from) != placement.worker(transfer.to());
        let row = |worker| {
            let (mut cells, mut last) = (Vec::new(), Vec::new());
            for instruction in self.instructions(worker) {
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
        (0..self.plan().workers()).map(row).collect()
    }
}

fn read_cell(cell: &str, actions: &mut Vec<Action>) -> Result<(), ParseActionError> {
    let digit = |character: char| character.is_ascii_digit();
    if cell.is_empty() || cell.starts_with(digit) && NEITHER.contains(&cell.trim_matches(digit)) {
        return Ok(());
    }
    if let Some(pair) = cell.strip_prefix('(').and_then(|rest| rest.strip_suffix(OVERLAPPED)?.strip_suffix(')')) {
        for action in pair.split(';') {
            actions.push(action.trim().parse()?);
        }
    } else if let Instruction::Compute(action) = cell.parse()? {
        actions.push(action);
    }
    Ok(())
}

/// A cell of a CSV plan that is not an action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParsePlanError {
    /// The row, from 1.
    pub row: usize,
    /// The column, from 1.
    pub column: usize,
    /// What is wrong with the cell.
    pub cause: ParseActionError,
}

impl fmt::Display for ParsePlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "row {}, column {}: {}", self.row, self.column, self.cause)
    }
}

impl std::error::Error for ParsePlanError {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{SCHEDULES, check};

    #[test]
    fn every_schedule_round_trips() {
        for schedule in SCHEDULES {
            let plan = schedule.plan(4, 6).unwrap();
            assert_eq!(Plan::from_csv(&plan.to_csv()), Ok(plan));
        }
    }

    #[test]
    fn idle_slots_are_skipped() {
        let plan = Plan::from_csv("0F0,,0B0\n,1F0, 1B0 ,\n").unwrap();
        assert_eq!(plan.to_csv(), "0F0,0B0\n1F0,1B0\n");
    }

    /// In the syntax of PyTorch 2.15's lowered plans: sharding, transfers, waits, and an overlapped pair.
    #[test]
    fn of_a_lowered_plan_of_pytorch_the_computes_are_read() {
        let csv = "0UNSHARD,3UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,3RECV_F0,(3F0;3B0)OVERLAP_F_B,3SEND_B0,0RECV_B0,0I0,\
                   0WAIT_SEND_F0,0W0,3REDUCE_GRAD,0WAIT_REDUCE_GRAD,0RESHARD\r\n";
        assert_eq!(Plan::from_csv(csv).unwrap().to_csv(), "0F0,0F1,3F0,3B0,0I0,0W0\n");
    }

    #[test]
    fn of_our_lowered_plans_too() {
        for schedule in SCHEDULES {
            let Ok(plan) = schedule.plan(4, 4) else { continue };
            let checked = check(plan, 4).unwrap();
            assert_eq!(Plan::from_csv(&checked.to_lowered_csv()).as_ref(), Ok(checked.plan()));
        }
    }

    #[test]
    fn a_lowered_plan_waits_for_its_sends() {
        let plan = Plan::from_csv("0F0,3F0,3B0,0B0\n1F0,2F0,2I0,1I0,2W0,1W0\n").unwrap();
        let lowered = "0F0,0SEND_F0,3RECV_F0,3F0,3B0,3SEND_B0,0RECV_B0,0B0,0WAIT_SEND_F0,3WAIT_SEND_B0\n\
                       1RECV_F0,1F0,2F0,2SEND_F0,2RECV_B0,2I0,2WAIT_SEND_F0,1I0,1SEND_B0,2W0,1W0,1WAIT_SEND_B0\n";
        assert_eq!(check(plan, 1).unwrap().to_lowered_csv(), lowered);
    }

    #[test]
    fn a_damaged_cell_is_placed() {
        for (csv, row, column, cell) in [
            ("0F0,0B0\n1F0,1Q0\n", 2, 2, "`1Q0`"),
            ("0F0,(0F1;0B0)OVERLAP\n", 1, 2, "`(0F1;0B0)OVERLAP`"),
            ("0F0,0F1;0B0\n", 1, 2, "`0F1;0B0`"),
            ("0F0,UNSHARD\n", 1, 2, "`UNSHARD`"),
            ("0RECV_F0,0F0\n", 1, 1, "`0RECV_F0`"),
            ("(0F1;0X0)OVERLAP_F_B\n", 1, 1, "`0X0`"),
            ("0F0,0SEND_G0\n", 1, 2, "`0SEND_G0`"),
        ] {
            let error = Plan::from_csv(csv).unwrap_err();
            assert_eq!((error.row, error.column), (row, column), "{csv}");
            assert!(error.to_string().contains(cell), "{error}");
        }
    }
}
