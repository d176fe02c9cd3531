//! Writes and parses plans as CSV, one row per worker, in the format of PyTorch's `torch.distributed.pipelining`.

use std::collections::HashSet;

use super::action::{Action, Compute, ParseActionError};
use super::csv_error::{CellError, ParsePlanError};
use super::lower::Instruction;
use super::lowered::{Row, validate_transfers};
use super::rows::Plan;

/// Actions that the parser ignores in the CSV of PyTorch's lowered schedules (schedules with communication): waits,
/// FSDP unsharding and resharding, and gradient reduction. Each entry has the action's name, and `true` if a
/// micro-batch index follows the name, as in `0WAIT_SEND_F3` (stage 0, micro-batch 3).
const SKIPPED: [(&str, bool); 6] = [
    ("WAIT_SEND_F", true),
    ("WAIT_SEND_B", true),
    ("UNSHARD", false),
    ("RESHARD", false),
    ("REDUCE_GRAD", false),
    ("WAIT_REDUCE_GRAD", false),
];

/// The suffix of an overlapped pair of actions in PyTorch's CSV, such as `(0F7;7B3)OVERLAP_F_B`. The two actions of
/// such a pair run at the same time.
const OVERLAPPED: &str = "OVERLAP_F_B";

/// The letters for the whole backward pass in plans of earlier PyTorch versions, which use `B` for the input gradient.
const EARLIER_BACKWARD: &str = "BW";

impl Plan {
    /// Returns the plan's forward and backward passes as a CSV string, one row per worker, in the format that PyTorch's
    /// schedule loader reads.
    pub fn to_csv(&self) -> String {
        let row = |row: &Vec<Action>| row.iter().map(Action::to_string).collect::<Vec<_>>().join(",") + "\n";
        self.rows().iter().map(row).collect()
    }

    /// Parses a plan from a CSV string: the output of [`to_csv`](Self::to_csv),
    /// [`to_lowered_csv`](crate::Checked::to_lowered_csv) or PyTorch.
    ///
    /// The parsed plan keeps only the forward and backward passes:
    ///
    /// - Empty cells (idle slots), waits and sharding are skipped.
    /// - An overlapped pair, `(0F7;7B3)OVERLAP_F_B`, becomes its two actions in order.
    /// - A lowered plan (a plan with its sends and receives) must have exactly the transfers that its actions need. The
    ///   transfers are skipped, because lowering adds them again.
    /// - Earlier PyTorch versions write `BW` for the whole backward pass, and `B` (input gradient) and `W` (weight
    ///   gradient) for a split one. A plan that has a `W` but no `I` is parsed with these letters.
    ///
    /// # Errors
    /// Returns the row and column, counted from 1, of the first error:
    ///
    /// - a cell that cannot be parsed
    /// - a transfer that is missing, superfluous or misplaced: a receive after the action that uses its tensor, or a
    ///   send before the action that makes its tensor
    pub fn from_csv(csv: &str) -> Result<Self, ParsePlanError> {
        let row = |(row, line): (usize, &str)| {
            let mut cells = Row::new();
            for (column, cell) in line.split(',').enumerate() {
                let wrong =
                    |cause| ParsePlanError { row: row + 1, column: column + 1, cause: CellError::Unreadable(cause) };
                let instructions = read_cell(cell.trim()).map_err(wrong)?;
                cells.extend(instructions.into_iter().map(|instruction| (column, instruction)));
            }
            Ok(cells)
        };
        let text = csv.trim_start_matches('\u{feff}');
        let mut rows: Vec<Row> = text.lines().enumerate().map(row).collect::<Result<_, _>>()?;
        while rows.last().is_some_and(Vec::is_empty) {
            rows.pop(); // Blank lines at the end are not workers.
        }
        let lowered = rows.iter().flatten().any(|(_, instruction)| !matches!(instruction, Instruction::Compute(_)));
        if lowered {
            validate_transfers(&rows)?;
        }
        translate_earlier_letters(&mut rows);
        let computes = |row: Row| row.into_iter().filter_map(|(_, instruction)| instruction.compute()).collect();
        Ok(Self::new(rows.into_iter().map(computes).collect()))
    }
}

/// Parses the actions and transfers in one cell of a plan's CSV, in order. The result is empty for an empty cell and
/// for one that is skipped, such as a wait. Any other cell is an error.
fn read_cell(cell: &str) -> Result<Vec<Instruction>, ParseActionError> {
    if cell.is_empty() || is_skipped(cell) {
        return Ok(Vec::new());
    }
    let pair =
        cell.strip_prefix('(').and_then(|rest| rest.strip_suffix(OVERLAPPED)?.strip_suffix(')')?.split_once(';'));
    if let Some((forward, backward)) = pair {
        return Ok(vec![read_instruction(forward.trim())?, read_instruction(backward.trim())?]);
    }
    Ok(vec![read_instruction(cell)?])
}

fn read_instruction(text: &str) -> Result<Instruction, ParseActionError> {
    match text.split_once(EARLIER_BACKWARD) {
        Some((stage, micro_batch)) => format!("{stage}B{micro_batch}").parse().map_err(|_| ParseActionError::of(text)),
        None => text.parse(),
    }
}

