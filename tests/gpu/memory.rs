//! Tests of memory over many training steps: the bytes in use and reserved on a GPU, and the memory of the process.

use std::fs;

use burn::optim::AdamWConfig;
use serde_json::Value;
use stageline::schedule::{OneFOneB, ZbV};
use stageline::{Batch, Clock, DeviceMemory, Recompute, StageConfig};
use stageline_gpt::model::{Bytes, costs, gpt};
use stageline_workspace::own_process::ran_in_a_process_of_its_own;
use stageline_workspace::runs::Place;

use crate::{Builder, SMALL, batch, batch_of, builder, gpu_name, open};

/// The number of micro-batches in a step of the memory tests: two, each of two samples. In a pipeline of two stages,
/// the first stage keeps the activations of both micro-batches at the same time.
const MICRO_BATCHES: usize = 2;

/// The number of bytes by which the memory of a process may grow although nothing leaks, because allocators keep freed
/// memory.
const SLACK: u64 = 64 << 20;

/// The memory of a training at one of its steps, in bytes: on the GPU and in the process.
#[derive(Clone, Copy, Debug)]
struct Measured {
    /// The bytes that tensors have in use on the GPU after the step.
    in_use: u64,
    /// The bytes that are reserved on the GPU after the step.
    reserved: u64,
    /// The memory of the process after the step, in bytes; 0 if it is unknown. If the GPU is emulated in software, the
    /// GPU's memory is part of it.
    process: u64,
}

/// Returns the resident memory of this process in bytes; 0 on other systems than Linux.
fn of_process() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    1024 * kilobytes.unwrap_or(0)
}

/// Tests the GPU's memory in the log and on the report page. The log has it after every synchronised step, also if
/// steps overlap, and the page draws it. The memory in use is at least that of the parameters and of AdamW's two
/// moments, and at most the reserved memory. The reserved memory is at most the size of the GPU's memory, if that size
/// is known.
#[test]
fn the_log_and_the_page_have_the_memory_of_the_gpu() {
    let (place, device) = (Place::new(), gpu_name());
    for (flags, expected) in
        [("--synchronise-every 2", vec![0, 2]), ("--synchronise-every 2 --flush ahead", vec![0, 2]), ("", vec![0])]
    {
        place.said(&format!("--device {device} --steps 4 --log @log --report @page {flags}"));
        let log = fs::read_to_string(place.path("log")).unwrap();
        let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let total = lines[0]["machine"][format!("memory of {device} in bytes")].as_u64();
        let parameters = lines.last().unwrap()["parameters"].as_u64().unwrap();
        let mut read = Vec::new();
        for line in lines.iter().filter(|line| line["step"].is_u64()) {
            let Some(memory) = line["device_memory"].as_array() else { continue };
            read.push(line["step"].as_u64().unwrap());
            // Both stages are on one GPU, which is listed once.
            assert_eq!((memory.len(), &memory[0]["device"]), (1, &Value::from(device.as_str())), "{line}");
            let [in_use, reserved] = ["in_use", "reserved"].map(|field| memory[0][field].as_u64().unwrap());
            assert!(in_use >= 3 * 4 * parameters && in_use <= reserved, "{line}");
            assert!(total.is_none_or(|total| reserved <= total), "{line}, of {total:?}");
        }
        assert_eq!(read, expected, "{flags}");
        let page = fs::read_to_string(place.path("page")).unwrap();
        assert!(page.contains("aria-label='Device memory: in use / reserved'"), "{flags}");
        fs::remove_file(place.path("log")).unwrap();
    }
}

