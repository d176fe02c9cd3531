//! Parts of the test in `abandoned`: a training run with a thread that never returns ends with exit status 3, names the
//! stage, and can be resumed.

use std::fs;
use std::io::Read;
use std::process::{Child, Stdio};
use std::time::Duration;

use nix::libc::{FUTEX_WAIT, FUTEX_WAIT_BITSET, SYS_futex};
use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::runs::{Place, wait_for_lines};

/// Returns the id of the thread with the name `name` in a child process.
fn thread_called(name: &str, child: &Child) -> Pid {
    let threads = fs::read_dir(format!("/proc/{}/task", child.id())).unwrap().map(|thread| thread.unwrap().path());
    let is_called =
        |path: &std::path::PathBuf| fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.trim() == name);
    let thread = threads.into_iter().find(is_called).expect("a thread of this name");
    Pid::from_raw(thread.file_name().unwrap().to_str().unwrap().parse().unwrap())
}

/// Stops one thread of a child process for ever, as a driver call that never returns would. The thread is stopped while
/// it waits for another thread. It then holds no lock that other threads need.
fn freeze(thread: Pid, child: &Child) {
    ptrace::seize(thread, ptrace::Options::empty()).expect("a process may trace its children");
    loop {
        ptrace::interrupt(thread).unwrap();
        waitpid(thread, Some(WaitPidFlag::__WALL)).unwrap();
        if waits(&fs::read_to_string(format!("/proc/{}/task/{thread}/syscall", child.id())).unwrap()) {
            return;
        }
        ptrace::cont(thread, None).unwrap();
        std::thread::sleep(Duration::from_millis(5)); // lets the thread run on before the next stop
    }
}

/// Whether a line of `/proc/<pid>/task/<tid>/syscall` shows that the thread `<tid>` waits for another thread (a futex
/// wait).
fn waits(call: &str) -> bool {
    const COMMAND: i64 = 0x7f; // the other bits are flags
    let [name, _, operation, ..] = call.split_whitespace().collect::<Vec<_>>()[..] else { return false };
    let operation = operation.strip_prefix("0x").and_then(|number| i64::from_str_radix(number, 16).ok());
    let is_wait = |operation| [FUTEX_WAIT, FUTEX_WAIT_BITSET].map(i64::from).contains(&(operation & COMMAND));
    name == SYS_futex.to_string() && operation.is_some_and(is_wait)
}

pub fn a_run_with_a_thread_that_never_returns_ends_with_exit_status_3() {
    assert_ends_with_status_3("--every 1");
}

pub fn a_run_of_overlapping_steps_with_a_thread_that_never_returns_ends_with_exit_status_3() {
    assert_ends_with_status_3("--every 100 --flush ahead");
}

/// Stops a worker thread of a training run with the given flags for ever. Asserts the run's exit status and error
/// messages, and that the run can be resumed.
fn assert_ends_with_status_3(flags: &str) {
    let place = Place::new();
    let flags = format!("--steps 1000000 --watchdog 1 --checkpoint @kept --log @log {flags}");
    let mut child = place.command(&flags).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for_lines(&place.path("log"), 3, &mut child);
    let thread = thread_called("stage-1", &child);
    freeze(thread, &child);
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    // The tracer has to collect the end of a traced thread before the process can end.
    while !matches!(
        waitpid(thread, Some(WaitPidFlag::__WALL)),
        Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)) | Err(_)
    ) {}
    assert_eq!(child.wait().unwrap().code(), Some(3), "{said}");
    for part in [
        "a worker does not end: its thread and its modules are left behind stage=1",
        "Error: the pipeline is given up: ",
        "\n  stage 1: ",
    ] {
        assert!(said.contains(part), "no {part:?} in {said}");
    }
    let kept = place.said("--resume latest --checkpoint @kept --stop-after 1");
    assert!(kept.contains("; to resume from it: --resume "), "{kept}");
}
