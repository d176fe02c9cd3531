//! Fuzzes the text form of actions and instructions, and plans that are made of them.

use stageline_schedule::{Action, Instruction, Plan};

/// Parses every word as an action and as an instruction, and builds a plan with a worker for each line.
pub fn plan_text(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let rows: Vec<Vec<Action>> = text.lines().map(|line| line.split(' ').filter_map(word).collect()).collect();
    let plan = Plan::new(rows);
    assert_eq!(plan.to_string().lines().count(), plan.workers());
    let live = plan.peak_live();
    assert_eq!(live.len(), plan.workers());
    assert!(live.iter().zip(plan.rows()).all(|(live, row)| *live <= row.len()));
    // The first round trip may drop empty rows at the end and rename the letters of earlier versions; the second
    // changes nothing.
    let read = Plan::from_csv(&plan.to_csv()).expect("what is written is read");
    assert_eq!(Plan::from_csv(&read.to_csv()).as_ref(), Ok(&read));
    for micro_batches in [0, 1, plan.micro_batches()] {
        assert!(plan.forward_only(micro_batches).micro_batches() <= micro_batches);
    }
}

/// Parses one word. Asserts that a parsed instruction is written the same way, and that an error names the word.
fn word(word: &str) -> Option<Action> {
    match word.parse::<Instruction>() {
        Ok(instruction) => {
            assert_eq!(instruction.to_string().parse(), Ok(instruction));
            assert_eq!(word.parse().ok(), instruction.compute());
            assert!(instruction.stage() < usize::MAX && instruction.micro_batch() < usize::MAX);
            if let Instruction::Send(transfer) | Instruction::Receive(transfer) = instruction {
                assert_eq!(transfer.to().abs_diff(transfer.from), 1);
            }
            instruction.compute()
        }
        Err(error) => {
            assert_eq!(error.text(), word);
            assert!(error.to_string().contains(word));
            assert!(word.parse::<Action>().is_err());
            None
        }
    }
}
