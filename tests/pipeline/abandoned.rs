//! Tests of threads that never return: a step or a run ends with an error that names the stage, and leaves the thread
//! behind.

use std::thread;

#[cfg(target_os = "linux")]
use crate::frozen;
use crate::watchdog;

/// Runs the tests of `watchdog` and `frozen` that mostly wait at the same time. One after the other, they would wait for
/// a minute.
#[test]
fn a_thread_that_never_returns_is_named_and_left_behind() {
    let tests: &[fn()] = &[
        watchdog::a_stage_that_hangs_is_named_and_left_behind,
        watchdog::a_stage_that_hangs_is_named_with_its_replica,
        watchdog::a_failure_is_reported_although_another_stage_hangs,
        #[cfg(target_os = "linux")]
        frozen::a_run_with_a_thread_that_never_returns_ends_with_exit_status_3,
        #[cfg(target_os = "linux")]
        frozen::a_run_of_overlapping_steps_with_a_thread_that_never_returns_ends_with_exit_status_3,
    ];
    thread::scope(|scope| tests.iter().for_each(|test| drop(scope.spawn(test))));
}
