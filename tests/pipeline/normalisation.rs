//! Tests of batch normalisation: the running statistics are those of the whole batch, whatever its number of
//! micro-batches.

use burn::module::Module;
use burn::nn::{BatchNorm, BatchNormConfig};
use burn::tensor::Tensor;
use stageline::schedule::{EagerOneFOneB, GPipe, OneFOneB, Schedule};
use stageline::{AccumulatedBatchNorm, Batch, OnNonFinite, Pipeline, Stage, Update};

use crate::mlp::{Error, Mlp, Noisy, Target, bits, config, device};

const WIDTH: usize = 5;
const ROWS: usize = 19;

/// A stage for tests with an `AccumulatedBatchNorm`, which updates its running statistics once a step.
#[derive(Module, Debug)]
struct Accumulated {
    norm: AccumulatedBatchNorm,
}

/// A stage for tests with burn's batch norm, which updates its running statistics once a micro-batch.
#[derive(Module, Debug)]
struct Plain {
    norm: BatchNorm,
}

impl Stage for Accumulated {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        self.norm.forward(input)
    }
}

impl Stage for Plain {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        self.norm.forward(input)
    }
}

fn plain() -> Plain {
    Plain { norm: BatchNormConfig::new(WIDTH).init(&device().autodiff()) }
}

fn accumulated() -> Accumulated {
    Accumulated { norm: plain().norm.into() }
}

/// Returns a batch for tests of batch normalisation, whose columns differ in mean and standard deviation.
fn batch(seed: u64) -> (Tensor<2>, Target) {
    let (input, target) = Mlp::batch(ROWS, WIDTH, false, seed);
    let columns = |values: [f32; WIDTH]| Tensor::<1>::from_floats(values, &device()).unsqueeze::<2>();
    (input * columns([1.0, 2.0, 0.5, 3.0, 1.0]) + columns([0.0, 1.0, -4.0, 2.0, 7.0]), target)
}

/// Trains a pipeline of two stages: `stage`, and a last stage that computes the loss. Returns `stage` after the
/// training, and the bits of the parameters of both stages.
fn trained<S>(stage: S, micro_batches: usize, schedule: impl Schedule + 'static, steps: u64) -> (S, Vec<u32>)
where
    S: Stage<Input = Tensor<2>, Output = Tensor<2>>,
{
    let chain = Pipeline::builder().stage(stage, config()).loss(Mlp::new(0, WIDTH, 3).error, config());
    let mut pipeline = chain.micro_batches(micro_batches).schedule(schedule).build().unwrap();
    for step in 0..steps {
        let (input, target) = batch(step);
        pipeline.step(Batch::new(input, target)).unwrap();
    }
    let mut modules = pipeline.into_modules();
    let stage = modules.take::<S>(0).unwrap();
    let bits = [bits(&stage), bits(&modules.take::<Error>(1).unwrap())].concat();
    (stage, bits)
}

/// Returns the running means of a batch norm, followed by its running variances.
fn statistics(norm: &BatchNorm) -> Vec<f64> {
    let values = |tensor: Tensor<1>| tensor.into_data().iter::<f64>().collect::<Vec<_>>();
    [values(norm.running_mean.value()), values(norm.running_var.value())].concat()
}

/// Returns the running statistics of a batch norm that are expected after `steps` steps, in f64. After each step, a
/// statistic is 0.9 times its old value plus 0.1 times the mean or the biased variance of the step's whole batch.
fn one_pass(steps: u64) -> Vec<f64> {
    let mut running = [vec![0.0; WIDTH], vec![1.0; WIDTH]].concat();
    for step in 0..steps {
        let values = batch(step).0.into_data().iter::<f64>().collect::<Vec<_>>();
        for channel in 0..WIDTH {
            let column = || values.iter().skip(channel).step_by(WIDTH);
            let mean = column().sum::<f64>() / ROWS as f64;
            let variance = column().map(|value| (value - mean).powi(2)).sum::<f64>() / ROWS as f64;
            running[channel] = 0.9 * running[channel] + 0.1 * mean;
            running[WIDTH + channel] = 0.9 * running[WIDTH + channel] + 0.1 * variance;
        }
    }
    running
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).inspect(|apart| assert!(apart.is_finite())).fold(0.0, f64::max)
}

#[test]
fn running_statistics_cover_the_whole_batch() {
    for (steps, micro_batches) in [(1, 8), (3, 8), (2, 1), (2, 3)] {
        let (stage, _) = trained(accumulated(), micro_batches, OneFOneB, steps);
        let ours = distance(&statistics(&stage.norm.into_inner()), &one_pass(steps));
        assert!(ours < 1e-6, "M={micro_batches}, {steps} steps: {ours}");
    }
    // burn's own batch norm updates its statistics in every micro-batch, from that micro-batch's rows only. `valid`
    // synchronises statistics that another thread has updated.
    let (stage, _) = trained(plain(), 8, OneFOneB, 1);
    assert!(distance(&statistics(&stage.norm.valid()), &one_pass(1)) > 0.1);
    let (stage, _) = trained(plain(), 1, OneFOneB, 1);
    assert!(distance(&statistics(&stage.norm.valid()), &one_pass(1)) < 1e-6);
}

