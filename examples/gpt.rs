//! Trains a byte-level GPT, cut into pipeline stages, on text files.
//!
//! ```text
//! cargo run --release --example gpt -- --stages 2 --micro-batches 8
//! ```

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Result, ensure};
use burn::tensor::Device;
use clap::Parser;
use stageline::CountingAllocator;
use stageline_gpt::model::{Shape, gpt};
use stageline_gpt::sample;
use stageline_gpt::text::Source;
use stageline_train::{Program, Run, say};

/// The allocator that counts host memory, for memory estimates and for the log.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

/// The largest width and context length that the flags accept. The number of blocks must be smaller.
const LARGEST: usize = 65_536;

/// Trains a byte-level GPT, cut into pipeline stages, on text files.
#[derive(Parser)]
struct Flags {
    /// Text file to train on, or a folder of text files [default: the Rust sources in the cargo registry]
    #[arg(long)]
    data: Option<PathBuf>,
    /// Number of transformer blocks
    #[arg(long, default_value_t = 4)]
    layers: usize,
    /// Width of the model: the number of elements in a token's activation. A token is one byte of text
    #[arg(long, default_value_t = 128)]
    width: usize,
    /// Length of a sample, in bytes
    #[arg(long, default_value_t = 128)]
    context: usize,
    /// Number of bytes of text that the trained model generates at the end
    #[arg(long, value_name = "BYTES", default_value_t = 256)]
    sample: usize,
}

fn main() -> ExitCode {
    Program::<Flags>::new().default_value("tuned_for", "32").main(train)
}

fn train(run: Run<Flags>) -> Result<()> {
    let Flags { ref data, layers, width, context, sample } = run.flags;
    for (flag, value) in [("--layers + 1", layers.saturating_add(1)), ("--width", width), ("--context", context)] {
        ensure!((1..=LARGEST).contains(&value), "{flag} {value}: give 1 to {LARGEST}");
    }
    let (shape, seed) = (Shape { layers, width, context }, run.seed());
    // Batches are created on the CPU, whichever devices the stages use.
    let text = Arc::new(Source::open(data.as_deref(), context, seed, Device::flex())?);
    let entropy = text.unigram_entropy()?;
    say(format_args!(
        "the entropy of single bytes is {entropy:.3} bits; a model that ignores the context cannot be better"
    ))?;
    let run = run.smaller("lower --width or --layers");
    let Some(mut trained) = run.train(&gpt(shape, seed), Arc::clone(&text))? else {
        return Ok(());
    };
    if sample > 0 {
        let prompt = text.prompt()?;
        let continued = sample::continue_text(&mut trained.pipeline, &prompt, sample, seed)?;
        say(format_args!("--- held-out text:\n{}", String::from_utf8_lossy(&prompt)))?;
        say(format_args!("--- continued by the model:\n{}", String::from_utf8_lossy(&continued)))?;
    }
    Ok(())
}
