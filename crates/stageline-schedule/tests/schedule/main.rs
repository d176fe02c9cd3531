//! Tests properties of every schedule, plan and cost, in one binary with one file per subject.

mod checking;
mod damaged_plans;
mod fuzz_inputs;
mod generators;
mod search;
mod simulation;
mod streams;

use stageline_schedule::{Checked, Costs, DualPipeV, Schedule, Timeline, VHalf, VMin, ZbV, check, simulate};

/// The schedules with two chunks (stages) per worker in a V: the first and the last stage share a worker.
const V_SHAPED: [&dyn Schedule; 4] = [&ZbV, &DualPipeV, &VHalf, &VMin];

/// Returns the plan of a schedule, checked for channels that each hold all micro-batches of a step.
fn checked(schedule: &dyn Schedule, stages: usize, micro_batches: usize) -> Checked {
    check(schedule.plan(stages, micro_batches).unwrap(), micro_batches).unwrap()
}

fn simulated(schedule: &dyn Schedule, stages: usize, micro_batches: usize, costs: &Costs) -> Timeline {
    simulate(&checked(schedule, stages, micro_batches), costs)
}
