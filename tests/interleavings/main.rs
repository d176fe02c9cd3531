//! Tests that explore the orders in which a pipeline's threads can run: in every explored order a step gives the same
//! bits, and a failure gives one error and leaves no thread waiting. Workers, boundaries and the flush are the
//! library's own code; only the threads and channels are replaced.
//!
//! [shuttle](https://github.com/awslabs/shuttle) chooses the orders: at random, and by the probabilistic concurrency
//! testing (PCT) of Burckhardt et al. (2010), which finds every bug of a small depth with a known probability. A
//! deadlock is a panic that prints the order that led to it.
//!
//! ```text
//! cargo test --features shuttle --test interleavings
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn::module::Module;
use burn::tensor::Tensor;
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner};
use stageline::checkpoint::Checkpoint;
use stageline::schedule::{EagerOneFOneB, GPipe, Interleaved, OneFOneB, Schedule, ZbH1, ZbV};
use stageline::{Batch, BoxError, Clip, OnNonFinite, Pipeline, PipelineBuilder, Stage, StepError, Update};
use stageline_workspace::mlp;

use crate::mlp::{Error, Layer, Mlp, Target, config, device};

const WIDTH: usize = 2;
const ROWS: usize = 6;
/// The number of times that the scheduler PCT (probabilistic concurrency testing) changes the priority of threads in
/// one explored order.
const DEPTH: usize = 3;

type Scheduled = &'static (dyn Schedule + Sync);

/// The shape of a pipeline whose thread orders are explored: schedule, stages, micro-batches, channel capacity and
/// replicas.
#[derive(Clone, Copy)]
struct Shape {
    schedule: Scheduled,
    stages: usize,
    /// M, the number of micro-batches of each replica in a step of the tested pipeline.
    micro_batches: usize,
    /// The capacity of each channel between two stages of the tested pipeline, in micro-batches.
    capacity: usize,
    /// Whether all transfers between stages are issued in one global order, which the plan gives. Without this setting,
    /// only transfers between GPUs are ordered.
    ordered: bool,
    replicas: usize,
}

/// Returns the pipelines that the tests run in many thread orders: their schedule, size, channel capacity and replicas.
fn shapes() -> Vec<Shape> {
    let mut shapes = Vec::new();
    let mut add = |schedule: Scheduled, stages, micro_batches, capacity, ordered| {
        shapes.push(Shape { schedule, stages, micro_batches, capacity, ordered, replicas: 1 });
    };
    for ordered in [false, true] {
        add(&OneFOneB, 1, 2, 2, ordered);
        add(&OneFOneB, 2, 3, 1, ordered);
        add(&OneFOneB, 2, 2, 2, ordered);
        add(&OneFOneB, 3, 3, 1, ordered);
        add(&GPipe, 2, 3, 3, ordered);
        add(&EagerOneFOneB, 3, 3, 3, ordered);
        add(&Interleaved { chunks: 2 }, 4, 2, 2, ordered);
        add(&ZbH1, 2, 3, 2, ordered);
        add(&ZbV, 4, 2, 2, ordered);
    }
    // These plans also run with channels of capacity 0, where every send waits for its receiver.
    add(&OneFOneB, 2, 1, 0, false);
    add(&GPipe, 2, 2, 0, false);
    for ordered in [false, true] {
        let two = Shape { schedule: &OneFOneB, stages: 2, micro_batches: 2, capacity: 1, ordered, replicas: 2 };
        shapes.extend([two, Shape { stages: 1, micro_batches: 1, replicas: 3, ..two }]);
    }
    shapes
}

/// A layer for tests of failures: it returns an error in its forward number `at`, counted from 0, and never if `at` is
/// `None`.
#[derive(Module, Debug)]
struct Failing {
    layer: Layer,
    #[module(skip)]
    at: Option<usize>,
    #[module(skip)]
    forwards: Arc<AtomicUsize>,
}

impl Failing {
    fn new(layer: Layer, at: Option<usize>) -> Self {
        Self { layer, at, forwards: Arc::default() }
    }
}

impl Stage for Failing {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        self.layer.forward(input)
    }

    fn try_forward(&self, input: Tensor<2>) -> Result<Tensor<2>, BoxError> {
        let forward = self.forwards.fetch_add(1, Ordering::Relaxed);
        if self.at == Some(forward) { Err("sabotage".into()) } else { Ok(self.forward(input)) }
    }
}

/// The forward in which a stage of a tested pipeline fails.
#[derive(Clone, Copy)]
struct FailAt {
    stage: usize,
    /// The number of the failing forward, counted from 0 over all forwards of the stage.
    forward: usize,
}

