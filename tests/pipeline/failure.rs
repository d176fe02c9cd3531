//! Tests of failures: a panic or error in any stage comes out of `Pipeline::step` as one error that names the stage,
//! all worker threads are joined, and no stage has stepped its optimizer.

use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Once};
use std::{panic, thread};

use burn::module::{Module, ModuleDisplay};
use burn::optim::{Optimizer, SgdConfig};
use burn::tensor::{Device, Tensor};
use stageline::nn::after_step::after_step;
use stageline::schedule::{GPipe, OneFOneB, Schedule};
use stageline::{
    Activity, Batch, BoxError, During, Failure, LossStage, Pipeline, Stage, StageConfig, StepError, Weight,
};

use crate::mlp::{Error, Layer, Mlp, Target, bits, device, within_a_minute};

const STAGES: usize = 3;
const MICRO_BATCHES: usize = 4;

/// The fault that a stage of a failure test has: none, a panic or an error in its forward or backward, or a panic in an
/// update that its forward registers.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    PanicInForward,
    ErrorInForward,
    PanicInBackward,
    PanicAfterStep,
}

/// A stage for tests of failures: it wraps another stage and fails in the forward or the backward of one micro-batch,
/// or in an update after the step.
#[derive(Module, Debug)]
struct Faulty<S: Module> {
    inner: S,
    #[module(skip)]
    fault: Fault,
    #[module(skip)]
    at: usize,
    #[module(skip)]
    forwards: Arc<AtomicUsize>,
}

impl<S: Module> Faulty<S> {
    fn new(inner: S, fault: Fault, at: usize) -> Self {
        Self { inner, fault, at, forwards: Arc::default() }
    }

    /// Runs a backward over the autodiff graph of a stage's output, so that the pipeline's own backward over this graph
    /// panics later.
    fn consume(&self, output: &Tensor<2>) {
        output.clone().sum().backward();
    }

    /// Counts a forward of the stage, and returns the deliberate fault of this forward, if it has one. The tested
    /// schedules run forwards in ascending micro-batch order.
    fn due(&self) -> Fault {
        let micro_batch = self.forwards.fetch_add(1, Ordering::Relaxed);
        if micro_batch == self.at { self.fault } else { Fault::None }
    }

    fn fail(&self, due: Fault) -> Result<(), BoxError> {
        match due {
            Fault::PanicInForward => panic!("a fault for the test"),
            Fault::ErrorInForward => Err("a fault for the test".into()),
            Fault::None | Fault::PanicInBackward | Fault::PanicAfterStep => Ok(()),
        }
    }
}

impl<S> Stage for Faulty<S>
where
    S: Stage<Input = Tensor<2>, Output = Tensor<2>> + ModuleDisplay,
{
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        self.inner.forward(input)
    }

    fn try_forward(&self, input: Tensor<2>) -> Result<Tensor<2>, BoxError> {
        let due = self.due();
        self.fail(due)?;
        let output = self.forward(input);
        if due == Fault::PanicInBackward {
            self.consume(&output);
        }
        if due == Fault::PanicAfterStep {
            after_step(|| panic!("a fault for the test"));
        }
        Ok(output)
    }
}

impl LossStage for Faulty<Error> {
    type Target = Target;

    fn loss(&self, output: Tensor<2>, target: Target) -> Tensor<1> {
        self.inner.loss(output, target)
    }

    fn weight(&self, target: &Target) -> Weight {
        self.inner.weight(target)
    }
}

/// Suppresses the messages of worker threads' panics in the test's output, because these panics are expected.
pub fn quiet_workers() {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        let loud = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let worker = thread::current().name().is_some_and(|name| name.starts_with("stage-"));
            if !worker {
                loud(info);
            }
        }));
    });
}

/// The fault of each stage in a test of failures, and the number of the stage's forward that has the fault.
type Faults = [(Fault, usize); STAGES];

