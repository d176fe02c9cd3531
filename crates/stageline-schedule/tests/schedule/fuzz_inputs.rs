//! Runs the fuzz targets of plans on their seeds and on mutations of the seeds.

#[path = "../../../../fuzz/src/mutations.rs"]
mod mutations;
#[path = "../../../../fuzz/src/plan_csv.rs"]
mod plan_csv;
#[path = "../../../../fuzz/src/plan_text.rs"]
mod plan_text;

const SEEDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds");

/// Pieces of text that mutations of fuzz seeds insert: pieces of plans as CSV, and numbers at the ends of their range.
const WORDS: [&str; 20] = [
    "0F0",
    "1B0",
    "0I0",
    "0W0",
    "0BW0",
    "0SEND_F0",
    "1RECV_F0",
    "1SEND_B0",
    "0RECV_B0",
    "0WAIT_SEND_F0",
    "0UNSHARD",
    "(0F0;0B0)OVERLAP_F_B",
    ",",
    " ",
    "\n",
    "\r\n",
    "\u{feff}",
    "18446744073709551614",
    "18446744073709551615",
    "1",
];

fn run(target: &str, tries: usize, body: fn(&[u8])) {
    let seeds = mutations::seeds(&format!("{SEEDS}/{target}"));
    assert!(seeds.len() >= 10, "{} seeds", seeds.len());
    mutations::run(&seeds, &WORDS, tries, body);
}

#[test]
fn any_text_is_an_action_or_an_error() {
    run("plan_text", 10_000, plan_text::plan_text);
}

#[test]
fn any_csv_is_a_plan_or_an_error() {
    run("plan_csv", 10_000, plan_csv::plan_csv);
}
