//! Tests on an asynchronous device: a GPU through wgpu, or Mesa's lavapipe, a Vulkan device in software. Training on
//! the device gives the losses of the CPU, and failures are reported as on the CPU.
//!
//! The environment variable `STAGELINE_GPU` names the device; `wgpu:0` if it is unset.
//!
//! - This file trains the GPT on the device, under all kinds of schedules, and verifies it.
//! - `counters`: recomputation and split backwards take effect, which is counted.
//! - `failures`: a panic, a number that is not finite and a lost device end as on the CPU.
//! - `killed`: runs that are stopped or killed on the device resume.
//! - `memory`: the memory in use, the reserved memory and the process do not grow over many steps.
//! - `optimizer_state`: optimizer states on the host are not in the device's memory, and change no bits.
//! - `attention`: attention by the FlashAttention kernels, which store no scores, is compared with f64.
//! - `attention_scales`: the scales of attention's rows, by which the errors of attention are bounded.
//! - `language_models`: models of the families GPT-2 and Llama train on the device as on the CPU.
//! - `fallbacks`: operations that the device's kernels do not compute are named or refused, and types that it lacks are
//!   refused.
//! - `served`: a device that a server lends trains as the same device here.
//! - `devices`: `stageline devices`, missing and broken drivers, and what the start of a run says about devices.

use std::sync::LazyLock;

use burn::optim::AdamWConfig;
use burn::tensor::{Device, Int, Tensor, TensorData};
use stageline::schedule::{GPipe, Interleaved, OneFOneB, Schedule, ZbH1, ZbV};
use stageline::{Activity, Batch, DeviceName, Pipeline, PipelineBuilder, Recompute, StageConfig, StepReport, Verify};
use stageline_gpt::model::{Bytes, Logits, Shape, costs, gpt};

mod attention;
mod attention_scales;
mod counters;
mod devices;
mod failures;
mod fallbacks;
mod killed;
#[cfg(feature = "models")]
mod language_models;
mod memory;
mod optimizer_state;
#[cfg(all(unix, feature = "serve"))]
mod served;

/// The shape of the GPT in most GPU tests. With its embeddings and its head, it can be divided into up to six stages.
const SHAPE: Shape = Shape { layers: 4, width: 64, context: 16 };
/// The shape of a GPT with one block, for tests that make many steps.
const SMALL: Shape = Shape { layers: 1, ..SHAPE };
/// The number of samples in each batch of the tests: 12, so that a batch can be divided into 2, 4 or 6 micro-batches.
const SAMPLES: usize = 12;
const STEPS: usize = 20;

fn gpu_name() -> String {
    std::env::var("STAGELINE_GPU").unwrap_or_else(|_| "wgpu:0".to_owned())
}

fn open(list: &str) -> Vec<Device> {
    let names = DeviceName::parse_list(&list.replace("gpu", &gpu_name())).unwrap();
    DeviceName::open_all(&names, None).unwrap_or_else(|errors| panic!("{errors}"))
}

fn batch(step: usize) -> Batch<Bytes, Bytes> {
    batch_of(SAMPLES, step)
}

fn batch_of(samples: usize, step: usize) -> Batch<Bytes, Bytes> {
    let text = |shift: usize| {
        let bytes: Vec<i32> = (0..samples * SHAPE.context).map(|at| ((at + shift) * 37 % 251) as i32).collect();
        Tensor::<2, Int>::from_data(TensorData::new(bytes, [samples, SHAPE.context]), &Device::flex())
    };
    Batch::new(text(step), text(step + 1))
}

type Builder = PipelineBuilder<Bytes, Logits, Bytes>;

/// Returns the builder of a GPT pipeline on the devices in the list `devices`, with equally many consecutive stages on
/// each device. A step has twice as many micro-batches as workers, so that every schedule has a steady phase.
fn builder(devices: &str, stages: usize, schedule: impl Schedule + 'static, recompute: Recompute) -> Builder {
    let devices = open(devices);
    let config = |stage: usize| {
        let device = devices[stage * devices.len() / stages].clone();
        StageConfig::new(device, AdamWConfig::new().init(), 1e-3).recompute(recompute)
    };
    let cut = costs(SHAPE).cut(stages).unwrap();
    let builder = gpt(SHAPE, 7).pipeline(&cut, (0..stages).map(config)).unwrap();
    let workers = schedule.plan(stages, SAMPLES).unwrap().workers();
    builder.micro_batches(2 * workers).schedule(schedule).cores_per_stage(1)
}

fn losses(pipeline: &mut Pipeline<Bytes, Logits, Bytes>, steps: usize) -> Vec<f64> {
    (0..steps).map(|step| pipeline.step(batch(step)).unwrap().loss).collect()
}

fn trained(devices: &str, stages: usize, schedule: impl Schedule + 'static, recompute: Recompute) -> Vec<f64> {
    losses(&mut builder(devices, stages, schedule, recompute).build().unwrap(), STEPS)
}

/// The losses of a training on one CPU, with which the tests compare the losses of trainings on GPUs.
static EXPECTED: LazyLock<Vec<f64>> = LazyLock::new(|| trained("cpu", 1, OneFOneB, Recompute::Nothing));

/// The largest allowed absolute difference between a loss on the GPU and the same loss on the CPU.
const NEAR: f64 = 1e-4;

fn assert_near(found: &[f64], expected: &[f64], about: &str) {
    assert_within(NEAR, found, expected, about);
}