fn pipeline(faults: Faults, schedule: &'static (dyn Schedule + Sync)) -> Pipeline<Tensor<2>, Tensor<2>, Target> {
    quiet_workers();
    let Mlp { layers, error } = Mlp::new(STAGES - 1, 4, 81);
    let config = StageConfig::new(device(), SgdConfig::new().init(), 0.1);
    let mut chain = Pipeline::builder();
    for (layer, (fault, at)) in layers.into_iter().zip(faults) {
        chain = chain.stage(Faulty::new(layer, fault, at), config.clone());
    }
    let (fault, at) = faults[STAGES - 1];
    let builder = chain.loss(Faulty::new(error, fault, at), config);
    builder.micro_batches(MICRO_BATCHES).schedule(schedule).build().unwrap()
}

fn batch() -> Batch<Tensor<2>, Target> {
    let (input, target) = Mlp::batch(8, 4, false, 1);
    Batch::new(input, target)
}

/// Ends a pipeline, and returns the bits of the parameters of each stage.
fn module_bits(pipeline: Pipeline<Tensor<2>, Tensor<2>, Target>) -> Vec<Vec<u32>> {
    let mut modules = pipeline.into_modules();
    let mut all: Vec<_> = (0..STAGES - 1).map(|stage| bits(&modules.take::<Faulty<Layer>>(stage).unwrap())).collect();
    all.push(bits(&modules.take::<Faulty<Error>>(STAGES - 1).unwrap()));
    all
}

const SCHEDULES: [&(dyn Schedule + Sync); 2] = [&GPipe, &OneFOneB];

#[test]
fn a_fault_at_every_stage_and_micro_batch_is_named_and_nothing_steps() {
    within_a_minute(every_fault);
}

fn every_fault() {
    let untouched = module_bits(pipeline([(Fault::None, 0); STAGES], &GPipe));
    for schedule in SCHEDULES {
        for fault in [Fault::PanicInForward, Fault::ErrorInForward, Fault::PanicInBackward] {
            for (stage, at) in (0..STAGES).flat_map(|stage| (0..MICRO_BATCHES).map(move |at| (stage, at))) {
                let case = format!("{} {fault:?} at stage {stage}, micro-batch {at}", schedule.name());
                let mut faults = [(Fault::None, 0); STAGES];
                faults[stage] = (fault, at);
                let mut pipeline = pipeline(faults, schedule);

                let error = pipeline.step(batch()).unwrap_err();
                let StepError::Stage(failure) = &error else { panic!("{case}: {error}") };
                assert_eq!(
                    (failure.stage, failure.micro_batch(), failure.during),
                    (stage, Some(at), During::Step(0)),
                    "{case}"
                );
                let Activity::Instruction(action) = failure.activity else { panic!("{case}: {error}") };
                let letter = if fault == Fault::PanicInBackward { "B" } else { "F" };
                assert_eq!(action.to_string(), format!("{stage}{letter}{at}"), "{case}");
                assert_eq!(matches!(failure.failure, Failure::Error(_)), fault == Fault::ErrorInForward, "{case}");
                assert!(
                    error.to_string().contains(&format!("action {action}, micro-batch {at}, of step 0")),
                    "{error}"
                );
                if fault != Fault::PanicInBackward {
                    assert!(error.to_string().ends_with("a fault for the test"), "{error}");
                }

                let again = pipeline.step(batch()).unwrap_err();
                assert!(matches!(again, StepError::Stopped { during: During::Step(0) }), "{case}: {again}");
                assert!(module_bits(pipeline) == untouched, "{case}: a stage has stepped");
            }
        }
    }
}

#[test]
fn the_failed_layer_of_a_stage_is_named() {
    quiet_workers();
    let panic = (Fault::PanicInForward, "it panicked: a fault for the test");
    for (fault, expected) in [panic, (Fault::ErrorInForward, "a fault for the test")] {
        let Mlp { layers, error } = Mlp::new(4, 4, 83);
        let faults = [Fault::None, Fault::None, fault, Fault::None];
        let mut layers = layers.into_iter().zip(faults).map(|(layer, fault)| Faulty::new(layer, fault, 1));
        let first = layers.next().unwrap();
        let config = StageConfig::new(device(), SgdConfig::new().init(), 0.1);
        let chain = Pipeline::builder().stage((first, layers.collect::<Vec<_>>()), config.clone());
        let mut pipeline = chain.loss(error, config).micro_batches(MICRO_BATCHES).build().unwrap();
        let found = pipeline.step(batch()).unwrap_err().to_string();
        let place = "stage 0 failed in layer `1.1`, in action 0F1, micro-batch 1, of step 0";
        assert_eq!(found, format!("{place}: {expected}"));
    }
}

