//! Measures the cost of the gradient noise measurement: the time of steps with the measurement divided by that of steps
//! without it. One pipeline runs both kinds of steps alternately.
//!
//! It prints the median ratio over all pairs of steps, with a 95% confidence interval of the median. By default, a
//! training run measures the noise in every tenth step. The bench therefore also prints `(ratio - 1) / 10`: the
//! fraction by which a training run takes longer.
//!
//! ```text
//! cargo bench --bench noise -- --stages 2 --pairs 200
//! ```

use std::cell::RefCell;

use burn::tensor::Device;
use clap::Parser;
use stageline::CountingAllocator;
use stageline::schedule::OneFOneB;
use stageline_gpt::model;
use stageline_workspace::{gpt, side_by_side};

use crate::gpt::Load;
use crate::model::Shape;
use crate::side_by_side::side_by_side;

/// The bench's allocator. It counts allocated bytes as in a training run, so the measured times include the cost of
/// counting.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

/// The default of `--noise-every`: the interval, in steps, at which a training run measures the gradient noise.
const DEFAULT_INTERVAL: f64 = 10.0;

/// Times steps with and without the gradient noise measurement, alternately
#[derive(Parser)]
struct Flags {
    /// Number of pipeline stages (P)
    #[arg(long, default_value_t = 2)]
    stages: usize,
    /// Number of micro-batches in a step (M), at least 2
    #[arg(long, default_value_t = 8)]
    micro_batches: usize,
    /// Number of samples in a micro-batch
    #[arg(long, default_value_t = 4)]
    micro_batch_size: usize,
    /// Number of transformer blocks in the GPT
    #[arg(long, default_value_t = 4)]
    layers: usize,
    /// Width of the GPT
    #[arg(long, default_value_t = 128)]
    width: usize,
    /// Length of a training sample, in bytes
    #[arg(long, default_value_t = 128)]
    context: usize,
    /// Number of pairs of timed steps: in each pair, one step measures the gradient noise and one does not
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(100..))]
    pairs: u32,
    /// Ignored; accepted because `cargo bench` passes it to every bench
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() {
    let flags = Flags::parse();
    let load = Load {
        shape: Shape { layers: flags.layers, width: flags.width, context: flags.context },
        micro_batches: flags.micro_batches,
        micro_batch_size: flags.micro_batch_size,
    };
    let builder = load.builder(&vec![Device::flex(); flags.stages], &OneFOneB);
    // Steps 0, 2, 4 and so on measure the noise.
    let pipeline = RefCell::new(builder.noise_every(2).build().expect("a plan that can run"));
    let batch = load.batch();
    let step = |measures: bool| {
        let report = pipeline.borrow_mut().step(batch.clone()).expect("a step");
        assert_eq!(report.noise.is_some(), measures, "step {}; M must be at least 2", report.step);
    };
    let pairs = side_by_side(flags.pairs as usize, || step(true), || step(false));
    let (with, without) = pairs.medians();
    let (ratio, interval) = pairs.median_ratio();
    let longer = |ratio: f64| 100.0 * (ratio - 1.0) / DEFAULT_INTERVAL;
    let ([from, to], [least, most]) = (interval, interval.map(longer));
    println!("{load:?}, P = {}, one core a stage, {} pairs of steps in turn", flags.stages, flags.pairs);
    println!("  with the measurement {:.2} ms a step, without {:.2} ms", 1e3 * with, 1e3 * without);
    println!("  ratio, median of the pairs with a 95% interval: {ratio:.4} ({from:.4} to {to:.4})");
    println!("  longer training, every 10th step measures: {:+.2}% ({least:+.2}% to {most:+.2}%)", longer(ratio));
}
