//! Tests predictions of schedules that split backward passes, from synthetic runs.

mod events;
mod synthetic;

use stageline_report::{Cut, Measured, RunLog, Target};
use stageline_schedule::{Costs, OneFOneB, Placement, Plan, Schedule, StageCost, ZbH1, check, simulate};

use events::event;
use synthetic::log;

/// Makes the log of a run of two stages under ZB-H1, a schedule that splits backward passes. A forward pass takes 2 s
/// and a backward pass 4 s. The fraction `share` of the backward pass is the input gradient.
fn split(share: f64) -> RunLog {
    let mut log = log(&[1.0; 4], 2, 4, 0.0);
    let plan: Plan = ZbH1.plan(2, 4).unwrap();
    let of_row = |row: &Vec<_>| {
        row.iter()
            .map(|action: &stageline_schedule::Action| {
                let seconds = match action.compute.letter() {
                    'F' => 2.0,
                    'I' => 4.0 * share,
                    _ => 4.0 * (1.0 - share),
                };
                event(action.stage, &action.to_string(), 0.0..seconds)
            })
            .collect()
    };
    log.steps[2].timeline = plan.rows().iter().map(of_row).collect();
    (log.run.plan, log.plan) = (plan.to_csv(), plan);
    log
}

#[test]
fn a_split_backward_has_the_measured_shares_of_its_halves() {
    for share in [0.25, 0.5, 0.75] {
        let measured = Measured::of(&split(share)).unwrap();
        let costs = measured.costs(&Placement::in_turn(2, 1), measured.cut()).unwrap();
        let stage = StageCost::new(2.0, 4.0 * share, 4.0 * (1.0 - share));
        assert_eq!(costs, Costs::equal(2, stage).with_optimizer(vec![1.0; 2]));
        let plan = check(ZbH1.plan(2, 8).unwrap(), 8).unwrap();
        let step = simulate(&plan, &costs).step() * measured.variation();
        let target = Target { workers: 2, micro_batches: 8, schedule: &ZbH1, cut: Cut::OfTheRun };
        assert!((measured.predict(&target).unwrap().step / step - 1.0).abs() < 1e-9);
    }
    let whole = Measured::of(&log(&[1.0; 4], 2, 4, 0.0)).unwrap();
    let costs = whole.costs(&Placement::in_turn(2, 1), whole.cut()).unwrap();
    assert_eq!(costs.stage(0, 0), StageCost::new(2.0, 2.0, 2.0));
}

/// Tests that the predicted overhead of a step is proportional to the number of actions of a worker. In the logged run,
/// 8 actions have an overhead of 0.8 s. Under ZB-H1, a worker has 12 actions, so the predicted overhead is 1.2 s.
#[test]
fn both_halves_of_a_backward_have_the_overhead_of_an_action() {
    let [without, with] = [0.0, 0.8].map(|other| Measured::of(&log(&[1.0; 4], 2, 4, other)).unwrap());
    for (schedule, overhead) in [(&OneFOneB as &dyn Schedule, 0.8), (&ZbH1, 1.2)] {
        let target = Target { workers: 2, micro_batches: 4, schedule, cut: Cut::OfTheRun };
        let [plain, longer] = [&without, &with].map(|measured| measured.predict(&target).unwrap().step);
        assert!((longer - plain - overhead).abs() < 1e-9, "{}: {}", schedule.name(), longer - plain);
    }
}
