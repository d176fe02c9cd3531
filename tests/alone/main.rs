//! Tests that need a process of their own, because they subscribe to the events of the process, count its memory and
//! threads, or kill it.

use stageline_gpt::model;
use stageline_workspace::mlp;
use stageline_workspace::own_process::ran_in_a_process_of_its_own;

#[global_allocator]
static ALLOCATOR: stageline::CountingAllocator = stageline::CountingAllocator::new();

mod endurance;
mod injection;
mod kills;
mod memory;
mod messages;
mod resuming;
mod standing;