fn assert_within(bar: f64, found: &[f64], expected: &[f64], about: &str) {
    assert!(!found.is_empty() && found.len() == expected.len(), "{about}: {found:?} and {expected:?}");
    let each = found.iter().zip(expected).map(|(found, expected)| (found - expected).abs());
    // `f64::max` drops a NaN.
    let apart = each.inspect(|apart| assert!(apart.is_finite(), "{about}: {found:?}")).fold(0.0, f64::max);
    println!("{about}: losses within {apart:.1e}");
    assert!(apart < bar, "{about}: {found:?} and {expected:?}");
}

#[test]
fn every_cut_and_schedule_trains_as_on_the_cpu() {
    let expected = &*EXPECTED;
    assert!(expected[STEPS - 1] < expected[0] - 0.5, "the loss must fall: {expected:?}");
    for stages in [1, 2, 3] {
        assert_near(&trained("gpu", stages, OneFOneB, Recompute::Nothing), expected, &format!("1f1b, {stages} stages"));
    }
    assert_near(&trained("gpu", 2, GPipe, Recompute::Nothing), expected, "gpipe");
    for stages in [2, 4, 6] {
        assert_near(&trained("gpu", stages, ZbV, Recompute::Nothing), expected, &format!("zb-v, {stages} stages"));
    }
    // With 2 stages, both chunks of the model are on one worker.
    for (stages, chunks) in [(2, 2), (4, 2), (6, 2)] {
        let schedule = Interleaved { chunks };
        assert_near(
            &trained("gpu", stages, schedule, Recompute::Nothing),
            expected,
            &format!("interleaved, {stages} stages"),
        );
    }
}

#[test]
fn stages_on_the_cpu_and_on_the_gpu_train_together() {
    assert_near(&trained("cpu,gpu", 4, ZbV, Recompute::Nothing), &EXPECTED, "zb-v on cpu, gpu");
    assert_near(&trained("cpu,gpu", 2, OneFOneB, Recompute::Nothing), &EXPECTED, "cpu, gpu");
    assert_near(&trained("gpu,cpu,gpu", 3, OneFOneB, Recompute::Full), &EXPECTED, "gpu, cpu, gpu");
}

#[test]
fn recomputation_gives_the_same_bits() {
    let few = |recompute| losses(&mut builder("gpu", 2, OneFOneB, recompute).build().unwrap(), 3);
    let kept = few(Recompute::Nothing);
    for recompute in [Recompute::Full, Recompute::Selective, Recompute::SquareRoot] {
        assert_eq!(few(recompute), kept, "{recompute}");
    }
}

fn verify(devices: &str, schedule: impl Schedule + Copy + 'static, stages: usize, recompute: Recompute) {
    let build = || builder(devices, stages, schedule, recompute);
    let verification = Verify::new().steps(5).pipeline(build, batch, &[batch(99)]).unwrap();
    assert!(verification.passes(), "{verification}");
}

#[test]
fn verification_agrees() {
    verify("gpu", OneFOneB, 2, Recompute::Nothing);
}

#[test]
fn verification_agrees_on_the_cpu_and_on_the_gpu() {
    verify("cpu,gpu", ZbV, 4, Recompute::Nothing);
}

#[test]
fn verification_agrees_with_split_backwards_and_recomputation() {
    verify("gpu", ZbH1, 2, Recompute::Nothing);
    verify("gpu", ZbV, 4, Recompute::Full);
}

/// Checks the times of each worker in a synchronised step. Busy and idle time must add up to the step time, no known
/// cause of idle time may be negative, and events must follow each other. Returns the largest share of a worker's step
/// time that has no known cause (`other`).
fn checked_accounts(report: &StepReport) -> f64 {
    let took = report.step_time.as_secs_f64();
    for events in report.recording.events() {
        assert!(events.windows(2).all(|pair| pair[0].end <= pair[1].start), "{events:?}");
        assert!(events.iter().all(|event| event.start <= event.end && event.end <= report.step_time), "{events:?}");
    }
    let accounts = report.recording.accounts();
    for account in &accounts {
        assert!((account.busy + account.idle() - took).abs() < 1e-6 * took, "{account:?} of {took}");
        assert!(account.busy > 0.0 && account.busy < took, "{account:?} of {took}");
        for (cause, seconds) in account.causes() {
            // `other` is what the simulation of the step leaves of the step's time, so it is as exact as the
            // simulation.
            let least = if cause == "other" { -0.25 * took } else { -1e-9 };
            assert!(seconds >= least, "{cause} of {took}: {account:?}");
        }
    }
    accounts.iter().map(|account| account.other / took).fold(0.0, f64::max)
}

#[test]
fn the_account_of_a_synchronised_step_adds_up() {
    let mut pipeline = builder("gpu", 2, OneFOneB, Recompute::Nothing).synchronise_every(1).build().unwrap();
    let mut unknown = f64::INFINITY;
    for step in 0..5 {
        let report = pipeline.step(batch(step)).unwrap();
        unknown = unknown.min(checked_accounts(&report));
        let computes = report.recording.events().iter().flatten().filter(
            |event| matches!(event.activity, Activity::Instruction(instruction) if instruction.compute().is_some()),
        );
        // Each of two stages has a forward and a backward for each of four micro-batches.
        assert_eq!(computes.count(), 2 * 2 * 4);
    }
    println!("{:.1}% of a step has no known cause", 100.0 * unknown);
    // Tests that run beside this one delay threads, so only the best of the steps is bounded.
    assert!(unknown < 0.25, "{unknown} of every step has no known cause");
}
