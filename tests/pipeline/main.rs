//! Tests of the whole library and its examples on real threads, in one program. Each module tests one property.

#[path = "../../fuzz/src/restore.rs"]
mod hostile;

use stageline_gpt::model;
use stageline_workspace::{empty, event_file, mlp, programs, runs};

#[global_allocator]
static ALLOCATOR: stageline::CountingAllocator = stageline::CountingAllocator::new();

mod abandoned;
mod accumulation;
mod boundaries;
mod command;
mod completion;
mod evaluation;
mod experts;
mod failure;
mod fallbacks;
mod flush;
#[cfg(target_os = "linux")]
mod frozen;
mod frozen_from;
mod gpt;
mod halves;
mod health;
mod infer;
mod keeping;
mod logged_noise;
mod lora;
mod lost_device;
mod memory;
mod noise;
mod normalisation;
mod optimizer_state;
mod optimizers;
mod parity;
mod precision;
mod recompute;
mod recording;
mod replicas;
mod resume;
mod row;
mod seeds;
mod shared_input;
mod steps;
mod terms;
mod tied;

mod remedies;
mod transfers;
mod validation;
mod verify;
mod verify_edges;
mod verify_parameters;
mod verify_uncut;
mod watchdog;
