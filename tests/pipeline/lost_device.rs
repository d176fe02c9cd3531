//! Tests of a device that is lost in the middle of a step, so that every request to it fails and its memory cannot be
//! read: the failure is named, and training resumes on another device.
//!
//! burn runs a GPU on a thread of its own, and a request to the GPU panics once that thread has ended. These tests
//! replace the GPU by a thread that behaves in the same way.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};

use burn::module::Module;
use burn::optim::{AdamW, AdamWConfig, AdamWState, Optimizer, RecordState, StateSink, StateSource};
use burn::tensor::{Device, Tensor};
use stageline::checkpoint::Checkpoint;
use stageline::{Activity, Batch, Names, Pipeline, Stage, StageConfig, StepError};

use crate::failure::quiet_workers;
use crate::mlp::{Error, LEARNING_RATE, Layer, Mlp, Target, bits, config, device, within_a_minute};

const WIDTH: usize = 4;
const MICRO_BATCHES: usize = 3;
/// The index of the stage whose device is lost in these tests.
const STAGE: usize = 1;

/// An imitated GPU for tests of lost devices: a thread that answers requests until it ends.
struct Gpu {
    requests: Sender<Sender<()>>,
    thread: JoinHandle<()>,
}

impl Gpu {
    /// Starts a thread that imitates a GPU and is lost (ends) after `lifetime` requests.
    fn new(lifetime: usize) -> Self {
        let (requests, asked) = channel::<Sender<()>>();
        let thread = thread::spawn(move || {
            for done in asked.iter().take(lifetime) {
                let _ = done.send(());
            }
        });
        Self { requests, thread }
    }
}

/// A handle to the thread that imitates a GPU in tests of lost devices. The handle and its clones count their requests
/// to the thread.
#[derive(Clone, Debug)]
struct Handle {
    requests: Sender<Sender<()>>,
    asked: Arc<AtomicUsize>,
}

impl Handle {
    /// Makes a request to the thread that imitates a GPU, and waits for the answer. Panics if the thread has ended, as
    /// if the GPU were lost.
    fn ask(&self) {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let (done, is_done) = channel();
        self.requests.send(done).expect("the device is there");
        is_done.recv().expect("the device answers");
    }
}

/// A layer that makes a request to the test's imitated GPU in every forward.
#[derive(Module, Debug)]
struct OnGpu {
    layer: Layer,
    #[module(skip)]
    gpu: Handle,
}

impl Stage for OnGpu {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        self.gpu.ask();
        self.layer.forward(input)
    }
}

/// An AdamW that makes a request to the test's imitated GPU in every step, and keeps its moments on this GPU.
#[derive(Clone)]
struct AdamWOnGpu {
    inner: AdamW,
    gpu: Handle,
}

/// The moments of the gradient that the test's AdamW keeps for one parameter.
#[derive(Clone)]
struct Moments<const D: usize> {
    inner: AdamWState<D>,
    /// The test's imitated GPU, on which Adam's moments are; `None` for moments that were read from a checkpoint.
    gpu: Option<Handle>,
}

impl<const D: usize> RecordState for Moments<D> {
    fn state_flatten(&self, prefix: &str, out: &mut StateSink) {
        self.gpu.iter().for_each(Handle::ask);
        self.inner.state_flatten(prefix, out);
    }

    fn state_unflatten(prefix: &str, src: &mut StateSource, device: &Device) -> Option<Self> {
        Some(Self { inner: RecordState::state_unflatten(prefix, src, device)?, gpu: None })
    }
}

impl Optimizer for AdamWOnGpu {
    type State<const D: usize> = Moments<D>;

    fn step<const D: usize>(
        &self,
        learning_rate: f64,
        parameter: Tensor<D>,
        gradient: Tensor<D>,
        state: Option<Moments<D>>,
    ) -> (Tensor<D>, Option<Moments<D>>) {
        self.gpu.ask();
        let state = state.map(|moments| moments.inner);
        let (parameter, state) = Optimizer::step(&self.inner, learning_rate, parameter, gradient, state);
        (parameter, state.map(|inner| Moments { inner, gpu: Some(self.gpu.clone()) }))
    }

    fn to_device<const D: usize>(Moments { inner, gpu }: Moments<D>, device: &Device) -> Moments<D> {
        Moments { inner: <AdamW as Optimizer>::to_device(inner, device), gpu }
    }
}

fn batch(step: usize) -> Batch<Tensor<2>, Target> {
    let (input, target) = Mlp::batch(6, WIDTH, true, step as u64);
    Batch::new(input, target)
}

