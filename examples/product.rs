//! Measures how many floating-point operations per second one core reaches in matrix products, with the matrix sizes of
//! a GPT's linear layers.
//!
//! ```text
//! cargo run --release --example product -- --rows 512 --width 256
//! ```
//!
//! Every product is timed as the forward pass of a [`Linear`] layer without bias, so it uses the same kernel as
//! training steps. A training step's gradients are products of the same sizes, with one matrix transposed.
//!
//! Divide a training step's FLOP/s by this rate to see what the rest of the step costs.

use std::time::{Duration, Instant};

use burn::nn::LinearConfig;
use burn::tensor::{Device, Distribution, Tensor};
use clap::Parser;
use stageline::nn::Linear;

/// Measures the speed of matrix products with the sizes of a GPT's linear layers on one core.
#[derive(Parser)]
struct Flags {
    /// Number of rows of the inputs: the tokens in a micro-batch
    #[arg(long, default_value_t = 512)]
    rows: usize,
    /// Width of the model
    #[arg(long, default_value_t = 256)]
    width: usize,
}

/// Duration of one measurement, which repeats a matrix product.
const TIME: Duration = Duration::from_millis(500);

/// The number of measurements per matrix product; the fastest one counts.
const ROUNDS: usize = 4;

fn main() {
    let Flags { rows: tokens, width } = Flags::parse();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("a thread can be started");
    let mut rates = Vec::new();
    // The four linear layers of a block, each with its three products: output, input gradient, weight gradient.
    for (inputs, outputs) in [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)] {
        for [rows, inner, columns] in [[tokens, inputs, outputs], [tokens, outputs, inputs], [inputs, tokens, outputs]]
        {
            let rate = pool.install(|| (0..ROUNDS).map(|_| rate(rows, inner, columns)).fold(0.0, f64::max));
            println!("[{rows}, {inner}] x [{inner}, {columns}]: {rate:.1} GFLOP/s");
            rates.push((rate, rows * inner * columns));
        }
    }
    let work: usize = rates.iter().map(|(_, work)| work).sum();
    let time: f64 = rates.iter().map(|(rate, work)| *work as f64 / rate).sum();
    println!("all of them: {:.1} GFLOP/s", work as f64 / time);
}

/// Returns the throughput of one matrix product (a linear layer's forward pass) in GFLOP/s, counting a multiply-add as
/// two operations.
fn rate(rows: usize, inner: usize, columns: usize) -> f64 {
    let device = Device::flex();
    let input = Tensor::<2>::random([rows, inner], Distribution::Uniform(-1.0, 1.0), &device);
    let layer = Linear::from(LinearConfig::new(inner, columns).with_bias(false).init(&device));
    std::hint::black_box(layer.forward(input.clone())); // the first use of the weight draws it
    let (start, mut count) = (Instant::now(), 0);
    while start.elapsed() < TIME {
        std::hint::black_box(layer.forward(input.clone()));
        count += 1;
    }
    2.0 * (rows * inner * columns * count) as f64 / start.elapsed().as_secs_f64() / 1e9
}
