//! Tests plan files with damaged text: parsing gives an error that names the place, or a plan that every function
//! accepts without a panic.

use proptest::prelude::*;
use stageline_schedule::{CellError, Costs, Memory, Plan, SCHEDULES, check, lower_bound, simulate};

/// Pieces of text that a test inserts into a plan's CSV text to damage it.
const PIECES: [&str; 16] = [
    "F",
    "B",
    "I",
    "W",
    "SEND_F",
    "RECV_B",
    "WAIT_SEND_F",
    "UNSHARD",
    ",",
    "\n",
    "\r\n",
    "(",
    ")OVERLAP_F_B",
    ";",
    "18446744073709551614",
    "é\u{0}",
];

/// Generates damaged CSV texts of plans, for tests of the parser. At up to 7 random places, 0 to 3 bytes of a correct
/// text are replaced by a digit or a piece of text.
fn damaged() -> impl Strategy<Value = String> {
    let cuts = prop::collection::vec((any::<prop::sample::Index>(), 0..4_usize, 0..PIECES.len() + 10), 0..8);
    (0..SCHEDULES.len(), 1..5_usize, 1..5_usize, any::<bool>(), cuts).prop_map(
        |(pick, workers, rounds, lowered, cuts)| {
            let schedule = SCHEDULES[pick];
            let plan = schedule.plan(workers * schedule.chunks(), workers * rounds).unwrap();
            let csv = if lowered { check(plan, workers * rounds).unwrap().to_lowered_csv() } else { plan.to_csv() };
            let mut bytes = csv.into_bytes();
            for (at, length, piece) in cuts {
                let at = at.index(bytes.len() + 1);
                let end = bytes.len().min(at + length);
                let digit = piece.saturating_sub(PIECES.len()).to_string();
                let piece = PIECES.get(piece).map_or(digit.as_str(), |piece| *piece);
                bytes.splice(at..end, piece.bytes());
            }
            String::from_utf8_lossy(&bytes).into_owned()
        },
    )
}

/// Parses a CSV text as a plan. If the text is valid, calls every function that accepts plans. None of these functions
/// may panic. If the text is invalid, the error must name the row and column of the faulty cell.
fn exercise(csv: &str, capacity: usize) {
    let plan = match Plan::from_csv(csv) {
        Ok(plan) => plan,
        Err(error) => {
            let line = csv.lines().nth(error.row - 1).unwrap();
            let cell = line.split(',').nth(error.column - 1).unwrap().trim();
            if let CellError::Unreadable(cause) = &error.cause {
                assert!(cell.contains(cause.text()), "{error} is not about `{cell}`");
            }
            return;
        }
    };
    assert_eq!(Plan::from_csv(&plan.to_csv()).as_ref(), Ok(&plan));
    let _ = (plan.to_string(), plan.peak_live());
    match check(plan, capacity) {
        Err(error) => assert!(!error.to_string().is_empty()),
        Ok(checked) => {
            let (stages, micro_batches) = (checked.plan().stages(), checked.plan().micro_batches());
            let costs = Costs::uniform(stages, 1.0, 2.0);
            let timeline = simulate(&checked, &costs);
            let bound = lower_bound(&checked.placement(), micro_batches, &costs, &Memory::unlimited(stages));
            assert!(bound <= timeline.step());
            assert_eq!(timeline.idle_by_cause(&checked, &costs).len(), checked.plan().workers());
            assert_eq!(Plan::from_csv(&checked.to_lowered_csv()).as_ref(), Ok(checked.plan()));
            let _ = (timeline.svg("ms"), timeline.grid(1.0), checked.transfers(), checked.at_most_live(1));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_damaged_plan_is_a_plan_or_an_error_with_its_place(csv in damaged(), capacity in 0..4_usize) {
        exercise(&csv, capacity);
    }

    #[test]
    fn no_text_panics(csv in "[0-9FBIWSEND_RCVAT();,\\r\\n ]{0,200}", capacity in 0..4_usize) {
        exercise(&csv, capacity);
    }
}