/// Tests that the memory estimate for a GPU is near the measured memory of training steps, with one or two stages on
/// the GPU. The estimate of AdamW's states is about two numbers per parameter. The test has a process of its own,
/// because tests that run beside it would use the same GPU.
#[test]
fn the_estimate_on_a_gpu_is_near_what_steps_use() {
    if ran_in_a_process_of_its_own() {
        return;
    }
    for stages in [1, 2] {
        let mut pipeline = builder("gpu", stages, OneFOneB, Recompute::Nothing).synchronise_every(1).build().unwrap();
        let estimate = pipeline.estimate_memory(batch(0)).unwrap().expect("a GPU's memory is measured");
        for stage in estimate.stages() {
            let ratio = stage.optimizer as f64 / (2 * stage.gradients) as f64;
            assert!((0.9..1.25).contains(&ratio), "{stages} stages: {stage:?}");
        }
        let estimated: u64 = estimate.devices().iter().map(|(_, bytes)| bytes).sum();
        let peaks = (0..4).flat_map(|step| pipeline.step(batch(step)).unwrap().recording.memory().unwrap());
        let measured = peaks.map(|worker| worker.peak).max().unwrap();
        let ratio = estimated as f64 / measured as f64;
        println!("{stages} stages: {estimated} bytes estimated, {measured} measured");
        assert!((0.7..2.0).contains(&ratio), "{stages} stages: {estimated} and {measured}");
    }
}

#[test]
fn a_training_that_does_not_fit_on_the_gpu_is_refused_by_the_name_of_the_gpu() {
    let device = gpu_name();
    let said =
        Place::new().refused(&format!("--device {device} --width 64 --micro-batch-size 32 --memory 0.004 --steps 1"));
    assert!(said.contains(&format!("of memory are needed on {device}, which has 4.0 MB")), "{said}");
}

/// Trains for two rounds of `steps` steps each, and asserts that the memory after the second round is what it was after
/// the first. Only the last step of each round is synchronised; in all other steps the host may run ahead of the GPU.
/// `batch` returns the batch of a step.
fn assert_memory_does_not_grow(builder: Builder, steps: usize, batch: impl Fn(usize) -> Batch<Bytes, Bytes>) {
    let device = open("gpu").remove(0);
    // Steps are counted from 0, and the synchronised ones are step 0 and every multiple of the interval.
    let mut pipeline = builder.synchronise_every(steps).build().unwrap();
    pipeline.step(batch(0)).unwrap();
    let mut round = |first: usize| {
        let reports = (first..first + steps).map(|step| pipeline.step(batch(step)).unwrap());
        let recording = reports.last().unwrap().recording;
        assert_eq!(recording.clock(), Clock::Synchronised);
        device.sync().unwrap();
        let DeviceMemory { reserved, in_use, .. } = DeviceMemory::of(&device).expect("a GPU's memory is known");
        Measured { in_use, reserved, process: of_process() }
    };
    let (early, late) = (round(1), round(1 + steps));
    println!("{early:?} and then {late:?}");
    assert!(early.in_use > 0 && early.reserved >= early.in_use, "{early:?}");
    // Some tensors of a step may still be in use at its end, which differs from step to step.
    assert!(late.in_use <= early.in_use + early.in_use / 10, "{early:?} became {late:?}");
    assert!(late.reserved <= early.reserved + early.reserved / 2, "{early:?} became {late:?}");
    assert!(late.process <= early.process + SLACK, "{early:?} became {late:?}");
}

/// Tests that the memory of a training does not grow: after 300 steps it is what it was after 150. The test has a
/// process of its own, because tests that run beside it would use the same GPU.
#[test]
fn memory_does_not_grow() {
    if ran_in_a_process_of_its_own() {
        return;
    }
    let device = open("gpu").remove(0);
    let config = |_| StageConfig::new(device.clone(), AdamWConfig::new().init(), 1e-3);
    let builder = gpt(SMALL, 7).pipeline(&costs(SMALL).cut(2).unwrap(), (0..2).map(config)).unwrap();
    let builder = builder.micro_batches(MICRO_BATCHES).cores_per_stage(1);
    assert_memory_does_not_grow(builder, 150, |step| batch_of(2 * MICRO_BATCHES, step));
}

/// Tests that the memory of a training does not grow with split backwards, which defer weight gradients. The stages are
/// on the CPU and on the GPU, so tensors also move between the devices.
#[test]
fn memory_does_not_grow_with_split_backwards_on_the_cpu_and_on_the_gpu() {
    if ran_in_a_process_of_its_own() {
        return;
    }
    assert_memory_does_not_grow(builder("cpu,gpu", 4, ZbV, Recompute::Nothing), 25, batch);
}
