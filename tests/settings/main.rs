//! Runs the fuzz target that reads a training's settings on its seeds and on mutations of them, in little memory and
//! without burn.

#[path = "../../fuzz/src/configuration.rs"]
mod configuration;
#[path = "../../fuzz/src/little_memory.rs"]
mod little_memory;
#[path = "../../fuzz/src/mutations.rs"]
mod mutations;

const SEEDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/seeds/configuration");

/// The pieces of text that a fuzz test inserts into the settings of a training: parts of command lines, settings files
/// and JSON, and numbers at the limits of their range.
const WORDS: [&str; 40] = [
    "|",
    "\n",
    "\r\n",
    "=",
    " = ",
    "--",
    "--set\n",
    "--help",
    "--config",
    "--print-config",
    "--resume",
    "--stop-after",
    "--verify",
    "--seed=",
    "--data=",
    "--micro-batches",
    "micro_batches",
    "micro_batchs",
    "seed",
    "clip",
    "data",
    "device",
    "keep",
    "schedule",
    "\"precision\":",
    "\"",
    "\"\"\"",
    ",",
    "{",
    "}",
    "[",
    "null",
    "true",
    "-1",
    "1e999",
    "nan",
    "8.998289818528182e-35",
    "18446744073709551615",
    "\\u0000",
    "é",
];

/// Runs the fuzz target for the settings of a training in a process that may use only 512 MiB of virtual memory.
/// Another test of this file starts this test in a child process with that limit.
#[test]
#[ignore = "is started by another test"]
fn child_with_little_memory() {
    let seeds = mutations::seeds(SEEDS);
    assert!(seeds.len() >= 30, "{} seeds", seeds.len());
    mutations::run(&seeds, &WORDS, 5_000, configuration::configuration);
}

#[test]
fn any_settings_resolve_or_are_an_error_with_little_memory() {
    little_memory::run_with_little_memory("child_with_little_memory");
}
