//! Tests of the watchdog, which detects stalls: a stalled step ends with an error that names the stage at work and the
//! stages that wait for that stage.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::Duration;

use burn::module::Module;
use burn::tensor::Tensor;
use stageline::schedule::{Action, Compute, Instruction};
use stageline::{
    Activity, Batch, BoxError, BuildError, During, Pipeline, PipelineBuilder, Stage, StepError, WaitCause, Watchdog,
};

use crate::mlp::{Error, Layer, Mlp, Target, config, device, within_a_minute};

const WIDTH: usize = 4;

/// A stage for tests of stalls: it returns its input, and hangs on an input with a number above 100 until the test lets
/// the stage return.
#[derive(Module, Debug, Default)]
struct Sleeper {
    #[module(skip)]
    state: Arc<Sleep>,
}

#[derive(Debug, Default)]
struct Sleep {
    fell_asleep: AtomicBool,
    /// The flag with which the test lets the hanging stage return at the end, so that no thread remains.
    awake: AtomicBool,
}

impl Sleeper {
    fn new(state: &Arc<Sleep>) -> Self {
        Self { state: Arc::clone(state) }
    }
}

impl Stage for Sleeper {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        while input.clone().max().into_scalar::<f32>() > 100.0 && !self.state.awake.load(Ordering::Acquire) {
            self.state.fell_asleep.store(true, Ordering::Release);
            sleep(Duration::from_millis(10));
        }
        input
    }
}

#[derive(Module, Debug, Default)]
struct Passes {}

impl Stage for Passes {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        input
    }
}

/// A stage for tests of stalls that returns its input unchanged. It counts the inputs with a number above 100. On the
/// second such input, it waits until another stage hangs, and then returns an error.
#[derive(Module, Debug, Default)]
struct FailsLater {
    #[module(skip)]
    other: Arc<Sleep>,
    #[module(skip)]
    large: Arc<AtomicUsize>,
}

impl Stage for FailsLater {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        input
    }

    fn try_forward(&self, input: Tensor<2>) -> Result<Tensor<2>, BoxError> {
        let large = input.clone().max().into_scalar::<f32>() > 100.0;
        let second = large && self.large.fetch_add(1, Ordering::SeqCst) == 1;
        while second && !self.other.fell_asleep.load(Ordering::Acquire) {
            sleep(Duration::from_millis(1));
        }
        if second { Err("a fault for the test".into()) } else { Ok(self.forward(input)) }
    }
}

fn batch(scale: f64) -> Batch<Tensor<2>, Target> {
    let (input, target) = Mlp::batch(8, WIDTH, false, 1);
    Batch::new(input * scale + scale, target)
}

fn builder(watchdog: impl Into<Option<Watchdog>>, sleep: &Arc<Sleep>) -> PipelineBuilder<Tensor<2>, Tensor<2>, Target> {
    let Mlp { mut layers, error } = Mlp::new(1, WIDTH, 1);
    let chain = Pipeline::builder().stage(Passes::default(), config()).stage(Sleeper::new(sleep), config());
    let chain = chain.stage(layers.remove(0), config());
    chain.loss((Vec::<Layer>::new(), error), config()).micro_batches(4).watchdog(watchdog)
}

fn pipeline(
    watchdog: impl Into<Option<Watchdog>>,
    sleep: &Arc<Sleep>,
) -> Result<Pipeline<Tensor<2>, Tensor<2>, Target>, BuildError> {
    builder(watchdog, sleep).build()
}

