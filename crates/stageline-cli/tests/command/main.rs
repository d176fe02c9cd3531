//! Tests the `stageline` command, run as users run it.

mod advise;
mod from_log;
mod links;
mod logs;
mod plans;

use std::process::{Command, Output};

use serde_json::Value;

fn stageline(arguments: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_stageline")).args(arguments.split_whitespace()).output().unwrap()
}

fn text(arguments: &str) -> String {
    let output = stageline(arguments);
    assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn json(arguments: &str) -> Value {
    serde_json::from_str(&text(arguments)).unwrap()
}

fn error(arguments: &str) -> String {
    let output = stageline(arguments);
    assert!(!output.status.success(), "{arguments} was accepted");
    String::from_utf8(output.stderr).unwrap()
}
