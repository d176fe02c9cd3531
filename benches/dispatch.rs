//! Measures a pipeline's overhead, the time beyond its stages' computation: a step compared with a gradient
//! accumulation loop without Stageline, and the time per action (a forward or backward pass of one micro-batch) of
//! stages that compute next to nothing.
//!
//! ```text
//! cargo bench --bench dispatch
//! ```

use burn::module::{Initializer, Module, Param};
use burn::optim::{AdamWConfig, GradientsAccumulator, GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::{Device, Tensor};
use clap::Parser;
use rayon::ThreadPoolBuilder;
use stageline::{Batch, CountingAllocator, LossStage, Pipeline, Stage, StageConfig, Weight};
use stageline_gpt::model;
use stageline_workspace::{empty, gpt, side_by_side};

use crate::empty::Empty;
use crate::gpt::{LEARNING_RATE, Load};
use crate::model::{Bytes, Layers, Shape, gpt};
use crate::side_by_side::{median, side_by_side, time};

/// The bench's allocator. It counts allocated bytes as in a training run, so the measured times include the cost of
/// counting.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

/// Measures a pipeline's overhead: the time beyond its stages' computation
#[derive(Parser)]
struct Flags {
    /// Number of micro-batches (M) in the comparison with a training loop without Stageline
    #[arg(long, default_value_t = 8)]
    micro_batches: usize,
    /// Seconds of timed steps for each GPT size in the comparison with a training loop without Stageline; 0 skips this
    /// comparison
    #[arg(long, default_value_t = 20.0)]
    seconds: f64,
    /// Ignored; accepted because `cargo bench` passes it to every bench
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() {
    let flags = Flags::parse();
    // Limits the training loop without Stageline to one core, like the stage with `cores_per_stage(1)`.
    ThreadPoolBuilder::new().num_threads(1).use_current_thread().build_global().expect("the first pool");
    if flags.seconds > 0.0 {
        overhead(&flags);
        println!();
    }
    dispatch();
}

/// Prints the step time of a one-stage pipeline relative to a training loop without Stageline, for three GPT sizes,
/// timing both alternately.
fn overhead(flags: &Flags) {
    for (width, micro_batch_size) in [(64, 1), (128, 4), (256, 4)] {
        let load = Load {
            shape: Shape { layers: 2, width, context: 128 },
            micro_batches: flags.micro_batches,
            micro_batch_size,
        };
        let mut pipeline = load.pipeline(1);
        let mut plain = Plain::new(&load);
        let seconds_a_step = time(|| plain.step(&load)).as_secs_f64();
        let rounds = ((flags.seconds / seconds_a_step / 2.0) as usize).max(5);
        let pairs = side_by_side(rounds, || drop(pipeline.step(load.batch()).expect("a step")), || plain.step(&load));
        let (with, without) = pairs.medians();
        println!("{load:?}");
        let (with, without) = (1e3 * with, 1e3 * without);
        println!("  P=1 {with:.1} ms, plain loop {without:.1} ms a step; ratio, median of the pairs: {pairs}");
    }
}

/// The bench's baseline: a training loop without a pipeline, which accumulates gradients with burn's accumulator. Its
/// model has the same layers as the pipeline's. A pipeline's time is compared with this loop's.
struct Plain {
    model: Option<Layers>,
    optimizer: ModuleOptimizer,
}

impl Plain {
    fn new(load: &Load) -> Self {
        Self { model: Some(gpt(load.shape, 0).init(&Device::flex())), optimizer: AdamWConfig::new().init() }
    }

    fn step(&mut self, load: &Load) {
        let (inputs, targets) = load.text();
        let total = inputs.shape().num_elements() as f64;
        let model = self.model.take().expect("a model");
        let mut sum = GradientsAccumulator::new();
        let mut losses = Vec::new();
        for micro_batch in 0..load.micro_batches {
            let start = micro_batch * load.micro_batch_size;
            let part = |text: &Bytes| text.clone().slice_dim(0, start..start + load.micro_batch_size).autodiff();
            let (embeddings, blocks, head) = &model;
            let hidden = blocks.iter().fold(embeddings.forward(part(&inputs)), |hidden, block| block.forward(hidden));
            let loss = head.loss_of(hidden, part(&targets));
            losses.push(loss.clone().inner());
            sum.accumulate(&model, GradientsParams::from_grads((loss / total).backward(), &model));
        }
        self.model = Some(self.optimizer.step(LEARNING_RATE, model, sum.grads()));
        std::hint::black_box(losses.into_iter().map(Tensor::into_scalar::<f64>).sum::<f64>());
    }
}

/// A stage with next to no computation: it multiplies its input by its only parameter, so a step's time is the
/// pipeline's overhead.
#[derive(Module, Debug)]
struct Tiny {
    scale: Param<Tensor<1>>,
}

impl Tiny {
    fn new() -> Self {
        Self { scale: Initializer::Ones.init([1], &Device::flex().autodiff()) }
    }
}

impl Stage for Tiny {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        input * self.scale.val().unsqueeze()
    }
}

impl LossStage for Tiny {
    type Target = Tensor<2>;

    fn loss(&self, output: Tensor<2>, _target: Tensor<2>) -> Tensor<1> {
        output.sum()
    }

    fn weight(&self, target: &Tensor<2>) -> Weight {
        target.dims()[0].into()
    }
}

/// Prints the time per action (a forward or backward pass of one micro-batch) of stages that compute next to nothing. A
/// step of M micro-batches has 2M actions on each stage, so the time per action is the step time divided by 2M.
fn dispatch() {
    println!("microseconds an action, 1F1B, step time / 2M, median of steps; batch cut and flush included");
    println!("{:>3} {:>4} {:>10} {:>10}", "P", "M", "no tensors", "x * w");
    let config = || StageConfig::new(Device::flex(), SgdConfig::new().init(), 1e-3);
    for stages in [1, 2, 4, 8] {
        for micro_batches in [8, 32, 128] {
            let mut chain = Pipeline::builder();
            for _ in 1..stages {
                chain = chain.stage(Empty::default(), config());
            }
            let builder = chain.loss(Empty::default(), config()).micro_batches(micro_batches).cores_per_stage(1);
            let mut empty = builder.build().expect("a plan that can run");
            let nothing = || Batch::from_micro_batches(vec![((), ()); micro_batches]);
            let empty = action_time(micro_batches, || drop(empty.step(nothing()).expect("a step")));

            let mut chain = Pipeline::builder();
            for _ in 1..stages {
                chain = chain.stage(Tiny::new(), config());
            }
            let builder = chain.loss(Tiny::new(), config()).micro_batches(micro_batches).cores_per_stage(1);
            let mut tiny = builder.build().expect("a plan that can run");
            let ones = Tensor::<2>::ones([micro_batches, 1], &Device::flex());
            let batch = || Batch::new(ones.clone(), ones.clone());
            let tiny = action_time(micro_batches, || drop(tiny.step(batch()).expect("a step")));
            println!("{stages:>3} {micro_batches:>4} {empty:>10.1} {tiny:>10.1}");
        }
    }
}

/// Returns the time per action (a forward or backward pass of one micro-batch) in microseconds: the median time of a
/// training step (a call of `step`), divided by 2 x `micro_batches`.
fn action_time(micro_batches: usize, mut step: impl FnMut()) -> f64 {
    let steps = 3000 / micro_batches;
    let seconds = median((0..steps).map(|_| time(&mut step).as_secs_f64()));
    1e6 * seconds / (2 * micro_batches) as f64
}
