//! What must hold for every schedule, plan and cost. One binary, a file a subject.

mod checking;
mod forms;
mod generators;
mod search;
mod seeds;
mod simulation;
mod streams;

use stageline_schedule::{Checked, Costs, DualPipeV, Schedule, Timeline, VHalf, VMin, ZbV, check, simulate};

/// Those with chunks in a V.
const V_SHAPED: [&dyn Schedule; 4] = [&ZbV, &DualPipeV, &VHalf, &VMin];

/// The plan of a schedule, with channels that hold all micro-batches.
fn checked(schedule: &dyn Schedule, stages: usize, micro_batches: usize) -> Checked {
    check(schedule.plan(stages, micro_batches).unwrap(), micro_batches).unwrap()
}

fn simulated(schedule: &dyn Schedule, stages: usize, micro_batches: usize, costs: &Costs) -> Timeline {
    simulate(&checked(schedule, stages, micro_batches), costs)
}
