//! Runs the fuzzer's function for logs on its stored inputs (seeds) and on random changes of them.

#[path = "../../../fuzz/src/mutations.rs"]
mod mutations;
#[path = "../../../fuzz/src/run_log.rs"]
mod run_log;

const SEEDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/run_log");

/// Texts that the test inserts at random into the fuzzer's stored logs: numbers at the ends of their range, other JSON
/// values, and parts of plans.
const WORDS: [&str; 20] = [
    "0",
    "1",
    "-1",
    "1e-323",
    "1e30",
    "1e308",
    "4294967296",
    "1000000000000",
    "18446744073709551615",
    "null",
    "true",
    "[]",
    "{}",
    "\"\"",
    "0F0",
    "1B0",
    "0W0",
    "\\n",
    "\n",
    "\u{e9}",
];

#[test]
fn any_bytes_are_a_log_with_a_page_or_an_error() {
    let seeds = mutations::seeds(SEEDS);
    assert!(seeds.len() >= 25, "{} seeds", seeds.len());
    mutations::run(&seeds, &WORDS, 5_000, run_log::run_log);
}