/// Returns the builder of a pipeline with one layer on each stage, whose thread orders are explored. With several
/// stages, the last stage's layer is tied to the first one. `failure` is the forward that fails; with `None`, none
/// does.
fn builder(shape: Shape, failure: Option<FailAt>) -> PipelineBuilder<Tensor<2>, Tensor<2>, Target> {
    let Mlp { layers, error } = Mlp::new(shape.stages, WIDTH, 1);
    let tied = layers[0].clone();
    let mut chain = Pipeline::builder();
    for (stage, layer) in layers.into_iter().take(shape.stages - 1).enumerate() {
        let at = failure.filter(|failure| failure.stage == stage).map(|failure| failure.forward);
        chain = chain.stage(Failing::new(layer, at), config());
    }
    let last = if shape.stages > 1 { vec![tied] } else { Vec::new() };
    let builder = chain.loss::<(Vec<Layer>, Error)>((last, error), config());
    let builder = (1..shape.replicas).fold(builder, |builder, _| builder.replica(vec![device(); shape.stages]));
    let builder = builder.micro_batches(shape.micro_batches).schedule(shape.schedule).cores_per_stage(1);
    let builder = builder.channel_capacity(shape.capacity).watchdog(None).on_non_finite(OnNonFinite::Skip);
    if shape.ordered { builder.ordered_transfers() } else { builder }
}

fn batch(step: u64) -> Batch<Tensor<2>, Target> {
    let (input, target) = Mlp::batch(ROWS, WIDTH, true, step);
    Batch::new(input, target)
}

/// Returns the number of thread orders that each of the two schedulers (random and PCT) explores for each pipeline: 20,
/// or the value of the environment variable `STAGELINE_INTERLEAVINGS`.
fn orders() -> usize {
    std::env::var("STAGELINE_INTERLEAVINGS").map_or(20, |number| number.parse().expect("a number"))
}

/// Returns a configuration of shuttle, the library that explores thread orders. It gives threads a larger stack than by
/// default, because tensor operations on the CPU need more.
fn large_stacks() -> Config {
    let mut config = Config::new();
    config.stack_size = 1 << 20;
    config
}

/// Runs a closure in many thread orders, half of them random and half chosen by PCT (probabilistic concurrency
/// testing). Returns the number of explored orders.
fn explore(run: impl Fn() + Send + Sync + Clone + 'static) -> usize {
    Runner::new(RandomScheduler::new(orders()), large_stacks()).run(run.clone());
    Runner::new(PctScheduler::new(DEPTH, orders()), large_stacks()).run(run);
    2 * orders()
}

/// Returns the checkpoint after each of the first `steps` steps of a pipeline that runs one step after another without
/// a failure.
fn undisturbed(shape: Shape, steps: u64) -> Vec<Checkpoint> {
    let states = Arc::new(std::sync::Mutex::new(Vec::new()));
    let found = Arc::clone(&states);
    Runner::new(RandomScheduler::new(1), large_stacks()).run(move || {
        let mut pipeline = builder(shape, None).build().unwrap();
        for step in 0..steps {
            pipeline.step(batch(step)).unwrap();
            found.lock().unwrap().push(pipeline.checkpoint().unwrap());
        }
    });
    std::mem::take(&mut *states.lock().unwrap())
}

#[test]
fn steps_evaluations_and_skips_give_the_same_bits_in_any_thread_order() {
    let mut explored = 0;
    for shape in shapes() {
        let expected = Arc::new(undisturbed(shape, 2));
        explored += explore(move || {
            let mut pipeline = builder(shape, None).build().unwrap();
            pipeline.step(batch(0)).unwrap();
            pipeline.eval(batch(7)).unwrap();
            // A step with a NaN is run again to find its origin, and changes nothing.
            let (input, target) = Mlp::batch(ROWS, WIDTH, true, 3);
            let skipped = pipeline.step(Batch::new(input * f32::NAN, target)).unwrap();
            assert!(matches!(skipped.update, Update::NonFinite { .. }));
            pipeline.gradients(batch(5)).unwrap();
            pipeline.step(batch(1)).unwrap();
            let state = pipeline.checkpoint().unwrap();
            assert!(state.parameters == expected[1].parameters && state.optimizer == expected[1].optimizer);
        });
    }
    println!("{explored} orders of steps, evaluations and skips");
    assert!(explored >= 500);
}

/// Returns four batches for tests of overlapping steps. The gradients of the second batch are clipped, and those of the
/// third are not finite. After each of these two, the work on the next step is discarded.
fn steps() -> impl Iterator<Item = Batch<Tensor<2>, Target>> {
    (0..4).map(|step| {
        let (input, (wanted, mask)) = Mlp::batch(ROWS, WIDTH, true, step);
        match step {
            1 => Batch::new(input, (wanted * 10.0, mask)),
            2 => Batch::new(input * f32::NAN, (wanted, mask)),
            _ => Batch::new(input, (wanted, mask)),
        }
    })
}

