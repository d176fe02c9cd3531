//! Makes small models of all families for tests, and pipelines of these models.

use std::path::Path;

use burn::optim::AdamWConfig;
use burn::tensor::{Device, TensorData};
use serde_json::{Value, json};
use stageline::schedule::schedule_named;
use stageline::{Batch, Cut, Pipeline, Recompute, StageConfig};
use stageline_models::{LanguageModel, Logits, Samples, Tokens};

pub const VOCABULARY: usize = 37;

/// Returns the configurations of small models of all families, with tied and untied heads, shared keys and values,
/// sliding windows, biases, head norms and a padding token.
pub fn configurations() -> Vec<Value> {
    let llama = json!({
        "model_type": "llama", "vocab_size": VOCABULARY, "hidden_size": 24, "intermediate_size": 41,
        "num_hidden_layers": 4, "num_attention_heads": 6, "num_key_value_heads": 2, "tie_word_embeddings": true,
        "max_position_embeddings": 40,
    });
    let with = |changes: Value| {
        let mut config = llama.clone();
        config.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        config
    };
    vec![
        json!({
            "model_type": "gpt2", "vocab_size": VOCABULARY, "n_embd": 24, "n_layer": 4, "n_head": 3, "n_positions": 40,
            "initializer_range": 0.3,
        }),
        llama.clone(),
        with(json!({"model_type": "mistral", "sliding_window": 5, "tie_word_embeddings": false})),
        with(json!({"model_type": "qwen2", "attention_bias": null})),
        with(json!({"model_type": "qwen3", "head_dim": 6, "num_key_value_heads": 1, "pad_token_id": 3})),
    ]
}

/// Writes a configuration to a file in a folder, and creates a new model from this file and a fixed seed.
pub fn new(folder: &Path, config: &Value) -> LanguageModel {
    let path = folder.join("new.json");
    std::fs::write(&path, config.to_string()).unwrap();
    LanguageModel::new(path, 5).unwrap()
}

/// Builds a pipeline of a model on the CPU. `cut` lists the first layer of each stage, such as `0,3`.
pub fn pipeline(
    model: &LanguageModel,
    cut: &str,
    schedule: &str,
    recompute: Recompute,
) -> Pipeline<Samples, Logits, Tokens> {
    let cut: Cut = cut.parse().unwrap();
    let config = || StageConfig::new(Device::flex(), AdamWConfig::new().init(), 1e-2).recompute(recompute);
    let configs = (0..cut.stages()).map(|_| config());
    let builder = model.row().pipeline(&cut, configs).unwrap();
    // The interleaved schedule needs a multiple of the number of workers, which is 1, 2 or 3 in these tests.
    builder.schedule(schedule_named(schedule).unwrap()).micro_batches(6).build().unwrap()
}

/// Builds a pipeline of a model in two stages, under 1F1B and without recomputation.
pub fn plain(model: &LanguageModel) -> Pipeline<Samples, Logits, Tokens> {
    pipeline(model, "0,3", "1f1b", Recompute::Nothing)
}

/// Returns token ids `[rows, length]` as the input of the training step `step`. The ids differ from step to step.
pub fn tokens(step: usize, rows: usize, length: usize) -> Tokens {
    let tokens = (0..rows * length).map(|at| ((at * at + 7 * at + 13 * step) % VOCABULARY) as i32);
    Tokens::from_data(TensorData::new(tokens.collect::<Vec<_>>(), [rows, length]), &Device::flex())
}

pub fn batch(step: usize) -> Batch<Samples, Tokens> {
    Batch::new((tokens(step, 6, 9), None), tokens(step + 1, 6, 9))
}

/// Returns the bits of the logits that a pipeline infers for a fixed input.
pub fn logits(pipeline: &mut Pipeline<Samples, Logits, Tokens>) -> Vec<u32> {
    pipeline.infer((tokens(3, 4, 11), None)).unwrap().into_data().iter::<f32>().map(f32::to_bits).collect()
}
