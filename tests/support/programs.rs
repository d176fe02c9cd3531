//! Finds the programs that cargo has built together with a test, and runs them.

use std::env;
use std::process::Command;

/// Returns a command that runs the example `name`, which a plain `cargo test` builds together with the test.
pub fn example(name: &str) -> Command {
    program(&format!("examples/{name}"))
}

/// Returns a command that runs a program which a plain `cargo test` builds, given the program's path in the build
/// folder.
pub fn program(path: &str) -> Command {
    let test = env::current_exe().unwrap();
    let folder = test.parent().and_then(|deps| deps.parent()).unwrap();
    let program = folder.join(format!("{path}{}", env::consts::EXE_SUFFIX));
    assert!(
        program.is_file(),
        "{} is not built; run `cargo test` or `cargo build --bins --examples`",
        program.display()
    );
    Command::new(program)
}

/// Runs a command, which must succeed, and returns its stdout.
pub fn stdout_of(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
