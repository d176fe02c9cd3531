//! A failure anywhere comes out of `step` as one error that names where, with all threads joined and nothing stepped.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Once};
use std::{panic, thread};

use burn::module::Module;
use burn::optim::{Optimizer, SgdConfig};
use burn::tensor::{Device, Tensor};
use stageline::schedule::{GPipe, OneFOneB, Schedule};
use stageline::{Activity, Batch, BoxError, Failure, LossStage, ModuleError, Pipeline, Stage, StageConfig, StepError};

use crate::mlp::{Error, Layer, Mlp, Named, Target, bits, device};

const STAGES: usize = 3;
const MICRO_BATCHES: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    PanicInForward,
    ErrorInForward,
    PanicInBackward,
}

/// Wraps a stage and fails as told, at the forward or backward of one micro-batch.
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

    /// Uses up the graph of the output, so that its backward panics.
    fn consume<const D: usize>(&self, output: &Tensor<D>) {
        output.clone().sum().backward();
    }

    /// Which fault is due at this forward; forwards come in ascending order in these schedules.
    fn due(&self) -> Fault {
        let micro_batch = self.forwards.fetch_add(1, Ordering::Relaxed);
        if micro_batch == self.at { self.fault } else { Fault::None }
    }

    fn fail(&self, due: Fault) -> Result<(), BoxError> {
        match due {
            Fault::PanicInForward => panic!("a fault for the test"),
            Fault::ErrorInForward => Err("a fault for the test".into()),
            Fault::None | Fault::PanicInBackward => Ok(()),
        }
    }
}

impl Stage for Faulty<Layer> {
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
        Ok(output)
    }
}

impl LossStage for Faulty<Error> {
    type Input = Tensor<2>;
    type Target = Target;

    fn loss(&self, input: Tensor<2>, target: Target) -> Tensor<1> {
        self.inner.loss(input, target)
    }

    fn try_loss(&self, input: Tensor<2>, target: Target) -> Result<Tensor<1>, BoxError> {
        let due = self.due();
        self.fail(due)?;
        let loss = self.loss(input, target);
        if due == Fault::PanicInBackward {
            self.consume(&loss);
        }
        Ok(loss)
    }

    fn weight(target: &Target) -> f64 {
        Error::weight(target)
    }
}

