//! The listing about language models of the guide (`docs/guide.md`), in code that surrounds it. Compiling this file
//! checks it, and the workspace's test `book` compares it with the guide.

#![allow(unused)]

use burn::optim::AdamWConfig;
use burn::tensor::{Device, Int, Tensor};
use stageline::{Batch, BoxError, Cut, StageConfig};
use stageline_models::{LanguageModel, Sampling};

#[rustfmt::skip]
fn listing(tokens: Tensor<2, Int>, next_tokens: Tensor<2, Int>, prompt: Vec<u32>) -> Result<(), BoxError> {
    let model = LanguageModel::open("SmolLM-135M")?.freeze(|name| name.contains("embed_tokens"));
    let row = model.row();
    let config = || StageConfig::new(Device::flex(), AdamWConfig::new().init(), 1e-5);
    let mut pipeline = row.pipeline(&"0,16".parse::<Cut>()?, [config(), config()])?.micro_batches(8).build()?;
    let report = pipeline.step(Batch::new((tokens, None), next_tokens))?; // both `Tensor<2, Int>`, [samples, length]
    for token in model.generate(&mut pipeline, &prompt, Sampling::GREEDY)?.take(50) {
        println!("{}", token?);
    }
    model.export(pipeline.snapshot()?, "tuned")?;
    Ok(())
}
