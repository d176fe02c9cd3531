//! Runs a test in a process with little memory, so that a parser that asks for too much of it fails.

use std::env;
use std::process::Command;

/// Runs the ignored test with the path `test` of this test program in a child process that may use only 512 MiB of
/// virtual memory. Panics with the child's output if the test does not pass.
pub fn run_with_little_memory(test: &str) {
    let script = r#"ulimit -v 524288 && exec "$0" --exact "$1" --ignored --nocapture"#;
    let program = env::current_exe().expect("the path of the test program is known");
    let child = Command::new("sh").args(["-c", script]).arg(program).arg(test).output().expect("the child can start");
    let output = String::from_utf8_lossy(&child.stdout) + String::from_utf8_lossy(&child.stderr);
    // The text is missing if the process was ended before the end of the test.
    assert!(child.status.success() && output.contains("1 passed"), "{output}");
}
