//! The listings about language models (`docs/fine-tuning.md`) and weights from PyTorch (`docs/guide.md`), in code that
//! surrounds them. Compiling this file checks them, and the workspace's test `book` compares them with the pages.

#![allow(unused)]

use burn::optim::AdamWConfig;
use burn::tensor::{Device, Int, Tensor};
use stageline::{Batch, BoxError, Cut, LossStage, Row, Stage, StageConfig};
use stageline_models::{LanguageModel, Lora, Sampling, TorchFormat, TorchWeights};

#[rustfmt::skip]
fn listing(tokens: Tensor<2, Int>, next_tokens: Tensor<2, Int>, prompt: Vec<u32>) -> Result<(), BoxError> {
    let model = LanguageModel::open("SmolLM-135M")?.freeze(|name| name.contains("embed_tokens"));
    let row = model.row();
    let config = || StageConfig::new(Device::flex(), AdamWConfig::new().init(), 1e-5);
    let mut pipeline = row.pipeline(&"0,31".parse::<Cut>()?, [config(), config()])?.micro_batches(8).build()?;
    let report = pipeline.step(Batch::new((tokens, None), next_tokens))?; // both `Tensor<2, Int>`, [samples, length]
    for token in model.generate(&mut pipeline, &prompt, Sampling::GREEDY)?.take(50) {
        println!("{}", token?);
    }
    model.export(pipeline.snapshot()?, "tuned")?;
    Ok(())
}

#[rustfmt::skip]
fn adapters(configs: Vec<StageConfig>) -> Result<(), BoxError> {
    let lora = Lora::new(16, 32.0).targets(|name| name.contains("self_attn")); // or `Lora::open("adapters")?`
    let model = LanguageModel::open("SmolLM-135M")?.adapt(lora)?;
    let mut pipeline = model.row().pipeline(&"0,31".parse::<Cut>()?, configs)?.build()?;
    model.export_adapter(pipeline.snapshot()?, "adapters")?;                   // `export` writes the merged model
    Ok(())
}

#[rustfmt::skip]
fn weights<F: Stage, B: Stage<Input = F::Output, Output = F::Output>, L: LossStage<Input = F::Output>>(
    row: Row<F, B, L>,
    cut: Cut,
    configs: Vec<StageConfig>,
) -> Result<(), BoxError> {
    let format = TorchFormat::new().rename("blocks", "bert.encoder.layer").rename("layer.mha", "attention.self"); // and others
    let weights = TorchWeights::open("bert-base-uncased", format)?
        .draw(|name| name.starts_with("classifier."))              // a new head: as its layer draws it
        .leave_out(|name| name.starts_with("cls."))                // in the folder, and not in the model
        .keep(|name| name.ends_with("position_ids"));              // buffers of PyTorch, which exports copy
    let row = weights.load(row)?;                                  // checks every name and shape, and reads nothing yet
    let mut pipeline = row.pipeline(&cut, configs)?.build()?;      // each stage reads its own layers
    weights.export(&row, pipeline.snapshot()?, "tuned")?;
    Ok(())
}
