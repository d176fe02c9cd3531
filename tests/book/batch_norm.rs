//! Tests gradient accumulation with a batch norm and with a layer norm, and prints a table of the book (`docs/book`).
//! With burn's batch norm, the gradient and the running variance depend on the number of micro-batches. The gradient
//! with a layer norm and the running variance of `AccumulatedBatchNorm` do not.
//!
//! `cargo test --release --test book batch_norm -- --nocapture` prints the table.

use burn::module::Module;
use burn::nn::{BatchNorm, BatchNormConfig, LayerNorm, LayerNormConfig, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::{Device, Tensor, TensorData};
use stageline::nn::Linear;
use stageline::{
    AccumulatedBatchNorm, Batch, BoxError, LossStage, Pipeline, PipelineBuilder, Stage, StageConfig, Weight, seeded,
};
use stageline_workspace::mlp::noise;

const ROWS: usize = 32;
const WIDTH: usize = 8;

/// The first stage of a test model with a norm (batch norm or layer norm): a linear layer, the norm and a tanh.
#[derive(Module, Debug)]
struct Normed<N: Module> {
    linear: Linear,
    norm: N,
}

impl Stage for Normed<BatchNorm> {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        self.norm.forward(self.linear.forward(input)).tanh()
    }
}

impl Stage for Normed<AccumulatedBatchNorm> {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        self.norm.forward(self.linear.forward(input)).tanh()
    }
}

impl Stage for Normed<LayerNorm> {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        self.norm.forward(self.linear.forward(input)).tanh()
    }
}

/// The last stage of a test model with a norm (batch norm or layer norm): a linear layer with a squared error as the
/// loss.
#[derive(Module, Debug)]
struct Head {
    linear: Linear,
}

impl Stage for Head {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        self.linear.forward(input)
    }
}

impl LossStage for Head {
    type Target = Tensor<2>;

    fn loss(&self, output: Tensor<2>, wanted: Tensor<2>) -> Tensor<1> {
        (output - wanted).square().sum()
    }

    fn weight(&self, wanted: &Tensor<2>) -> Weight {
        wanted.dims()[0].into()
    }
}

fn batch() -> Batch<Tensor<2>, Tensor<2>> {
    let drawn = |seed: u64, columns: usize| {
        let values: Vec<_> = (0..ROWS * columns).map(|at| noise(seed, at as u64)).collect();
        Tensor::<2>::from_data(TensorData::new(values, [ROWS, columns]), &Device::flex())
    };
    Batch::new(drawn(1, WIDTH), drawn(2, 1))
}

/// Returns the builder of a two-stage pipeline for tests of a norm (batch norm or layer norm), which `norm` creates.
fn model<N>(norm: impl Fn(&Device) -> N, micro_batches: usize) -> PipelineBuilder<Tensor<2>, Tensor<2>, Tensor<2>>
where
    N: Module,
    Normed<N>: Stage<Input = Tensor<2>, Output = Tensor<2>>,
{
    let device = Device::flex().autodiff();
    let linear = |outputs: usize| Linear::from(LinearConfig::new(WIDTH, outputs).init(&device));
    let first = seeded(&device, 1, || Normed { linear: linear(WIDTH), norm: norm(&device) });
    let head = seeded(&device, 2, || Head { linear: linear(1) });
    let stage = || StageConfig::new(Device::flex(), SgdConfig::new().init(), 0.01);
    Pipeline::builder().stage(first, stage()).loss(head, stage()).micro_batches(micro_batches)
}

fn batch_norm(device: &Device) -> BatchNorm {
    BatchNormConfig::new(WIDTH).init(device)
}

fn layer_norm(device: &Device) -> LayerNorm {
    LayerNormConfig::new(WIDTH).init(device)
}

/// Returns the gradient of the test's batch as one list of numbers, for all parameters together.
fn gradient(builder: PipelineBuilder<Tensor<2>, Tensor<2>, Tensor<2>>) -> Result<Vec<f64>, BoxError> {
    let gradients = builder.build()?.gradients(batch())?;
    Ok(gradients.iter().flat_map(|gradient| gradient.summed.iter().copied().map(f64::from)).collect())
}

/// Returns the running variances of burn's batch norm after one training step.
fn variances_of_burn(micro_batches: usize) -> Result<Vec<f64>, BoxError> {
    let mut pipeline = model(batch_norm, micro_batches).build()?;
    pipeline.step(batch())?;
    let first = pipeline.into_modules().take::<Normed<BatchNorm>>(0)?;
    Ok(first.valid().norm.running_var.value().into_data().iter::<f64>().collect())
}

/// Returns the running variances of an `AccumulatedBatchNorm` after one training step.
fn accumulated_variances(micro_batches: usize) -> Result<Vec<f64>, BoxError> {
    let norm = |device: &Device| AccumulatedBatchNorm::from(batch_norm(device));
    let mut pipeline = model(norm, micro_batches).build()?;
    pipeline.step(batch())?;
    let first = pipeline.into_modules().take::<Normed<AccumulatedBatchNorm>>(0)?;
    Ok(first.norm.into_inner().running_var.value().into_data().iter::<f64>().collect())
}

/// Returns the Euclidean norm of the difference between two lists of numbers, divided by the norm of the second list.
fn apart(found: &[f64], expected: &[f64]) -> f64 {
    let norm = |numbers: &mut dyn Iterator<Item = f64>| numbers.map(|number| number * number).sum::<f64>().sqrt();
    let difference = norm(&mut found.iter().zip(expected).map(|(found, expected)| found - expected));
    difference / norm(&mut expected.iter().copied())
}

#[test]
fn a_batch_norm_makes_accumulation_inexact() -> Result<(), BoxError> {
    let by_batch = |m| gradient(model(batch_norm, m));
    let by_layer = |m| gradient(model(layer_norm, m));
    let whole = (by_batch(1)?, by_layer(1)?, variances_of_burn(1)?, accumulated_variances(1)?);
    println!(
        "| M | rows of a micro-batch | gradient, batch norm | gradient, layer norm | running variance, burn's batch norm | \
         running variance, `AccumulatedBatchNorm` |"
    );
    println!("| --- | --- | --- | --- | --- | --- |");
    for m in [2, 4, 8, 16] {
        let (batch_norm, layer_norm) = (apart(&by_batch(m)?, &whole.0), apart(&by_layer(m)?, &whole.1));
        let (burns, accumulated) =
            (apart(&variances_of_burn(m)?, &whole.2), apart(&accumulated_variances(m)?, &whole.3));
        println!("| {m} | {} | {batch_norm:.3} | {layer_norm:.1e} | {burns:.3} | {accumulated:.1e} |", ROWS / m);
        assert!(batch_norm > 0.01 && layer_norm < 1e-5, "M = {m}: {batch_norm}, {layer_norm}");
        assert!(burns > 0.01 && accumulated < 1e-5, "M = {m}: {burns}, {accumulated}");
    }
    Ok(())
}
