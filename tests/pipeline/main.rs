//! Whole-system tests of the library, one binary: what a step promises, on real threads.

#[path = "../../examples/gpt/cut.rs"]
mod cut;
#[path = "../../benches/support/empty.rs"]
mod empty;
#[path = "../../examples/gpt/fingerprint.rs"]
mod fingerprint;
#[path = "../../fuzz/src/restore.rs"]
mod hostile;
#[allow(dead_code)] // the tests sample no text
#[path = "../../examples/gpt/model.rs"]
mod model;
#[path = "../support/programs.rs"]
mod programs;
#[path = "../support/runs.rs"]
mod runs;

#[global_allocator]
static ALLOCATOR: stageline::CountingAllocator = stageline::CountingAllocator::new();

mod accumulation;
mod boundaries;
mod command;
mod completion;
mod doors;
mod evaluation;
mod failure;
mod flush;
#[cfg(target_os = "linux")]
mod frozen;
mod gpt;
mod health;
mod keeping;
mod lora;
mod lost_device;
mod memory;
mod mlp;
mod normalisation;
mod parity;
mod precision;
mod recompute;
mod recording;
mod replicas;
mod resume;
mod steps;
mod terms;
mod tied;
mod transfers;
mod verify;
mod verify_edges;
mod verify_uncut;
mod watchdog;
mod ways_out;
