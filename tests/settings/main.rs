//! Runs the fuzz target that reads a training's settings on its seeds and on mutations of them, in little memory and
//! without burn.

use std::env;
use std::process::Command;

#[path = "../../fuzz/src/configuration.rs"]
mod configuration;
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
    let script = r#"ulimit -v 524288 && exec "$0" --exact child_with_little_memory --ignored --nocapture"#;
    let child = Command::new("sh").args(["-c", script]).arg(env::current_exe().unwrap()).output().unwrap();
    let output = String::from_utf8_lossy(&child.stdout) + String::from_utf8_lossy(&child.stderr);
    // The text is missing if the process was ended before the end of the test.
    assert!(child.status.success() && output.contains("1 passed"), "{output}");
}