/// Keeps the panics of workers out of the test's output.
fn quiet_workers() {
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

type Faults = [(Fault, usize); STAGES];

fn pipeline(faults: Faults, schedule: Named) -> Pipeline<Tensor<2>, Target> {
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

fn module_bits(pipeline: Pipeline<Tensor<2>, Target>) -> Vec<Vec<u32>> {
    let mut modules = pipeline.into_modules();
    let mut all: Vec<_> = (0..STAGES - 1).map(|stage| bits(&modules.take::<Faulty<Layer>>(stage).unwrap())).collect();
    all.push(bits(&modules.take::<Faulty<Error>>(STAGES - 1).unwrap()));
    all
}

const SCHEDULES: [&(dyn Schedule + Sync); 2] = [&GPipe, &OneFOneB];

#[test]
fn a_fault_at_every_stage_and_micro_batch_is_named_and_nothing_steps() {
    let untouched = module_bits(pipeline([(Fault::None, 0); STAGES], Named(&GPipe)));
    for schedule in SCHEDULES {
        for fault in [Fault::PanicInForward, Fault::ErrorInForward, Fault::PanicInBackward] {
            for (stage, at) in (0..STAGES).flat_map(|stage| (0..MICRO_BATCHES).map(move |at| (stage, at))) {
                let case = format!("{} {fault:?} at stage {stage}, micro-batch {at}", schedule.name());
                let mut faults = [(Fault::None, 0); STAGES];
                faults[stage] = (fault, at);
                let mut pipeline = pipeline(faults, Named(schedule));

                let error = pipeline.step(batch()).unwrap_err();
                let StepError::Stage(failure) = &error else { panic!("{case}: {error}") };
                assert_eq!((failure.stage, failure.micro_batch(), failure.step), (stage, Some(at), 0), "{case}");
                let Activity::Instruction(action) = failure.activity else { panic!("{case}: {error}") };
                let letter = if fault == Fault::PanicInBackward { "B" } else { "F" };
                assert_eq!(action.to_string(), format!("{stage}{letter}{at}"), "{case}");
                assert_eq!(matches!(failure.failure, Failure::Error(_)), fault == Fault::ErrorInForward, "{case}");
                assert!(error.to_string().contains(&format!("action {action}, micro-batch {at} of step 0")), "{error}");
                if fault != Fault::PanicInBackward {
                    assert!(error.to_string().ends_with("a fault for the test"), "{error}");
                }

                let again = pipeline.step(batch()).unwrap_err();
                assert!(matches!(again, StepError::Stopped { step: 0 }), "{case}: {again}");
                assert!(module_bits(pipeline) == untouched, "{case}: a stage has stepped");
            }
        }
    }
}

#[test]
fn of_two_faults_one_comes_out() {
    for _ in 0..20 {
        let mut pipeline =
            pipeline([(Fault::PanicInForward, 3), (Fault::None, 0), (Fault::ErrorInForward, 0)], Named(&GPipe));
        let error = pipeline.step(batch()).unwrap_err();
        let StepError::Stage(failure) = error else { panic!("{error}") };
        assert!([(0, Some(3)), (2, Some(0))].contains(&(failure.stage, failure.micro_batch())), "{failure}");
    }
}

#[test]
fn a_fault_in_a_later_step_names_it_and_keeps_what_was_trained() {
    let at = 2 * MICRO_BATCHES + 1;
    let mut pipeline = pipeline([(Fault::None, 0), (Fault::PanicInForward, at), (Fault::None, 0)], Named(&OneFOneB));
    for step in 0..2 {
        assert_eq!(pipeline.step(batch()).unwrap().step, step);
    }
    let error = pipeline.step(batch()).unwrap_err();
    let StepError::Stage(failure) = error else { panic!("{error}") };
    assert_eq!((failure.step, failure.micro_batch()), (2, Some(1)));
}

#[test]
fn a_fault_in_an_evaluation_is_named() {
    let mut pipeline = pipeline([(Fault::None, 0), (Fault::None, 0), (Fault::ErrorInForward, 2)], Named(&OneFOneB));
    let error = pipeline.eval(batch()).unwrap_err().to_string();
    assert_eq!(error, "stage 2 failed in action 2F2, micro-batch 2 of step 0: a fault for the test");
}

/// Gradient descent that panics.
#[derive(Clone)]
struct PanickingOptimizer;

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
fn a_panic_in_an_optimizer_is_named_and_its_module_is_said_to_be_lost() {
    quiet_workers();
    let Mlp { mut layers, error } = Mlp::new(1, 4, 82);
    let good = StageConfig::new(device(), SgdConfig::new().init(), 0.1);
    let bad = StageConfig::new(device(), PanickingOptimizer, 0.1);
    let chain = Pipeline::builder().stage(layers.remove(0), good);
    let mut pipeline = chain.loss(error, bad).micro_batches(2).build().unwrap();
    let error = pipeline.step(batch()).unwrap_err();
    assert_eq!(error.to_string(), "stage 1 failed in the optimizer step of step 0: it panicked: a fault for the test");
    let mut modules = pipeline.into_modules();
    assert!(modules.take::<Layer>(0).is_ok());
    assert_eq!(modules.take::<Error>(1).unwrap_err(), ModuleError::Lost { stage: 1 });
}

/// Threads have ended when `step` returns: nothing of them holds the stages any more.
#[test]
fn no_thread_outlives_a_fault_or_a_dropped_pipeline() {
    let alive = Arc::new(AtomicUsize::new(0));
    for fault in [Fault::None, Fault::PanicInForward, Fault::ErrorInForward] {
        let Mlp { mut layers, error } = Mlp::new(1, 4, 83);
        quiet_workers();
        let mut first = Faulty::new(layers.remove(0), fault, 1);
        first.forwards = Arc::clone(&alive);
        alive.store(0, Ordering::Relaxed);
        let config = StageConfig::new(device(), SgdConfig::new().init(), 0.1);
        let chain = Pipeline::builder().stage(first, config.clone());
        let mut pipeline = chain.loss(error, config).micro_batches(MICRO_BATCHES).build().unwrap();
        assert_eq!(pipeline.step(batch()).is_ok(), fault == Fault::None);
        drop(pipeline);
        assert_eq!(Arc::strong_count(&alive), 1, "{fault:?}");
    }
}
