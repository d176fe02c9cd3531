//! Measures how many floating-point operations a second one core reaches in matrix products, with the matrix sizes of
//! the GPT example.
//!
//! ```text
//! cargo run --release --example product
//! ```
//!
//! The FLOP/s that a training step reaches, as a share of this rate, show what the rest of the step costs.

use std::time::{Duration, Instant};

use burn::tensor::{Device, Distribution, Tensor};

/// The number of rows of the matrices in the measured products: the tokens of a micro-batch.
const ROWS: usize = 512;
const WIDTH: usize = 256;

/// The time for which each matrix product is repeated in one measurement.
const TIME: Duration = Duration::from_millis(500);

/// The number of times that every matrix product is measured; the fastest measurement counts.
const ROUNDS: usize = 4;

fn main() {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("a thread can be started");
    let mut rates = Vec::new();
    // The four linear layers of a block: forward, gradient of the input, gradient of the weight.
    for (inputs, outputs) in [(WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH)] {
        for [rows, inner, columns] in [[ROWS, inputs, outputs], [ROWS, outputs, inputs], [inputs, ROWS, outputs]] {
            let rate = pool.install(|| (0..ROUNDS).map(|_| rate(rows, inner, columns)).fold(0.0, f64::max));
            println!("[{rows}, {inner}] x [{inner}, {columns}]: {rate:.1} GFLOP/s");
            rates.push((rate, rows * inner * columns));
        }
    }
    let work: usize = rates.iter().map(|(_, work)| work).sum();
    let time: f64 = rates.iter().map(|(rate, work)| *work as f64 / rate).sum();
    println!("all of them: {:.1} GFLOP/s", work as f64 / time);
}

/// Returns the measured rate of one matrix product in GFLOP/s (billions of floating-point operations a second), where a
/// multiplication and an addition count as two operations.
fn rate(rows: usize, inner: usize, columns: usize) -> f64 {
    let device = Device::flex();
    let random = |shape| Tensor::<2>::random(shape, Distribution::Uniform(-1.0, 1.0), &device);
    let (left, right) = (random([rows, inner]), random([inner, columns]));
    let (start, mut count) = (Instant::now(), 0);
    while start.elapsed() < TIME {
        std::hint::black_box(left.clone().matmul(right.clone()));
        count += 1;
    }
    2.0 * (rows * inner * columns * count) as f64 / start.elapsed().as_secs_f64() / 1e9
}
