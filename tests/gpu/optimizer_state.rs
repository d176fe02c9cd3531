//! Tests of optimizer states that are kept on the host: they are not in the device's memory between steps, the memory
//! estimate counts them on the host, and the losses have the bits of states on the device.

use burn::optim::AdamWConfig;
use burn::tensor::Device;
use stageline::checkpoint::Checkpoint;
use stageline::schedule::OneFOneB;
use stageline::{DeviceMemory, Lever, MemoryEstimate, OptimizerState, Pipeline, StageConfig};
use stageline_gpt::model::{Bytes, Logits, costs, gpt};
use stageline_workspace::own_process::ran_in_a_process_of_its_own;

use crate::{SMALL, batch_of, open};

const STEPS: usize = 4;
const SAMPLES: usize = 4;

/// Returns a pipeline of one stage on the device, with its optimizer states in `memory`. It resumes from the checkpoint
/// `from` if there is one, and keeps no states for a rollback.
fn pipeline(device: &Device, memory: OptimizerState, from: Option<Checkpoint>) -> Pipeline<Bytes, Logits, Bytes> {
    let config = StageConfig::new(device.clone(), memory.of(AdamWConfig::new().build()), 1e-3);
    let builder = gpt(SMALL, 7).pipeline(&costs(SMALL).cut(1).unwrap(), [config]).unwrap();
    let builder = builder.micro_batches(2).rollback(false).cores_per_stage(1);
    let builder = match from {
        Some(checkpoint) => builder.restore(checkpoint),
        None => builder,
    };
    builder.build().unwrap()
}

/// The results of a training that keeps its optimizer states either in device memory or in host memory.
struct Found {
    /// The bits of the loss of every step.
    losses: Vec<u64>,
    /// The device memory of the training in bytes: the smallest number in use after a step, minus the number before the
    /// training.
    in_use: u64,
    estimate: MemoryEstimate,
    /// The checkpoint after half of the training's steps.
    middle: Checkpoint,
}

/// Copies the tensors of a checkpoint to new host memory. burn reads the original tensors lazily, so their bytes keep
/// device memory in use. That would change the memory that the test measures.
fn copied(mut checkpoint: Checkpoint) -> Checkpoint {
    let Checkpoint { parameters, optimizer, .. } = &mut checkpoint;
    for tensor in parameters.values_mut().chain(optimizer.values_mut()) {
        tensor.bytes = tensor.bytes.to_vec().into();
    }
    checkpoint
}

fn in_use(device: &Device) -> u64 {
    device.sync().unwrap();
    DeviceMemory::of(device).expect("a GPU's memory is known").in_use
}

fn trained(device: &Device, memory: OptimizerState) -> Found {
    let before = in_use(device);
    let mut pipeline = pipeline(device, memory, None);
    let estimate = pipeline.estimate_memory(batch_of(SAMPLES, 0)).unwrap().expect("a GPU's memory is measured");
    let mut step = |step: usize| {
        let loss = pipeline.step(batch_of(SAMPLES, step)).unwrap().loss.to_bits();
        let middle = (step + 1 == STEPS / 2).then(|| copied(pipeline.checkpoint().unwrap()));
        (loss, in_use(device), middle)
    };
    let steps: Vec<_> = (0..STEPS).map(&mut step).collect();
    // Some tensors of a step may still be in use at its end.
    let least = steps.iter().map(|(_, in_use, _)| *in_use).min().unwrap();
    Found {
        losses: steps.iter().map(|(loss, ..)| *loss).collect(),
        in_use: least.saturating_sub(before),
        estimate,
        middle: steps.into_iter().find_map(|(.., middle)| middle).unwrap(),
    }
}

/// Tests optimizer states in host memory: the GPU's memory has none of them, and training gives the same bits as with
/// the states on the GPU. The states are the two moments of AdamW, 8 bytes for each parameter. The test has a process
/// of its own, because tests that run beside it would use the same GPU.
#[test]
fn states_on_the_host_are_not_in_the_memory_of_the_device_and_change_no_bits() {
    if ran_in_a_process_of_its_own() {
        return;
    }
    let device = open("gpu").remove(0);
    let moments = 8 * gpt(SMALL, 7).parameters().trained;
    let [on_device, on_host] = [OptimizerState::Device, OptimizerState::Host].map(|memory| trained(&device, memory));
    assert_eq!(on_host.losses, on_device.losses);
    assert!(on_host.middle == on_device.middle, "the checkpoints differ");
    // The device rounds the size of every tensor up.
    let is_near = |bytes: u64, expected: u64| bytes.abs_diff(expected) <= moments / 10;
    let less = on_device.in_use.saturating_sub(on_host.in_use);
    println!("{} bytes and {} bytes, moments of {moments}", on_device.in_use, on_host.in_use);
    assert!(is_near(less, moments), "{less} bytes less, moments of {moments}");

    let of_stage = |found: &Found| {
        let stage = &found.estimate.stages()[0];
        (stage.optimizer, stage.optimizer_on_host)
    };
    let ((states, none), (rest, moved)) = (of_stage(&on_device), of_stage(&on_host));
    assert!(is_near(states, moments) && is_near(rest, 0), "{states} and {rest}, moments of {moments}");
    assert_eq!((none, moved), (0, moments));
    let host = on_host.estimate.devices().into_iter().find(|(device, _)| *device == Device::flex()).unwrap();
    assert_eq!(host.1, moments, "without a rollback the states exist once");

    // The remedy that keeps states on the host names about the memory that is estimated for a training with states on
    // the host.
    let has = |device: &Device| (*device != Device::flex()).then_some(1);
    let refused = on_device.estimate.check(has, &OneFOneB, 1, |_| true).unwrap_err();
    let remedy = refused.remedies.iter().find(|remedy| remedy.levers == [Lever::StatesOnHost]).expect("a way out");
    let estimated = on_host.estimate.devices()[0].1;
    println!("{} bytes are proposed, and {estimated} are estimated", remedy.needs);
    assert!(is_near(remedy.needs, estimated), "{} bytes instead of {estimated}", remedy.needs);
    let refused = on_host.estimate.check(has, &OneFOneB, 1, |_| true).unwrap_err();
    assert!(refused.remedies.iter().all(|remedy| !remedy.levers.contains(&Lever::StatesOnHost)), "{refused}");

    for (memory, found) in [(OptimizerState::Device, &on_host), (OptimizerState::Host, &on_device)] {
        let mut resumed = pipeline(&device, memory, Some(found.middle.clone()));
        let losses: Vec<_> =
            (STEPS / 2..STEPS).map(|step| resumed.step(batch_of(SAMPLES, step)).unwrap().loss.to_bits()).collect();
        assert_eq!(losses, on_device.losses[STEPS / 2..], "states on the {memory} after the checkpoint");
    }
}