/// Returns a pipeline of three stages, with the handle and the thread of the imitated GPU on which the second stage
/// runs. This GPU is lost after `lifetime` requests. The pipeline resumes from the checkpoint `from` if there is one.
fn pipeline(
    lifetime: usize,
    from: Option<&Checkpoint>,
) -> (Pipeline<Tensor<2>, Tensor<2>, Target>, Handle, JoinHandle<()>) {
    quiet_workers();
    let Gpu { requests, thread } = Gpu::new(lifetime);
    let gpu = Handle { requests, asked: Arc::default() };
    let model = Mlp::new(2, WIDTH, 91);
    let names = Names::new().part("", &model);
    let Mlp { layers, error } = model;
    let [first, second] = layers.try_into().expect("two layers");
    let optimizer = AdamWOnGpu { inner: AdamWConfig::new().build(), gpu: gpu.clone() };
    let on_gpu = StageConfig::new(device(), optimizer, LEARNING_RATE);
    let chain = Pipeline::builder().stage(first, config()).stage(OnGpu { layer: second, gpu: gpu.clone() }, on_gpu);
    let mut builder = chain.loss(error, config()).names(names).micro_batches(MICRO_BATCHES);
    if let Some(checkpoint) = from {
        builder = builder.restore(checkpoint.clone());
    }
    (builder.build().unwrap(), gpu, thread)
}

/// Ends a pipeline, and returns the bits of the parameters of each of its stages.
fn trained(pipeline: Pipeline<Tensor<2>, Tensor<2>, Target>) -> [Vec<u32>; 3] {
    let mut modules = pipeline.into_modules();
    let second = bits(&modules.take::<OnGpu>(STAGE).unwrap());
    [bits(&modules.take::<Layer>(0).unwrap()), second, bits(&modules.take::<Error>(2).unwrap())]
}

#[test]
fn a_device_lost_at_any_request_is_named_and_training_resumes_elsewhere() {
    within_a_minute(every_request);
}

fn every_request() {
    // An undisturbed training makes a step, a checkpoint and another step.
    let (mut whole, gpu, _) = pipeline(usize::MAX, None);
    whole.step(batch(0)).unwrap();
    let step_requests = gpu.asked.load(Ordering::SeqCst);
    let kept = whole.checkpoint().unwrap();
    let copy_requests = gpu.asked.load(Ordering::SeqCst) - step_requests;
    whole.step(batch(1)).unwrap();
    let expected = trained(whole);
    // A step makes a request for each forward and for the optimizer steps of weight and bias; a checkpoint makes one
    // for the moments of each of the two.
    assert_eq!((step_requests, copy_requests), (MICRO_BATCHES + 2, 2));

    for lifetime in step_requests..2 * step_requests {
        let (mut pipeline, _, thread) = pipeline(lifetime, None);
        pipeline.step(batch(0)).unwrap();
        let error = pipeline.step(batch(1)).unwrap_err();
        let StepError::Stage(failure) = &error else { panic!("{lifetime}: {error}") };
        let request = lifetime - step_requests;
        let activity = if request < MICRO_BATCHES {
            format!("action 1F{request}, micro-batch {request},")
        } else {
            "the optimizer step".to_owned()
        };
        assert_eq!((failure.stage, failure.activity.to_string()), (STAGE, activity));
        assert!(error.to_string().contains("of step 1: it panicked: the device "), "{error}");
        thread.join().unwrap();

        // The state in the device's memory cannot be read any more, which is an error and not a panic.
        let unreadable = pipeline.checkpoint().unwrap_err();
        assert!(matches!(unreadable, StepError::Unreadable { stage: STAGE, .. }), "{unreadable}");
        let mut others = pipeline.into_modules();
        assert!(others.take::<Layer>(0).is_ok() && others.take::<Error>(2).is_ok());
    }
    // The device is lost while a checkpoint is made.
    for lifetime in step_requests..step_requests + copy_requests {
        let (mut pipeline, _, thread) = pipeline(lifetime, None);
        pipeline.step(batch(0)).unwrap();
        let StepError::Stage(failure) = pipeline.checkpoint().unwrap_err() else { panic!("another error") };
        assert_eq!((failure.stage, failure.activity), (STAGE, Activity::Save));
        thread.join().unwrap();
    }
    // Training resumes from the checkpoint on another device.
    let (mut elsewhere, ..) = pipeline(usize::MAX, Some(&kept));
    elsewhere.step(batch(1)).unwrap();
    assert_eq!(trained(elsewhere), expected);
}
