//! Tests that need a process to themselves: they listen to all of it, or count what it has.

#[allow(dead_code)] // one model for all tests
#[path = "../pipeline/mlp.rs"]
mod mlp;

#[allow(dead_code)]
#[path = "../../examples/gpt/cut.rs"]
mod cut;
#[allow(dead_code)]
#[path = "../../examples/gpt/model.rs"]
mod model;

#[global_allocator]
static ALLOCATOR: stageline::CountingAllocator = stageline::CountingAllocator::new();

use std::sync::Mutex;

mod injection;
mod kills;
mod memory;
mod soak;
mod standing;

/// One after the other.
static TURN: Mutex<()> = Mutex::new(());