#[test]
fn two_concurrent_faults_give_one_error() {
    within_a_minute(two_faults);
}

fn two_faults() {
    for _ in 0..20 {
        let mut pipeline = pipeline([(Fault::PanicInForward, 3), (Fault::None, 0), (Fault::ErrorInForward, 0)], &GPipe);
        let error = pipeline.step(batch()).unwrap_err();
        let StepError::Stage(failure) = error else { panic!("{error}") };
        assert!([(0, Some(3)), (2, Some(0))].contains(&(failure.stage, failure.micro_batch())), "{failure}");
    }
}

#[test]
fn a_fault_in_a_later_step_names_that_step() {
    let at = 2 * MICRO_BATCHES + 1;
    let mut pipeline = pipeline([(Fault::None, 0), (Fault::PanicInForward, at), (Fault::None, 0)], &OneFOneB);
    for step in 0..2 {
        assert_eq!(pipeline.step(batch()).unwrap().step, step);
    }
    let error = pipeline.step(batch()).unwrap_err();
    let StepError::Stage(failure) = error else { panic!("{error}") };
    assert_eq!((failure.during, failure.micro_batch()), (During::Step(2), Some(1)));
}

/// Tests a panic of an update that a layer registered with `after_step`, such as new running statistics. It is an error
/// of the next step. If no step follows, the update runs when the workers end, and its stage is not lost.
#[test]
fn a_panic_in_an_update_after_a_step_loses_no_stage() {
    let stepped = |fault| {
        let mut pipeline = pipeline([(Fault::None, 0), (fault, 1), (Fault::None, 0)], &OneFOneB);
        pipeline.step(batch()).unwrap();
        pipeline
    };
    let [sound, faulty] = [Fault::None, Fault::PanicAfterStep].map(|fault| module_bits(stepped(fault)));
    assert_eq!(sound, faulty);
    let mut pipeline = stepped(Fault::PanicAfterStep);
    let error = pipeline.step(batch()).unwrap_err();
    let StepError::Stage(failure) = error else { panic!("{error}") };
    assert_eq!((failure.stage, failure.during), (1, During::Step(1)));
    assert_eq!(module_bits(pipeline), sound);
}

#[test]
fn a_fault_in_an_evaluation_is_named() {
    let mut pipeline = pipeline([(Fault::None, 0), (Fault::None, 0), (Fault::ErrorInForward, 2)], &OneFOneB);
    let error = pipeline.eval(batch()).unwrap_err().to_string();
    assert_eq!(
        error,
        "stage 2 failed in action 2F2, micro-batch 2, of an evaluation after 0 steps: a fault for the test"
    );
}

/// An optimizer for tests of failures, which panics in its first step.
#[derive(Clone)]
pub struct PanickingOptimizer;

impl Optimizer for PanickingOptimizer {
    type State<const D: usize> = burn::optim::AdamWState<D>;

    fn step<const D: usize>(
        &self,
        _: f64,
        _: Tensor<D>,
        _: Tensor<D>,
        _: Option<Self::State<D>>,
    ) -> (Tensor<D>, Option<Self::State<D>>) {
        panic!("a fault for the test")
    }

    fn to_device<const D: usize>(state: Self::State<D>, _: &Device) -> Self::State<D> {
        state
    }
}

#[test]
fn a_panic_in_an_optimizer_is_named_and_no_stage_has_stepped() {
    quiet_workers();
    let Mlp { mut layers, error } = Mlp::new(1, 4, 82);
    let good = StageConfig::new(device(), SgdConfig::new().init(), 0.1);
    let bad = StageConfig::new(device(), PanickingOptimizer, 0.1);
    let untouched = [bits(&layers[0]), bits(&error)];
    let chain = Pipeline::builder().stage(layers.remove(0), good);
    let mut pipeline = chain.loss(error, bad).micro_batches(2).build().unwrap();
    let error = pipeline.step(batch()).unwrap_err();
    assert_eq!(error.to_string(), "stage 1 failed in the optimizer step of step 0: it panicked: a fault for the test");
    let mut modules = pipeline.into_modules();
    assert_eq!([bits(&modules.take::<Layer>(0).unwrap()), bits(&modules.take::<Error>(1).unwrap())], untouched);
}