fn is_skipped(cell: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let name = cell.trim_start_matches(|character: char| character.is_ascii_digit());
    let matches = |(form, micro_batch): &(&str, bool)| {
        name.strip_prefix(form).is_some_and(|rest| if *micro_batch { digits(rest) } else { rest.is_empty() })
    };
    name.len() < cell.len() && SKIPPED.iter().any(matches)
}

/// Translates the letters of earlier PyTorch versions in a plan. Those versions wrote `B` instead of `I` for an input
/// gradient. So if the plan has no `I`, a `B` whose stage and micro-batch also have a `W` (weight gradient) becomes an
/// `I`.
fn translate_earlier_letters(rows: &mut [Row]) {
    let computes = || rows.iter().flatten().filter_map(|(_, instruction)| instruction.compute());
    if computes().any(|action| action.compute == Compute::InputGradient) {
        return;
    }
    let split: HashSet<_> = computes()
        .filter(|action| action.compute == Compute::WeightGradient)
        .map(|action| (action.stage, action.micro_batch))
        .collect();
    for (_, instruction) in rows.iter_mut().flatten() {
        if let Instruction::Compute(Action { stage, compute: compute @ Compute::Backward, micro_batch }) = instruction
            && split.contains(&(*stage, *micro_batch))
        {
            *compute = Compute::InputGradient;
        }
    }
}

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

    /// Tests that the parser keeps only the forward and backward passes of PyTorch 2.15's lowered plans (plans with
    /// their sends and receives). The CSV has all forms of cells: sharding, transfers, waits, and an overlapped pair.
    #[test]
    fn the_computes_of_pytorchs_lowered_plan_are_read() {
        let csv = "0UNSHARD,3UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,3RECV_F0,(3F0;3B0)OVERLAP_F_B,3SEND_B0,0RECV_B0,0I0,\
                   0WAIT_SEND_F0,0W0,3REDUCE_GRAD,0WAIT_REDUCE_GRAD,0RESHARD\r\n";
        assert_eq!(Plan::from_csv(csv).unwrap().to_csv(), "0F0,0F1,3F0,3B0,0I0,0W0\n");
    }

    #[test]
    fn the_computes_of_our_lowered_plans_are_read() {
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
    fn a_damaged_cell_is_reported_with_its_row_and_column() {
        for (csv, row, column, cell) in [
            ("0F0,0B0\n1F0,1Q0\n", 2, 2, "`1Q0`"),
            ("0F0,(0F1;0B0)OVERLAP\n", 1, 2, "`(0F1;0B0)OVERLAP`"),
            ("0F0,0F1;0B0\n", 1, 2, "`0F1;0B0`"),
            ("0F0,UNSHARD\n", 1, 2, "`UNSHARD`"),
            ("0RECV_F0,0F0\n", 1, 1, "`0RECV_F0`"),
            ("(0F1;0X0)OVERLAP_F_B\n", 1, 1, "`0X0`"),
            ("0F0,0SEND_G0\n", 1, 2, "`0SEND_G0`"),
            ("0F0,0UNSHARD1\n", 1, 2, "`0UNSHARD1`"),
            ("0WAIT_SEND_F\n", 1, 1, "`0WAIT_SEND_F`"),
            ("(0B0)OVERLAP_F_B\n", 1, 1, "`(0B0)OVERLAP_F_B`"),
            ("0F0,0BWB0\n", 1, 2, "`0BWB0`"),
        ] {
            let error = Plan::from_csv(csv).unwrap_err();
            assert_eq!((error.row, error.column), (row, column), "{csv}");
            assert!(error.to_string().contains(cell), "{error}");
        }
    }

    #[test]
    fn a_lowered_plan_with_wrong_transfers_is_rejected() {
        for (csv, row, column, message) in [
            ("0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1B0\n", 2, 1, "1RECV_F0 is missing, which 1F0 needs"),
            ("0F0,0SEND_F0,0B0,0RECV_B0\n1RECV_F0,1F0,1B0,1SEND_B0\n", 1, 4, "0RECV_B0 is on the wrong side of 0B0"),
            ("0SEND_F0,0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n", 1, 1, "0SEND_F0 is on the wrong side of 0F0"),
            ("0F0,0B0,5RECV_B7\n", 1, 3, "5RECV_B7 belongs to no compute of this row"),
            ("0F0,0SEND_F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n", 1, 3, "0SEND_F0 belongs to no compute"),
        ] {
            let error = Plan::from_csv(csv).unwrap_err();
            assert_eq!((error.row, error.column), (row, column), "{csv}: {error}");
            assert!(error.cause.to_string().starts_with(message), "{error}");
        }
    }

    #[test]
    fn pytorchs_earlier_letters_are_read() {
        let plan = Plan::from_csv("0F0,0F1,0B0,0W0,0BW1\n").unwrap();
        assert_eq!(plan.to_csv(), "0F0,0F1,0I0,0W0,0B1\n");
        // A plan with an `I` uses the current letters, so a `B` beside a `W` is left for `check` to reject.
        assert_eq!(Plan::from_csv("0F0,0I0,0W0,0F1,0B1,0W1\n").unwrap().to_csv(), "0F0,0I0,0W0,0F1,0B1,0W1\n");
    }

    #[test]
    fn byte_order_marks_carriage_returns_and_blank_lines_are_ignored() {
        let plan = Plan::from_csv("\u{feff}0F0,0B0\r\n1F0,1B0\r\n\r\n").unwrap();
        assert_eq!(plan.to_csv(), "0F0,0B0\n1F0,1B0\n");
    }
}
