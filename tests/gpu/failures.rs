//! Tests of failures on a GPU: a panic, a number that is not finite and a lost device end with the same errors as on
//! the CPU.
//!
//! A device of wgpu in this process cannot be lost on purpose: burn does not give out the device on which `destroy`
//! could be called, and lavapipe never fails. So the test of a lost device lets a stage on the device panic at each of
//! its forwards from some step on, as burn's requests to a lost device do. `served` loses a device together with the
//! process that lends it. What a driver reports when a device is unplugged is not tested.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn::module::Module;
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Tensor};
use stageline::checkpoint::Checkpoint;
use stageline::schedule::{OneFOneB, Schedule, ZbH1};
use stageline::{Batch, Pipeline, Stage, StageConfig, StepError};
use stageline_gpt::model::{costs, gpt};
use stageline_workspace::mlp::{Error, Layer, Mlp, Target, bits};

use crate::{SHAPE, open};

const WIDTH: usize = 6;
const PER_STEP: usize = 4;

/// The fault that a stage of the GPU failure tests has in some of its forwards.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    /// A fault of a test's stage: the stage panics in the forward with this number, counted from 0, and in all later
    /// ones.
    PanicsFrom(usize),
    /// A fault of a test's stage: its output for the micro-batch with this index is infinite in every step.
    OverflowsAt(usize),
}

/// A layer for the failure tests on a GPU, which panics or overflows in some of its forwards.
#[derive(Module, Debug)]
struct Faulty {
    layer: Layer,
    #[module(skip)]
    fault: Fault,
    #[module(skip)]
    forwards: Arc<AtomicUsize>,
}

impl Stage for Faulty {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        // The tested schedules run forwards in ascending micro-batch order.
        let number = self.forwards.fetch_add(1, Ordering::Relaxed);
        assert!(!matches!(self.fault, Fault::PanicsFrom(first) if number >= first), "a fault for the test");
        let output = self.layer.forward(input);
        let overflows = self.fault == Fault::OverflowsAt(number % PER_STEP);
        if overflows { output * 1e30 * 1e30 } else { output }
    }
}

fn batch(step: u64) -> Batch<Tensor<2>, Target> {
    let (input, target) = Mlp::batch(2 * PER_STEP, WIDTH, false, step);
    Batch::new(input, target)
}

/// Returns a pipeline of three stages on `device` whose second stage panics or overflows as `fault` says. The pipeline
/// resumes from the checkpoint `from` if there is one.
fn pipeline(
    device: &Device,
    fault: Fault,
    schedule: impl Schedule + 'static,
    from: Option<Checkpoint>,
) -> Pipeline<Tensor<2>, Tensor<2>, Target> {
    let Mlp { mut layers, error } = Mlp::new(2, WIDTH, 9);
    let config = || StageConfig::new(device.clone(), AdamWConfig::new().init(), 0.01);
    let faulty = Faulty { layer: layers.pop().unwrap(), fault, forwards: Arc::default() };
    let chain = Pipeline::builder().stage(layers.pop().unwrap(), config()).stage(faulty, config());
    let mut builder = chain.loss(error, config()).schedule(schedule).micro_batches(PER_STEP).cores_per_stage(1);
    if let Some(checkpoint) = from {
        builder = builder.restore(checkpoint);
    }
    builder.build().unwrap()
}

/// Ends a pipeline and returns the bits of the parameters of all stages. That all stages can be returned proves that
/// all worker threads have ended.
fn ended(pipeline: Pipeline<Tensor<2>, Tensor<2>, Target>) -> [Vec<u32>; 3] {
    let mut modules = pipeline.into_modules();
    let second = bits(&modules.take::<Faulty>(1).unwrap());
    [bits(&modules.take::<Layer>(0).unwrap()), second, bits(&modules.take::<Error>(2).unwrap())]
}

#[test]
fn a_panic_ends_with_the_error_of_the_cpu_and_no_stage_has_stepped() {
    fn error(device: &Device, schedule: impl Schedule + Copy + 'static) -> String {
        let untouched = ended(pipeline(device, Fault::None, schedule, None));
        let mut pipeline = pipeline(device, Fault::PanicsFrom(2), schedule, None);
        let error = pipeline.step(batch(0)).unwrap_err();
        assert!(matches!(pipeline.step(batch(1)), Err(StepError::Stopped { .. })));
        assert!(ended(pipeline) == untouched, "a stage has stepped");
        error.to_string()
    }
    let (gpu, cpu) = (open("gpu").remove(0), Device::flex());
    assert_eq!(error(&gpu, OneFOneB), error(&cpu, OneFOneB));
    let split = error(&gpu, ZbH1);
    assert_eq!(split, error(&cpu, ZbH1));
    assert_eq!(split, "stage 1 failed in action 1F2, micro-batch 2, of step 0: it panicked: a fault for the test");
}

#[test]
fn a_number_that_is_not_finite_ends_with_the_error_of_the_cpu() {
    let error = |device: &Device| {
        let mut pipeline = pipeline(device, Fault::OverflowsAt(2), OneFOneB, None);
        let error = pipeline.step(batch(0)).unwrap_err();
        assert!(matches!(error, StepError::NonFinite { .. }), "{error}");
        error.to_string()
    };
    let found = error(&open("gpu")[0]);
    assert_eq!(found, error(&Device::flex()));
    assert!(found.contains(", first the forward of stage 1 on micro-batch 2"), "{found}");
}

/// Tests a GPU that is lost in the second step: the error names the stage on it, and training resumes on the CPU from
/// the last checkpoint.
#[test]
fn training_resumes_on_the_cpu_after_a_device_was_lost() {
    let (gpu, cpu) = (open("gpu").remove(0), Device::flex());
    let mut lost = pipeline(&gpu, Fault::PanicsFrom(PER_STEP + 1), OneFOneB, None);
    lost.step(batch(0)).unwrap();
    let kept = lost.checkpoint().unwrap();
    let StepError::Stage(failure) = lost.step(batch(1)).unwrap_err() else { panic!("another error") };
    assert_eq!((failure.stage, failure.micro_batch()), (1, Some(1)));
    drop(lost);

    let resumed = pipeline(&cpu, Fault::None, OneFOneB, Some(kept)).step(batch(1)).unwrap().loss;
    let mut undisturbed = pipeline(&cpu, Fault::None, OneFOneB, None);
    let losses: Vec<f64> = (0..2).map(|step| undisturbed.step(batch(step)).unwrap().loss).collect();
    assert!((resumed - losses[1]).abs() < 1e-4, "{resumed} instead of {}", losses[1]);
    assert!((losses[0] - losses[1]).abs() > 1e-3, "the steps must differ: {losses:?}");
}

/// Tests a learning rate so large that a later training step gives NaN or infinity: the step's error says so and names
/// the stage.
#[test]
fn a_learning_rate_without_bound_ends_with_an_error_that_names_the_culprit() {
    let devices = open("gpu");
    let config = |_| StageConfig::new(devices[0].clone(), AdamWConfig::new().init(), 1e30);
    let cut = costs(SHAPE).cut(2).unwrap();
    let builder = gpt(SHAPE, 7).pipeline(&cut, (0..2).map(config)).unwrap().micro_batches(4);
    let mut pipeline = builder.build().unwrap();
    let error = (0..5).find_map(|step| pipeline.step(crate::batch(step)).err()).expect("the parameters must overflow");
    assert!(matches!(error, StepError::NonFinite { .. }), "{error}");
    assert!(error.to_string().contains("stage"), "{error}");
}
