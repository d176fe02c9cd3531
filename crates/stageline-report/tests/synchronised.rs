//! Tests predictions from runs with synchronised steps, in which workers wait for their devices after every action.

mod synthetic;

use stageline_report::{Cut, Measured, Target};
use stageline_schedule::OneFOneB;

use synthetic::log;

#[test]
fn the_cost_of_the_measurement_makes_no_prediction_longer() {
    let without = log(&[1.0; 4], 2, 4, 0.25);
    let mut with = without.clone();
    for step in &mut with.steps {
        step.synchronised = true;
        step.step_seconds += 10.0;
        step.workers.iter_mut().for_each(|account| account.asking = 10.0);
    }
    let target = Target { workers: 2, micro_batches: 8, schedule: &OneFOneB, cut: Cut::OfTheRun };
    let [plain, asked] = [&without, &with].map(|log| Measured::of(log).unwrap().predict(&target).unwrap().step);
    assert!((asked / plain - 1.0).abs() < 1e-12, "{asked} instead of {plain}");
    assert!((Measured::of(&with).unwrap().variation() - 1.0).abs() < 1e-12);
}
