//! Tests of memory over many training steps: the bytes in use and reserved on a GPU, and the memory of the process.

use burn::optim::AdamWConfig;
use example_gpt::model::{costs, gpt};
use stageline::{DeviceMemory, StageConfig};
use stageline_workspace::own_process::ran_in_a_process_of_its_own;

use crate::{SMALL, batch_of, open};

/// The number of micro-batches in a step, of two samples each. The first of two stages has both of them live at a time.
const MICRO_BATCHES: usize = 2;

/// The number of bytes by which the memory of a process may grow although nothing leaks, because allocators keep freed
/// memory.
const SLACK: u64 = 64 << 20;

/// The memory of a training at one of its steps, in bytes: on the GPU and in the process.
#[derive(Clone, Copy, Debug)]
struct Measured {
    /// The bytes in use on the GPU at the beginning of the step, as the step's recording has them.
    resident: u64,
    /// The bytes that tensors have in use on the GPU after the step.
    in_use: u64,
    /// The bytes that are reserved on the GPU after the step.
    reserved: u64,
    /// The memory of the process in bytes after the step, which for a GPU emulated in software includes the GPU's
    /// memory; 0 if it is unknown.
    process: u64,
}

/// Returns the resident memory of this process in bytes; 0 on other systems than Linux.
fn of_process() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    1024 * kilobytes.unwrap_or(0)
}

/// Tests that the memory of a training does not grow: after 300 steps it is what it was after 50. The test has a
/// process of its own, because tests that run beside it would use the same GPU.
#[test]
fn memory_does_not_grow() {
    if ran_in_a_process_of_its_own() {
        return;
    }
    let device = open("gpu").remove(0);
    let config = |_| StageConfig::new(device.clone(), AdamWConfig::new().init(), 1e-3);
    let builder = gpt(SMALL, 7).pipeline(&costs(SMALL).cut(2).unwrap(), (0..2).map(config)).unwrap();
    let builder = builder.micro_batches(MICRO_BATCHES).cores_per_stage(1).synchronise_every(1);
    let mut pipeline = builder.build().unwrap();
    let mut after = |steps: std::ops::Range<usize>| {
        let reports = steps.map(|step| pipeline.step(batch_of(2 * MICRO_BATCHES, step)).unwrap());
        let memory = reports.last().unwrap().recording.memory().expect("a GPU's memory is measured in these steps");
        device.sync().unwrap();
        let DeviceMemory { reserved, in_use, .. } = DeviceMemory::of(&device).expect("a GPU's memory is known");
        let resident = memory.iter().map(|worker| worker.resident).max().unwrap();
        Measured { resident, in_use, reserved, process: of_process() }
    };
    let (early, late) = (after(0..50), after(50..300));
    println!("{early:?} and then {late:?}");
    assert!(early.in_use > 0 && early.reserved >= early.in_use, "{early:?}");
    // The other stage's tensors in flight differ from step to step, by less than a leak of 200 bytes a step.
    assert!(late.resident <= early.resident + 250 * 200, "{early:?} became {late:?}");
    // Some tensors of a step may still be in use at its end, which differs from step to step.
    assert!(late.in_use <= early.in_use + early.in_use / 10, "{early:?} became {late:?}");
    assert!(late.reserved <= early.reserved + early.reserved / 2, "{early:?} became {late:?}");
    assert!(late.process <= early.process + SLACK, "{early:?} became {late:?}");
}
