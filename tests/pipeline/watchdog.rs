//! A pipeline that stands still is given up, and says why.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Duration;

use burn::module::Module;
use burn::tensor::Tensor;
use stageline::schedule::{Action, Compute, Instruction};
use stageline::{Activity, Batch, BuildError, During, Pipeline, Stage, StepError, WaitCause, Watchdog};

use crate::mlp::{Error, Layer, Mlp, Target, config, within_a_minute};

const WIDTH: usize = 4;

/// Lets sleepers go, so that the test leaves no thread behind.
static AWAKE: AtomicBool = AtomicBool::new(false);

/// Passes its input on; on one batch, which it knows by a large number, it falls asleep.
#[derive(Module, Debug, Default)]
struct Sleeper {}

impl Stage for Sleeper {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        while input.clone().max().into_scalar::<f32>() > 100.0 && !AWAKE.load(Ordering::Acquire) {
            sleep(Duration::from_millis(10));
        }
        input
    }
}

/// Passes its input on.
#[derive(Module, Debug, Default)]
struct Passes {}

impl Stage for Passes {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        input
    }
}

fn batch(scale: f64) -> Batch<Tensor<2>, Target> {
    let (input, target) = Mlp::batch(8, WIDTH, false, 1);
    Batch::new(input * scale + scale, target)
}

fn pipeline(watchdog: impl Into<Option<Watchdog>>) -> Result<Pipeline<Tensor<2>, Target>, BuildError> {
    let Mlp { mut layers, error } = Mlp::new(1, WIDTH, 1);
    let chain = Pipeline::builder().stage(Passes::default(), config()).stage(Sleeper::default(), config());
    let chain = chain.stage(layers.remove(0), config());
    chain.loss((Vec::<Layer>::new(), error), config()).micro_batches(4).watchdog(watchdog).build()
}

#[test]
fn a_stage_that_sleeps_for_ever_is_named_and_left_behind() {
    within_a_minute(|| {
        let watchdog = Watchdog { floor: Duration::from_secs(3), factor: 0.0, grace: Duration::from_millis(500) };
        let mut pipeline = pipeline(watchdog).unwrap();
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
        AWAKE.store(true, Ordering::Release);
    });
}

#[test]
fn a_watchdog_that_cannot_watch_is_refused() {
    for watchdog in [
        Watchdog { floor: Duration::ZERO, ..Watchdog::default() },
        Watchdog { factor: f64::NAN, ..Watchdog::default() },
    ] {
        assert!(matches!(pipeline(watchdog), Err(BuildError::Watchdog { .. })));
    }
    pipeline(None).unwrap().step(batch(1e-3)).unwrap();
}