/// A value that adds one to a counter when it is dropped. A thread-local value is dropped at the end of its thread, so
/// a test can count the threads that have ended.
struct Ending(Arc<AtomicUsize>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

thread_local! {
    static ENDING: RefCell<Option<Ending>> = const { RefCell::new(None) };
}

/// A layer for tests of failures that counts how many of the threads on which the layer ran have ended.
#[derive(Module, Debug)]
struct Tracked {
    layer: Faulty<Layer>,
    #[module(skip)]
    ended: Arc<AtomicUsize>,
}

impl Stage for Tracked {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        self.layer.forward(input)
    }

    fn try_forward(&self, input: Tensor<2>) -> Result<Tensor<2>, BoxError> {
        ENDING.with_borrow_mut(|ending| {
            ending.get_or_insert_with(|| Ending(Arc::clone(&self.ended)));
        });
        self.layer.try_forward(input)
    }
}

#[test]
fn threads_have_ended_when_a_failed_step_returns() {
    within_a_minute(|| {
        quiet_workers();
        for fault in [Fault::None, Fault::PanicInForward, Fault::ErrorInForward, Fault::PanicInBackward] {
            let ended = Arc::new(AtomicUsize::new(0));
            let Mlp { layers, error } = Mlp::new(3, 4, 83);
            let config = StageConfig::new(device(), SgdConfig::new().init(), 0.1);
            let mut chain = Pipeline::builder();
            for (stage, layer) in layers.into_iter().enumerate() {
                let layer = Faulty::new(layer, if stage == 1 { fault } else { Fault::None }, 1);
                chain = chain.stage(Tracked { layer, ended: Arc::clone(&ended) }, config.clone());
            }
            // Stages 0 and 1 have run when the fault in stage 1 is due, so at least their two threads must have ended.
            let builder = chain.loss(error, config).micro_batches(MICRO_BATCHES).schedule(GPipe);
            let mut pipeline = builder.build().unwrap();
            let failed = pipeline.step(batch()).is_err();
            assert_eq!(failed, fault != Fault::None);
            let ran = if fault == Fault::None { 0 } else { 2 };
            assert!(ended.load(Ordering::SeqCst) >= ran, "{fault:?}: a thread lives on");
            drop(pipeline);
            assert!(ended.load(Ordering::SeqCst) >= 2, "{fault:?}: a thread outlives its pipeline");
            assert_eq!(Arc::strong_count(&ended), 1, "{fault:?}: something keeps a stage");
        }
    });
}

/// A last stage for tests of errors. Its loss is one number per sample instead of their sum, which is an error.
#[derive(Module, Debug)]
struct Unsummed {
    error: Error,
}

impl Stage for Unsummed {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        self.error.forward(input)
    }
}

impl LossStage for Unsummed {
    type Target = Target;

    fn loss(&self, output: Tensor<2>, (wanted, _): Target) -> Tensor<1> {
        (output - wanted).powi_scalar(2).sum_dim(1).flatten(0, 1)
    }

    fn weight(&self, target: &Target) -> Weight {
        self.error.weight(target)
    }
}

#[test]
fn a_loss_that_is_not_summed_is_named_at_its_forward() {
    let config = StageConfig::new(device(), SgdConfig::new().init(), 0.1);
    let chain = Pipeline::builder().loss(Unsummed { error: Mlp::new(0, 4, 84).error }, config);
    let error = chain.micro_batches(2).build().unwrap().step(batch()).unwrap_err().to_string();
    let expected = "stage 0 failed in action 0F0, micro-batch 0, of step 0: \
                    the loss has shape [4]; return the sum over the targets for each number in its weight, of shape [1]";
    assert_eq!(error, expected);
}
