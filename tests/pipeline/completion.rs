//! A plan that `check` accepts completes on real threads, and one that it refuses starts none.

use burn::optim::SgdConfig;
use proptest::prelude::*;
use stageline::schedule::{Compute, Interleaved, LoopedBreadthFirst, Plan, SCHEDULES, Schedule, check};
use stageline::{Batch, BuildError, Pipeline, StageConfig};

use crate::empty::Empty;
use crate::mlp::{device, within_a_minute};

fn pipeline(
    stages: usize,
    micro_batches: usize,
    capacity: usize,
    schedule: impl Schedule + 'static,
) -> Result<Pipeline<(), ()>, BuildError> {
    let config = || StageConfig::new(device(), SgdConfig::new().init(), 0.1);
    let mut chain = Pipeline::builder();
    for _ in 1..stages {
        chain = chain.stage(Empty::default(), config());
    }
    let builder = chain.loss(Empty::default(), config()).schedule(schedule).micro_batches(micro_batches);
    builder.channel_capacity(capacity).cores_per_stage(1).build()
}

/// Two steps and an evaluation.
fn completes(mut pipeline: Pipeline<(), ()>, micro_batches: usize) {
    within_a_minute(move || {
        for _ in 0..2 {
            let report = pipeline.step(Batch::from_micro_batches(vec![((), ()); micro_batches])).unwrap();
            assert_eq!((report.loss, report.weight), (1.0, micro_batches as f64));
        }
        pipeline.eval(Batch::from_micro_batches(vec![((), ()); micro_batches.div_ceil(2)])).unwrap();
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_check_accepts_completes_and_what_it_refuses_starts_nothing(
        workers in 1..5_usize, chunks in 1..4_usize, micro_batches in 1..9_usize, capacity in 0..4_usize,
        pick in 0..SCHEDULES.len() + 2,
    ) {
        let stages = workers * chunks;
        let schedule: Box<dyn Schedule> = match pick.checked_sub(SCHEDULES.len()) {
            Some(0) => Box::new(Interleaved { chunks }),
            Some(_) => Box::new(LoopedBreadthFirst { chunks }),
            None => Box::new(SCHEDULES[pick]),
        };
        let plan = schedule.plan(stages, micro_batches);
        let split = |plan: &Plan| plan.rows().iter().flatten().any(|action| action.compute == Compute::InputGradient);
        let accepted = plan.is_ok_and(|plan| !split(&plan) && check(plan, capacity).is_ok());
        match pipeline(stages, micro_batches, capacity, schedule) {
            Ok(pipeline) => {
                prop_assert!(accepted);
                completes(pipeline, micro_batches);
            }
            Err(error) => prop_assert!(!accepted, "{}", error),
        }
    }
}
