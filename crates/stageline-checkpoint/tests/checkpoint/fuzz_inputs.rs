//! Runs the fuzz target of checkpoints on its seeds and on mutations of the seeds.

#[path = "../../../../fuzz/src/little_memory.rs"]
mod little_memory;
#[path = "../../../../fuzz/src/manifest.rs"]
mod manifest;
#[path = "../../../../fuzz/src/mutations.rs"]
mod mutations;

const SEEDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/manifest");

/// The pieces of text that mutations of fuzz seeds insert: pieces of manifests, headers and indices, and numbers at the
/// ends of their range.
const WORDS: [&str; 34] = [
    "0",
    "1",
    "2",
    "3",
    "?bytes",
    "?sha256",
    "|",
    "{",
    "}",
    "[",
    "]",
    ",",
    "\"",
    "null",
    "-1",
    "0.1",
    "1e999",
    "8.998289818528182e-35",
    "18446744073709551615",
    "18446744073709551616",
    "9007199254740992",
    "9007199254740993",
    "2305843009213693951",
    "\"F32\"",
    "\"F4\"",
    "\"C64\"",
    "\"NaN\"",
    "\"$f64\"",
    "\"head.w/x\":{\"file\":\"optimizer/head.safetensors\",\"dtype\":\"F32\",\"shape\":[0]},",
    "\"shape\":[]",
    "../",
    "\\u0000",
    "\n}",
    "é",
];

/// Runs the fuzz target on mutated manifests. This test does nothing by itself:
/// `any_bytes_are_a_checkpoint_or_an_error_and_take_little_memory` starts it in a process with little memory.
#[test]
#[ignore = "is started by another test"]
fn child_with_little_memory() {
    let seeds = mutations::seeds(SEEDS);
    assert!(seeds.len() >= 30, "{} seeds", seeds.len());
    mutations::run(&seeds, &WORDS, 5_000, manifest::manifest);
}

#[test]
fn any_bytes_are_a_checkpoint_or_an_error_and_take_little_memory() {
    little_memory::run_with_little_memory("fuzz_inputs::child_with_little_memory");
}
