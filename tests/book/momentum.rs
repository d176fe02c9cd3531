//! Tests that gradient accumulation does not weaken momentum, because momentum averages over optimizer steps, and
//! prints a table of the book (`docs/book`).
//!
//! `cargo test --release --test book momentum -- --nocapture` prints the table.

use burn::optim::SgdConfig;
use burn::optim::momentum::MomentumConfig;
use burn::tensor::{Device, Tensor, TensorData};
use stageline::{Batch, BoxError, Pipeline, StageConfig};
use stageline_workspace::mlp::noise;

use crate::model::Line;

/// The standard deviation of the noise in the test's targets.
const NOISE: f64 = 6.0;

/// The learning rate of the test's trainings. It is so small that the parameters, and with them the expected gradient,
/// hardly change.
const RATE: f64 = 1e-6;

/// The number of steps at the start of the training that the test leaves out of its norms. The momentum, an average
/// with the factor 0.9, starts at 0. After these steps its start hardly matters.
const WARM_UP: usize = 40;

const ROWS: usize = 2; // of a micro-batch

type MaskedBatch = Batch<Tensor<2>, (Tensor<2>, Tensor<2>)>;

/// Returns a batch of `micro_batches` micro-batches of two rows: noisy values of `y = 2 x` at x = 1 and x = -1.
fn batch(step: usize, micro_batches: usize) -> MaskedBatch {
    let rows = ROWS * micro_batches;
    let column = |value: &dyn Fn(usize) -> f64| {
        let values: Vec<_> = (0..rows).map(|row| value(row) as f32).collect();
        Tensor::<2>::from_data(TensorData::new(values, [rows, 1]), &Device::flex())
    };
    let x = |row: usize| if row.is_multiple_of(2) { 1.0 } else { -1.0 };
    // The noise is uniform; a uniform number from -1 to 1 has a variance of 1/3.
    let drawn =
        |row: usize| NOISE * 3.0_f64.sqrt() * f64::from(noise(micro_batches as u64, (step * rows + row) as u64));
    Batch::new(column(&x), (column(&|row| 2.0 * x(row) + drawn(row)), column(&|_| 1.0)))
}

/// Trains by gradient descent with a momentum of 0.9. Returns two norms, as root mean squares over the steps: that of
/// the gradient, and that of the update divided by the learning rate.
fn norms(micro_batches: usize) -> Result<(f64, f64), BoxError> {
    let momentum = MomentumConfig::new().with_momentum(0.9).with_dampening(0.0);
    let stage = StageConfig::new(Device::flex(), SgdConfig::new().with_momentum(Some(momentum)).init(), RATE);
    let builder = Pipeline::builder().loss(Line::new(), stage).micro_batches(micro_batches);
    let mut pipeline = builder.health_every(1).build()?;
    let measured = 80 * (32 / micro_batches).max(1);
    let (mut gradient, mut update) = (0.0, 0.0);
    for step in 0..WARM_UP + measured {
        let health = pipeline.step(batch(step, micro_batches))?.health;
        if step >= WARM_UP {
            gradient += health.iter().map(|parameter| parameter.gradient_norm.powi(2)).sum::<f64>();
            update += health.iter().map(|parameter| parameter.update_norm.powi(2)).sum::<f64>();
        }
    }
    Ok(((gradient / measured as f64).sqrt(), (update / measured as f64).sqrt() / RATE))
}

/// Tests how the ratio of the update's norm to the gradient's norm depends on the number of micro-batches M. The test
/// compares the ratio with a formula, for M = 1 to 64. The gradient is the constant (-2, 0) plus noise with the
/// variance 8 NOISE^2 / B for a batch of B rows.
///
/// With a momentum of 0.9, an update is the sum of all past gradients with the weights 1, 0.9, 0.9^2 and so on. So it
/// has 10 times the constant part, and 1 / (1 - 0.9^2) times the variance of the noise. More micro-batches have less
/// noise, so the ratio grows with M.
#[test]
fn momentum_is_not_diluted_by_accumulation() -> Result<(), BoxError> {
    println!("| M | gradient norm | update norm / rate | update / (rate x gradient) | in theory |");
    println!("| --- | --- | --- | --- | --- |");
    let mut ratios = Vec::new();
    for micro_batches in [1, 2, 4, 8, 16, 32, 64] {
        let (gradient, update) = norms(micro_batches)?;
        let (signal, variance) = (4.0, 8.0 * NOISE.powi(2) / (ROWS * micro_batches) as f64);
        let theory = ((100.0 * signal + variance / (1.0 - 0.81)) / (signal + variance)).sqrt();
        let ratio = update / gradient;
        println!("| {micro_batches} | {gradient:.2} | {update:.2} | {ratio:.2} | {theory:.2} |");
        assert!((ratio / theory - 1.0).abs() < 0.2, "M = {micro_batches}: {ratio} against {theory}");
        ratios.push(ratio);
    }
    assert!(ratios[6] > 2.0 * ratios[0], "{ratios:?}");
    Ok(())
}