pub fn a_stage_that_hangs_is_named_and_left_behind() {
    within_a_minute(|| {
        let watchdog = Watchdog { floor: Duration::from_secs(3), factor: 0.0, grace: Duration::from_millis(500) };
        let sleep = Arc::<Sleep>::default();
        let mut pipeline = pipeline(watchdog, &sleep).unwrap();
        pipeline.step(batch(1e-3)).unwrap();
        pipeline.eval(batch(1e-3)).unwrap();
        let StepError::Stalled(stall) = pipeline.step(batch(1e6)).unwrap_err() else { panic!("it did not stall") };

        assert_eq!(stall.during, During::Step(1));
        assert!(stall.still >= watchdog.floor + watchdog.grace);
        let at_work: Vec<_> = stall.at_work().map(|worker| (worker.stage, worker.activity)).collect();
        let asleep = Action { stage: 1, compute: Compute::Forward, micro_batch: 0 };
        assert_eq!(at_work, [(1, Activity::Instruction(Instruction::Compute(asleep)))]);
        // The last stage waits for the one before it, and that one for the sleeper.
        let causes: Vec<_> = stall.workers.iter().map(|worker| worker.waits_for()).collect();
        let waiting = |stage| Some(WaitCause::Stage(stage));
        assert_eq!((causes[2], causes[3]), (waiting(1), waiting(2)));
        assert!(causes[0].is_some(), "{:?}", stall.workers[0]);
        assert_eq!(stall.to_json()["recent"][1].as_array().unwrap().last(), Some(&stall.to_json()["workers"][1]));
        let text = StepError::Stalled(stall).to_string();
        assert!(text.contains("at work: stage 1\n") && text.contains("stage 1: action 1F0"), "{text}");

        assert!(matches!(pipeline.step(batch(1.0)), Err(StepError::Stopped { .. })));
        let mut modules = pipeline.into_modules();
        assert!(modules.take::<Layer>(2).is_ok() && modules.take::<(Vec<Layer>, Error)>(3).is_ok());
        assert!(modules.take::<Sleeper>(1).is_err(), "it is with its thread");
        sleep.awake.store(true, Ordering::Release);
    });
}

/// Tests the error of a stalled step with two replicas. A stage of replica 1 hangs, and replica 0 waits for the
/// gradient sums of replica 1. The error names the hanging stage and its replica.
pub fn a_stage_that_hangs_is_named_with_its_replica() {
    within_a_minute(|| {
        let watchdog = Watchdog { floor: Duration::from_secs(3), factor: 0.0, grace: Duration::from_millis(500) };
        let sleep = Arc::<Sleep>::default();
        let mut pipeline = builder(watchdog, &sleep).micro_batches(2).replica(vec![device(); 4]).build().unwrap();
        let (input, target) = Mlp::batch(8, WIDTH, false, 1);
        let large_in_replica_1 = Batch::new(input.slice_fill([4..8, 0..WIDTH], 1e6), target);
        let error = pipeline.step(large_in_replica_1).unwrap_err();
        let StepError::Stalled(stall) = error else { panic!("it did not stall") };
        let at_work: Vec<_> = stall.at_work().map(|worker| (worker.replica.index, worker.stage)).collect();
        assert_eq!(at_work, [(1, 1)]);
        assert!(stall.workers[..4].iter().all(|worker| worker.activity == Activity::Reduce), "{stall}");
        assert_eq!(stall.workers[0].waits_for(), Some(WaitCause::TiedStages));
        let text = StepError::Stalled(stall).to_string();
        assert!(text.contains("at work: stage 1 of replica 1\n  stage 0 of replica 0: the reduction"), "{text}");
        // The hanging thread has replica 1's module; modules are returned from replica 0.
        assert!(pipeline.into_modules().take::<Sleeper>(1).is_ok());
        sleep.awake.store(true, Ordering::Release);
    });
}

pub fn a_failure_is_reported_although_another_stage_hangs() {
    within_a_minute(|| {
        let sleep = Arc::<Sleep>::default();
        let Mlp { layers, error } = Mlp::new(0, WIDTH, 1);
        let chain = Pipeline::builder()
            .stage(FailsLater { other: Arc::clone(&sleep), large: Arc::default() }, config())
            .stage(Sleeper::new(&sleep), config());
        let chain = chain.loss((layers, error), config()).micro_batches(4);
        let mut pipeline = chain.build().unwrap();
        pipeline.step(batch(1e-3)).unwrap();
        let StepError::Stage(failure) = pipeline.step(batch(1e6)).unwrap_err() else { panic!("another error") };
        assert_eq!((failure.stage, failure.micro_batch()), (0, Some(1)));
        let lost = pipeline.checkpoint().unwrap_err();
        assert!(matches!(lost, StepError::Lost { stage: 1 }), "{lost}");
        sleep.awake.store(true, Ordering::Release);
    });
}

#[test]
fn an_invalid_watchdog_is_refused() {
    for watchdog in [
        Watchdog { floor: Duration::ZERO, ..Watchdog::default() },
        Watchdog { factor: f64::NAN, ..Watchdog::default() },
    ] {
        assert!(matches!(pipeline(watchdog, &Arc::default()), Err(BuildError::Watchdog { .. })));
    }
    pipeline(None, &Arc::default()).unwrap().step(batch(1e-3)).unwrap();
}
