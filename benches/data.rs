//! Measures the share of a training run's time that is spent waiting for data, if every batch takes a given time to
//! read.
//!
//! ```text
//! cargo bench --bench data -- --delay 10
//! ```
//!
//! With the default settings, a training step takes about as long as reading a batch. Without prefetching, a training
//! run would then wait half of the time.

use std::fs::File;
use std::io::BufReader;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use burn::tensor::{Device, Int, Tensor, TensorData};
use clap::Parser;
use stageline::Batch;
use stageline_gpt::model::{Bytes, Shape, gpt};
use stageline_report::RunLog;
use stageline_train::{Data, NoFlags, Program};

/// Trains a small GPT on a data source that sleeps for each batch, and prints how long the steps waited
#[derive(Parser)]
struct Flags {
    /// Time for which the data source sleeps per batch, in ms
    #[arg(long, default_value_t = 10)]
    delay: u64,
    /// Number of prefetched batches
    #[arg(long, default_value_t = 16)]
    read_ahead: usize,
    /// Number of training steps
    #[arg(long, default_value_t = 400)]
    steps: usize,
    /// Number of micro-batches in a step (M)
    #[arg(long, default_value_t = 4)]
    micro_batches: usize,
    /// Number of samples in a micro-batch
    #[arg(long, default_value_t = 1)]
    micro_batch_size: usize,
    /// Number of transformer blocks in the GPT
    #[arg(long, default_value_t = 2)]
    layers: usize,
    /// Width of the GPT
    #[arg(long, default_value_t = 64)]
    width: usize,
    /// Length of a training sample, in bytes
    #[arg(long, default_value_t = 64)]
    context: usize,
    /// Ignored; accepted because `cargo bench` passes it to every bench
    #[arg(long, hide = true)]
    bench: bool,
}

/// A data source that sleeps for a fixed time before it returns each batch of text.
struct Slow {
    delay: Duration,
    context: usize,
}

impl Data for Slow {
    type Input = Bytes;
    type Target = Bytes;

    fn batch(&self, step: usize, samples: usize) -> Result<Batch<Bytes, Bytes>> {
        thread::sleep(self.delay);
        let text = |shift: usize| {
            let bytes = (0..samples * self.context).map(|at| ((at + 100 * step + shift) * 37 % 256) as i32);
            let data = TensorData::new(bytes.collect(), [samples, self.context]);
            Tensor::<2, Int>::from_data(data, &Device::flex())
        };
        Ok(Batch::new(text(0), text(1)))
    }
}

fn main() -> Result<()> {
    let flags = Flags::parse();
    let folder = tempfile::tempdir()?;
    let log = folder.path().join("run.jsonl");
    let settings = [
        ("steps", flags.steps.to_string()),
        ("read_ahead", flags.read_ahead.to_string()),
        ("micro_batches", flags.micro_batches.to_string()),
        ("micro_batch_size", flags.micro_batch_size.to_string()),
        ("log", log.display().to_string()),
    ];
    let run = Program::<NoFlags>::new().configured(settings.iter().map(|(name, value)| (*name, value.as_str())))?;
    let shape = Shape { layers: flags.layers, width: flags.width, context: flags.context };
    run.train(&gpt(shape, 0), Slow { delay: Duration::from_millis(flags.delay), context: flags.context })?;

    let steps = RunLog::read(BufReader::new(File::open(&log)?))?.steps;
    let waited: f64 = steps.iter().map(|step| step.batch_wait_seconds).sum();
    let stepped: f64 = steps.iter().map(|step| step.step_seconds).sum();
    let first = steps.first().map_or(0.0, |step| step.batch_wait_seconds);
    let (step, delay) = (1e3 * stepped / steps.len() as f64, flags.delay as f64);
    println!("{} steps of {step:.2} ms, {delay} ms a batch, {} batches ahead", steps.len(), flags.read_ahead);
    println!(
        "waited for data: {:.2}% of the time, {:.1} ms in all, of which {:.1} ms for the first batch",
        100.0 * waited / (waited + stepped),
        1e3 * waited,
        1e3 * first,
    );
    println!("a training that reads no batch ahead would wait for {:.1}%", 100.0 * delay / (delay + step));
    Ok(())
}
