//! Tests of training runs on a GPU that are stopped or killed, and resume.

use std::path::Path;
use std::process::{Child, Stdio};

use stageline_workspace::runs::{Place, wait_for_lines};

use crate::gpu_name;

/// Returns the final loss on held-out text, read from the output of a training run.
pub fn last_loss(said: &str) -> f64 {
    let line = said.lines().rfind(|line| line.starts_with("validation")).unwrap_or_else(|| panic!("{said}"));
    line.split(' ').nth(1).unwrap().parse().unwrap()
}

pub fn assert_near(found: f64, expected: f64) {
    assert!((found - expected).abs() < 1e-3, "{found} and {expected}");
}

/// Tests a training run that is stopped on a GPU, and resumed on the GPU and the CPU with its optimizer states on the
/// host. It ends with the loss of a run that was not stopped.
#[test]
fn a_resumed_run_ends_as_one_that_was_not_stopped() {
    let place = Place::new();
    let device = gpu_name();
    let whole = last_loss(&place.said(&format!("--device {device} --steps 8")));
    place.said(&format!("--device {device} --steps 8 --checkpoint @kept --stop-after 5"));
    let resumed = place.said(&format!("--device {device},cpu --resume @kept --optimizer-state host"));
    assert_near(last_loss(&resumed), whole);
}

/// Tests a training run that is killed (SIGKILL) three times, each time after it has written a checkpoint, and then
/// resumed. It ends with the loss of a run that was not killed.
#[test]
fn a_killed_run_resumes_and_ends_as_one_that_was_not_killed() {
    const STEPS: usize = 40;
    let place = Place::new();
    let flags = |rest: &str| format!("--device {} --steps {STEPS} {rest}", gpu_name());
    let whole = last_loss(&place.said(&flags("")));
    let kept = flags("--checkpoint @kept --every 1 --log @log.jsonl");
    let mut from = "";
    for kill in 0..3 {
        let mut command = place.command(&format!("{kept} {from}"));
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        wait_for_lines(&place.path("log.jsonl"), 5 * (kill + 1), &mut child);
        wait_for_a_checkpoint(&place.path("kept"), &mut child);
        child.kill().unwrap();
        assert!(!child.wait().unwrap().success(), "it was done before it was killed");
        from = "--resume latest";
    }
    assert_near(last_loss(&place.said(&format!("{kept} {from}"))), whole);
}

/// Waits until a training run has written a checkpoint, and panics if the run ends before that.
fn wait_for_a_checkpoint(folder: &Path, child: &mut Child) {
    let is_checkpoint = |name: &str| name.contains("-step-") && !name.starts_with('.');
    let names = || std::fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().file_name());
    while !names().any(|name| is_checkpoint(&name.to_string_lossy())) {
        assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
        std::thread::yield_now();
    }
}
