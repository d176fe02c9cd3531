//! Trains a small GPT and writes all that PyTorch needs to repeat the training run: parameters, batches with masks,
//! settings, and every step's loss and gradient norm. `compare.py`, beside this file, repeats the run in PyTorch and
//! compares the losses and norms.
//!
//! ```text
//! cargo run --release --example against_pytorch -- --folder /tmp/against
//! python examples/against_pytorch/compare.py /tmp/against
//! ```

mod export;
mod flags;
mod task;

use stageline_gpt::model;
use std::fs::{self, File};
use std::io::Write;

use anyhow::{Result, bail};
use burn::optim::AdamWConfig;
use burn::tensor::Device;
use clap::Parser;
use serde_json::json;
use stageline::schedule::schedule_named;
use stageline::{Batch, Clip, StageConfig, Update, WarmupDecay};

use crate::export::{Parameters, tensors};
use crate::flags::Flags;
use crate::task::{MaskedHead, Task};

fn main() -> Result<()> {
    let flags = Flags::parse();
    fs::create_dir_all(&flags.folder)?;
    let device = Device::flex();
    let (embeddings, blocks, head) = model::gpt(flags.shape(), flags.seed).init(&device);

    let mut parameters = Parameters::default();
    parameters.add("embeddings", &embeddings);
    parameters.add("blocks", &blocks);
    parameters.add("head", &head);
    parameters.write(&flags.folder.join("initial.safetensors"))?;
    let task = Task::new(&flags);
    tensors(&task, &flags.folder.join("batches.safetensors"))?;
    fs::write(flags.folder.join("settings.json"), serde_json::to_string_pretty(&flags.settings())?)?;

    let optimizer = AdamWConfig::new()
        .with_beta_1(flags.beta_1)
        .with_beta_2(flags.beta_2)
        .with_epsilon(flags.epsilon)
        .with_weight_decay(flags.weight_decay);
    let stage = StageConfig::new(device.clone(), optimizer.init(), learning_rate(&flags)?);
    let row = model::gpt_with(flags.shape(), flags.seed, |head| MaskedHead { head });
    let cut = model::costs(flags.shape()).cut(flags.stages)?;
    let builder = row.pipeline(&cut, vec![stage; flags.stages])?.micro_batches(flags.micro_batches);
    let mut pipeline = builder.schedule(schedule_named(&flags.schedule)?).clip(Clip::GlobalNorm(flags.clip)).build()?;

    let mut log = File::create(flags.folder.join("ours.jsonl"))?;
    for step in 0..flags.steps {
        let (input, target, mask) = task.batch(step, &device);
        let report = pipeline.step(Batch::new(input, (target, mask)))?;
        let Update::Stepped { gradient_norm, .. } = report.update else { bail!("step {step}: {:?}", report.update) };
        let learning_rate = report.stages.last().and_then(|stage| stage.learning_rate);
        let line = json!({ "loss": report.loss, "gradient_norm": gradient_norm, "learning_rate": learning_rate });
        writeln!(log, "{line}")?;
    }
    println!("wrote {} steps to {}", flags.steps, flags.folder.display());
    Ok(())
}

/// Returns the learning-rate schedule: a linear warm-up, and then a cosine decay to a tenth of the peak.
fn learning_rate(flags: &Flags) -> Result<WarmupDecay> {
    let peak = flags.learning_rate;
    Ok(WarmupDecay::new(peak, flags.warm_up, flags.steps)?.down_to(peak / 10.0)?)
}