/// The gradient clipping in the tests of overlapping steps. Of the four batches of these tests, only the second has a
/// global gradient norm above the limit.
const CLIP: Clip = Clip::GlobalNorm(2.0);

#[test]
fn overlapping_steps_give_the_same_bits_in_any_thread_order() {
    let mut explored = 0;
    for shape in shapes() {
        let together = Arc::new(std::sync::Mutex::new(None));
        let found = Arc::clone(&together);
        Runner::new(RandomScheduler::new(1), large_stacks()).run(move || {
            let mut pipeline = builder(shape, None).clip(CLIP).build().unwrap();
            let clipped = |report: stageline::StepReport| match report.update {
                Update::Stepped { clipped, .. } => Some(clipped),
                _ => None,
            };
            let updates: Vec<_> = steps().map(|batch| clipped(pipeline.step(batch).unwrap())).collect();
            assert_eq!(updates, [Some(false), Some(true), None, Some(false)]);
            *found.lock().unwrap() = Some(pipeline.checkpoint().unwrap());
        });
        let expected = Arc::new(together.lock().unwrap().take().unwrap());
        let again = Arc::clone(&expected);
        explored += explore(move || {
            let mut pipeline = builder(shape, None).clip(CLIP).build().unwrap();
            assert!(pipeline.steps(steps()).all(|report| report.is_ok()));
            assert!(pipeline.checkpoint().unwrap() == *expected, "other bits");
        });
        // Dropping the iterator rolls back the step that has begun.
        explored += explore(move || {
            let mut pipeline = builder(shape, None).clip(CLIP).build().unwrap();
            pipeline.steps(steps()).next().unwrap().unwrap();
            steps().skip(1).for_each(|batch| drop(pipeline.step(batch).unwrap()));
            assert!(pipeline.checkpoint().unwrap() == *again, "other bits");
        });
    }
    println!("{explored} orders of overlapping steps");
    assert!(explored >= 1000);
}

#[test]
fn a_failure_in_overlapping_steps_leaves_whole_steps_in_any_thread_order() {
    let mut explored = 0;
    for shape in shapes() {
        let states = Arc::new(undisturbed(shape, 3));
        for (stage, step) in (0..shape.stages - 1).flat_map(|stage| [(stage, 1), (stage, 2)]) {
            let states = Arc::clone(&states);
            explored += explore(move || {
                let failure = FailAt { stage, forward: shape.replicas * shape.micro_batches * step };
                let mut pipeline = builder(shape, Some(failure)).build().unwrap();
                let last = pipeline.steps((0..3).map(batch)).last().unwrap();
                let Err(StepError::Stage(failure)) = last else { panic!("{last:?}") };
                assert_eq!((failure.stage, failure.micro_batch()), (stage, Some(0)));
                let left = pipeline.checkpoint().unwrap();
                let made = left.progress.steps as usize;
                assert!(made == step || made + 1 == step, "{made} steps");
                assert!(made == 0 || left == states[made - 1], "the stages have made different steps");
            });
        }
    }
    println!("{explored} orders of a failure in overlapping steps");
    assert!(explored >= 500);
}

#[test]
fn a_failure_ends_every_thread_and_rolls_back_the_step_in_any_thread_order() {
    let mut explored = 0;
    for shape in shapes() {
        let before = Arc::new(undisturbed(shape, 1));
        let last = shape.stages - 1;
        for (stage, micro_batch) in (0..last).flat_map(|stage| (0..shape.micro_batches).map(move |at| (stage, at))) {
            let before = Arc::clone(&before);
            explored += explore(move || {
                let failure = FailAt { stage, forward: shape.replicas * shape.micro_batches + micro_batch };
                let mut pipeline = builder(shape, Some(failure)).build().unwrap();
                pipeline.step(batch(0)).unwrap();
                let StepError::Stage(failure) = pipeline.step(batch(1)).unwrap_err() else { panic!("another error") };
                // With several replicas, the order of threads decides which replica runs the failing forward.
                assert!(failure.stage == stage && (shape.replicas > 1 || failure.micro_batch() == Some(micro_batch)));
                assert!(pipeline.checkpoint().unwrap() == before[0], "a stage has stepped");
            });
        }
    }
    println!("{explored} orders of a failure");
    assert!(explored >= 1000);
}

#[test]
fn a_dropped_pipeline_ends_its_threads_in_any_thread_order() {
    let mut explored = 0;
    for shape in shapes() {
        explored += explore(move || drop(builder(shape, None).build().unwrap()));
        explored += explore(move || {
            let mut pipeline = builder(shape, None).build().unwrap();
            pipeline.step(batch(0)).unwrap();
            pipeline.into_modules();
        });
    }
    println!("{explored} orders of an end");
    assert!(explored >= 500);
}
