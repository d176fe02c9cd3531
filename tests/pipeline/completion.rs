//! Property tests of the plan check (`check`): a plan that the check accepts completes on real threads, and a plan that
//! the check refuses starts no thread.

use burn::optim::SgdConfig;
use proptest::prelude::*;
use proptest::sample::Index;
use stageline::schedule::{
    EagerOneFOneB, GPipe, Interleaved, LoopedBreadthFirst, OneFOneB, Plan, SCHEDULES, Schedule, ZbH1, ZbH2, check,
};
use stageline::{Batch, BuildError, Pipeline, StageConfig};

use crate::empty::Empty;
use crate::mlp::{device, within_a_minute};

fn pipeline(
    stages: usize,
    micro_batches: usize,
    capacity: usize,
    schedule: impl Schedule + 'static,
) -> Result<Pipeline<(), (), ()>, BuildError> {
    let config = || StageConfig::new(device(), SgdConfig::new().init(), 0.1);
    let mut chain = Pipeline::builder();
    for _ in 1..stages {
        chain = chain.stage(Empty::default(), config());
    }
    let builder = chain.loss(Empty::default(), config()).schedule(schedule).micro_batches(micro_batches);
    builder.channel_capacity(capacity).cores_per_stage(1).build()
}

/// Asserts that a pipeline completes two steps and an evaluation within a minute.
fn completes(mut pipeline: Pipeline<(), (), ()>, micro_batches: usize) {
    within_a_minute(move || {
        for _ in 0..2 {
            let report = pipeline.step(Batch::from_micro_batches(vec![((), ()); micro_batches])).unwrap();
            assert_eq!((report.loss, report.weight()), (1.0, micro_batches as f64));
        }
        pipeline.eval(Batch::from_micro_batches(vec![((), ()); micro_batches.div_ceil(2)])).unwrap();
    });
}

/// Returns the schedule with the index `pick`. The first indices are the published schedules with one chunk (stage) per
/// worker; the indices after them are the schedules with `chunks` chunks per worker.
fn schedule(pick: usize, chunks: usize) -> Box<dyn Schedule> {
    match pick.checked_sub(SCHEDULES.len()) {
        Some(0) => Box::new(Interleaved { chunks }),
        Some(_) => Box::new(LoopedBreadthFirst { chunks }),
        None => Box::new(SCHEDULES[pick]),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn accepted_plans_complete_and_refused_plans_start_nothing(
        workers in 1..5_usize, chunks in 1..4_usize, micro_batches in 1..9_usize, capacity in 0..4_usize,
        pick in 0..SCHEDULES.len() + 2,
    ) {
        let stages = workers * chunks;
        let schedule = schedule(pick, chunks);
        let plan = schedule.plan(stages, micro_batches);
        let accepted = plan.is_ok_and(|plan| check(plan, capacity).is_ok());
        match pipeline(stages, micro_batches, capacity, schedule) {
            Ok(pipeline) => {
                prop_assert!(accepted);
                completes(pipeline, micro_batches);
            }
            Err(error) => prop_assert!(!accepted, "{}", error),
        }
    }

    /// Tests plans that no generator writes: neighbouring actions are swapped, and an action may be missing or
    /// repeated. An accepted plan completes, and a rejected plan starts no thread.
    #[test]
    fn mutated_plans_complete_if_accepted_and_start_nothing_if_refused(
        workers in 1..5_usize, chunks in 1..3_usize, rounds in 1..4_usize, capacity in 0..4_usize, pick in 0..7_usize,
        swaps in prop::collection::vec((any::<Index>(), any::<Index>()), 0..8), damage in 0..10_usize,
    ) {
        let whole = [&GPipe as &dyn Schedule, &OneFOneB, &EagerOneFOneB, &Interleaved { chunks }, &LoopedBreadthFirst { chunks }, &ZbH1, &ZbH2];
        let plan = whole[pick].plan(workers * chunks, rounds * workers * chunks).unwrap();
        let mut rows = plan.rows().to_vec();
        for (worker, at) in swaps {
            let row = &mut rows[worker.index(plan.workers())];
            if row.len() < 2 { continue }
            let at = at.index(row.len() - 1);
            row.swap(at, at + 1);
            match damage {
                0 => { row.remove(at); }
                1 => row.insert(at, row[at]),
                _ => {}
            }
        }
        let plan = Plan::new(rows);
        let (stages, micro_batches) = (plan.stages(), plan.micro_batches());
        let accepted = check(plan.clone(), capacity).is_ok();
        match pipeline(stages, micro_batches, capacity, plan) {
            Ok(pipeline) => {
                prop_assert!(accepted);
                completes(pipeline, micro_batches);
            }
            Err(error) => prop_assert!(!accepted, "{}", error),
        }
    }
}
