//! Fuzzes the parsers of the text forms of actions and instructions, and plans that are made of parsed actions.

use stageline_schedule::{Action, Instruction, Plan};

/// Parses every word of a fuzz input as an action and as an instruction (an action, a send or a receive) of a plan.
/// Then makes a plan in which each line is one worker's list of actions, and asserts its properties.
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

/// Parses one word of a plan, and returns it if it is an action. Asserts that the text of a parsed instruction gives
/// the same instruction. For an invalid word, the error message must be short and in printable ASCII. It must quote the
/// word if the word itself is short and printable.
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
            let message = error.to_string();
            assert!(message.bytes().all(|byte| matches!(byte, b' '..=b'~')) && message.len() < 600, "{message}");
            let is_shown = word.len() <= 40 && word.bytes().all(|byte| matches!(byte, b' '..=b'~'));
            assert!(!is_shown || message.contains(word), "{message}");
            assert!(word.parse::<Action>().is_err());
            None
        }
    }
}