/// A stage for tests that applies the same batch norm twice in one forward.
#[derive(Module, Debug)]
struct Twice {
    norm: AccumulatedBatchNorm,
}

impl Stage for Twice {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        (self.norm.forward(input.clone()) + self.norm.forward(input)) / 2.0
    }
}

#[test]
fn a_layer_that_is_used_twice_counts_both_uses() {
    let (stage, _) = trained(Twice { norm: plain().norm.into() }, 4, OneFOneB, 2);
    assert!(distance(&statistics(&stage.norm.into_inner()), &one_pass(2)) < 1e-6);
}

/// Tests that copies of a batch norm in two stages each have the running statistics of their own inputs.
#[test]
fn copies_of_a_layer_keep_their_own_statistics() {
    let norm = accumulated().norm;
    let stage = || Accumulated { norm: norm.clone() };
    let chain = Pipeline::builder().stage(stage(), config()).stage(stage(), config());
    let mut pipeline = chain.loss(Mlp::new(0, WIDTH, 3).error, config()).micro_batches(4).build().unwrap();
    let (input, target) = batch(0);
    pipeline.step(Batch::new(input, target)).unwrap();
    let mut modules = pipeline.into_modules();
    let [first, second] = [0, 1].map(|at| statistics(&modules.take::<Accumulated>(at).unwrap().norm.into_inner()));
    assert!(distance(&first, &one_pass(1)) < 1e-6);
    // The output of the first stage has mean 0 and variance 1 in every micro-batch.
    let normal = [vec![0.0; WIDTH], vec![1.0; WIDTH]].concat();
    assert!(distance(&second, &normal) < 0.02, "{second:?}");
}

#[test]
fn a_batch_norm_gives_the_same_bits_in_every_schedule() {
    let (_, reference) = trained(accumulated(), 4, OneFOneB, 3);
    assert_eq!(trained(accumulated(), 4, GPipe, 3).1, reference);
    assert_eq!(trained(accumulated(), 4, EagerOneFOneB, 3).1, reference);
}

#[test]
fn a_skipped_step_does_not_change_running_statistics() {
    let chain = Pipeline::builder().stage(accumulated(), config()).loss(Mlp::new(0, WIDTH, 3).error, config());
    let mut pipeline = chain.micro_batches(4).on_non_finite(OnNonFinite::Skip).build().unwrap();
    let (input, (wanted, mask)) = batch(5);
    let report = pipeline.step(Batch::new(input, (wanted * f32::MAX, mask))).unwrap();
    assert!(matches!(report.update, Update::NonFinite { .. }));
    let (input, target) = batch(0);
    pipeline.step(Batch::new(input, target)).unwrap();
    let norm = pipeline.into_modules().take::<Accumulated>(0).unwrap().norm.into_inner();
    assert!(distance(&statistics(&norm), &one_pass(1)) < 1e-6);
}

/// Tests that an evaluation, here of a single row, normalises by a batch norm's running statistics and does not change
/// them.
#[test]
fn an_evaluation_normalises_by_the_running_statistics() {
    let chain = Pipeline::builder().stage(accumulated(), config()).loss(Mlp::new(0, WIDTH, 3).error, config());
    let mut pipeline = chain.micro_batches(4).build().unwrap();
    let (input, target) = batch(0);
    pipeline.step(Batch::new(input.clone(), target.clone())).unwrap();
    let row = |tensor: &Tensor<2>| tensor.clone().slice_dim(0, 3..4);
    let one = pipeline.eval(Batch::new(row(&input), (row(&target.0), row(&target.1)))).unwrap();
    let all = pipeline.eval(Batch::new(input.clone(), target.clone())).unwrap();
    let again = pipeline.eval(Batch::new(row(&input), (row(&target.0), row(&target.1)))).unwrap();
    assert_eq!(one.loss.to_bits(), again.loss.to_bits(), "an evaluation has changed the running statistics");
    assert!(one.loss.is_finite() && all.loss.is_finite());
}

/// Tests a batch norm in the last stage: training steps and evaluations give the same losses as with the batch norm in
/// a stage of its own.
#[test]
fn batch_norms_of_the_last_stage_keep_their_statistics() {
    let parts = || {
        let Mlp { mut layers, error } = Mlp::new(1, 8, 64);
        (Noisy::new(layers.pop().unwrap(), 3), error)
    };
    let train = |cut: bool| {
        let (noisy, error) = parts();
        let builder = match cut {
            true => Pipeline::builder().stage(noisy, config()).loss(error, config()),
            false => Pipeline::builder().loss((noisy, error), config()),
        };
        let mut pipeline = builder.micro_batches(2).build().unwrap();
        let mut losses = Vec::new();
        for step in 0..3 {
            let (input, target) = Mlp::batch(8, 8, false, step);
            let batch = Batch::new(input, target);
            losses.push(pipeline.eval(batch.clone()).unwrap().loss.to_bits());
            losses.push(pipeline.step(batch).unwrap().loss.to_bits());
        }
        losses
    };
    assert_eq!(train(true), train(false));
}
