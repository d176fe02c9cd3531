//! Measures causal attention's forward and backward pass on a device: their time, and the device memory that is
//! reserved.
//!
//! ```text
//! cargo bench --bench attention -- --device cpu --length 512,1024,2048
//! ```
//!
//! A stage of a pipeline lets glibc keep freed memory, and moves matrices into huge pages. Set
//! `MALLOC_MMAP_THRESHOLD_=33554432`, `MALLOC_TRIM_THRESHOLD_=67108864` and `MALLOC_TOP_PAD_=67108864` to measure on a
//! CPU what a stage sees, except for the huge pages.

use std::time::Instant;

use anyhow::{Context, Result};
use burn::tensor::{Device, Distribution, FloatDType, Tensor};
use clap::Parser;
use stageline::nn::{AttentionHeads, causal_attention};
use stageline::{DeviceName, Precision};

/// Measures causal attention's forward and backward pass on a device
#[derive(Parser)]
struct Flags {
    /// Name of the device, such as cpu, cuda:0 or wgpu:0
    #[arg(long, default_value = "cpu")]
    device: DeviceName,
    /// Sequence lengths, in positions; attention is measured for each of them
    #[arg(long, value_delimiter = ',', default_value = "512,1024,2048")]
    length: Vec<usize>,
    /// Number of query heads
    #[arg(long, default_value_t = 8)]
    heads: usize,
    /// Number of key-value heads [default: the number of query heads]
    #[arg(long)]
    key_value_heads: Option<usize>,
    /// Head size: number of elements per attention head
    #[arg(long, default_value_t = 64)]
    size: usize,
    /// Length of the sliding window: the number of keys to which a query attends [default: all keys up to the query]
    #[arg(long)]
    window: Option<usize>,
    /// Dtype of queries, keys and values: full (f32), bf16 or f16
    #[arg(long, default_value = "full")]
    precision: Precision,
    /// Number of timed runs, after one warm-up run
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Ignored; accepted because `cargo bench` passes it to every bench
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> Result<()> {
    let flags = Flags::parse();
    let device = flags.device.clone().open().with_context(|| flags.device.to_string())?;
    let key_value = flags.key_value_heads.unwrap_or(flags.heads);
    let heads = AttentionHeads { query: flags.heads, key_value, window: flags.window };
    println!("length  forward and backward, ms  reserved on the device, MB");
    for &length in &flags.length {
        let input = input(&flags, heads, length, &device);
        let mut times = Vec::new();
        for round in 0..=flags.rounds {
            let start = Instant::now();
            run(&input, heads)?;
            if round > 0 || flags.rounds == 0 {
                times.push(1e3 * start.elapsed().as_secs_f64());
            }
        }
        times.sort_by(f64::total_cmp);
        let reserved = device.memory_pool_usage().map(|usage| format!("{:.1}", 1e-6 * usage.bytes_reserved as f64));
        println!(
            "{length:6}  {:24.2}  {:>26}",
            times[times.len() / 2],
            reserved.unwrap_or_else(|| "unknown".to_owned())
        );
    }
    Ok(())
}

fn input(flags: &Flags, heads: AttentionHeads, length: usize, device: &Device) -> Tensor<3> {
    let shape = [1, length, (heads.query + 2 * heads.key_value) * flags.size];
    let random = Tensor::random(shape, Distribution::Uniform(-1.0, 1.0), &Device::flex()).to_device(device);
    match flags.precision {
        Precision::Full => random,
        Precision::Bf16 => random.cast(FloatDType::BF16),
        Precision::F16 => random.cast(FloatDType::F16),
    }
}

/// Computes causal attention and its input gradient, and waits until the device has finished.
fn run(input: &Tensor<3>, heads: AttentionHeads) -> Result<()> {
    let leaf = input.clone().autodiff().require_grad();
    let gradients = causal_attention(leaf.clone(), heads).sum().backward();
    let gradient = leaf.grad(&gradients).context("attention depends on its input")?;
    drop(gradient);
    input.device().sync()?;
    Ok(())
}
