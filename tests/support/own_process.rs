//! Runs a test in a process of its own, so that it can watch its whole process while other tests run.

use std::process::Command;
use std::{env, thread};

/// The environment variable that marks the process of a single test. The test then runs in this process, and starts no
/// further process.
const OF_ITS_OWN: &str = "STAGELINE_TEST_OF_ITS_OWN";

/// Runs the calling test in a new process, so that tests that watch their whole process can run at the same time.
/// Returns false in that new process, and if all tests run one after the other (`--test-threads=1`): the caller then
/// runs the test itself.
pub fn ran_in_a_process_of_its_own() -> bool {
    let thread = thread::current();
    // A test's thread has the test's name, and the main thread runs the tests of `--test-threads=1`.
    let Some(name) = thread.name().filter(|name| *name != "main" && env::var_os(OF_ITS_OWN).is_none()) else {
        return false;
    };
    let mut command = Command::new(env::current_exe().unwrap());
    let output =
        command.args([name, "--exact", "--nocapture", "--include-ignored"]).env(OF_ITS_OWN, name).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    println!("{text}"); // `--nocapture` shows what the test has measured
    true
}
