//! Tests that language models of the families GPT-2 and Llama train on a GPU with the losses of the CPU: RMS norms,
//! rotary positions, SwiGLU, shared keys and values, windows, norms of heads and separate documents.

use burn::optim::AdamWConfig;
use burn::tensor::{Device, TensorData};
use serde_json::{Value, json};
use stageline::schedule::schedule_named;
use stageline::{Batch, Cut, Recompute, SharedInput, StageConfig};
use stageline_models::{LanguageModel, Samples, Tokens};

use crate::counters::{keep_warnings, warnings};
use crate::{NEAR, assert_within, gpu_name, open};

const VOCABULARY: usize = 37;
const ROWS: usize = 8;
const LENGTH: usize = 24;
const STEPS: usize = 10;

/// Returns the configurations of four small language models: GPT-2, Mistral, Qwen2 and Qwen3.
fn configurations() -> [Value; 4] {
    let llama = json!({
        "model_type": "llama", "vocab_size": VOCABULARY, "hidden_size": 48, "intermediate_size": 41,
        "num_hidden_layers": 4, "num_attention_heads": 6, "num_key_value_heads": 2, "tie_word_embeddings": true,
        "max_position_embeddings": 40, "initializer_range": 0.2,
    });
    let with = |changes: Value| {
        let mut config = llama.clone();
        config.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        config
    };
    [
        json!({
            "model_type": "gpt2", "vocab_size": VOCABULARY, "n_embd": 24, "n_layer": 4, "n_head": 3, "n_positions": 40,
            "initializer_range": 0.2,
        }),
        with(json!({"model_type": "mistral", "sliding_window": 5, "tie_word_embeddings": false})),
        with(json!({"model_type": "qwen2", "attention_bias": null})),
        with(json!({"model_type": "qwen3", "head_dim": 6, "num_key_value_heads": 1})),
    ]
}

fn tensor(value: impl Fn(usize, usize) -> usize) -> Tokens {
    let values = (0..ROWS).flat_map(|row| (0..LENGTH).map(move |at| (row, at)));
    let values: Vec<_> = values.map(|(row, at)| value(row, at) as i32).collect();
    Tokens::from_data(TensorData::new(values, [ROWS, LENGTH]), &Device::flex())
}

/// Returns a batch of token sequences. Each sequence consists of two documents, and the second document starts in the
/// middle.
fn batch(step: usize) -> Batch<Samples, Tokens> {
    let text = |row: usize, at: usize| (at * at + 7 * at + 5 * row + 13 * step) % VOCABULARY;
    let starts = SharedInput::new(tensor(|_, at| if at < LENGTH / 2 { 0 } else { LENGTH / 2 }));
    Batch::new((tensor(text), Some(starts)), tensor(|row, at| text(row, at + 1)))
}

/// Trains a model on the devices of a list, with one stage for each device, and returns the loss of each step.
fn trained(model: &LanguageModel, devices: &str, schedule: &str, recompute: Recompute) -> Vec<f64> {
    let devices = open(devices);
    let cut: Cut = if devices.len() == 1 { "0" } else { "0,4" }.parse().unwrap();
    let config = |device| StageConfig::new(device, AdamWConfig::new().init(), 3e-3).recompute(recompute);
    let builder = model.row().pipeline(&cut, devices.into_iter().map(config)).unwrap();
    let builder = builder.schedule(schedule_named(schedule).unwrap()).micro_batches(4).cores_per_stage(1);
    let mut pipeline = builder.build().unwrap();
    (0..STEPS).map(|step| pipeline.step(batch(step)).unwrap().loss).collect()
}

/// Returns the largest allowed absolute difference between a model's loss on the GPU and on the CPU. It is larger on
/// NVIDIA GPUs, because burn's tuning may choose products in TF32, whose numbers have 10 bits after the point.
fn near() -> f64 {
    if gpu_name().starts_with("cuda") { 1e-2 } else { NEAR }
}

#[test]
fn language_models_train_as_on_the_cpu_with_the_kernels_of_the_device() {
    keep_warnings();
    let folder = tempfile::tempdir().unwrap();
    for config in configurations() {
        let path = folder.path().join("config.json");
        std::fs::write(&path, config.to_string()).unwrap();
        let model = LanguageModel::new(&path, 5).unwrap();
        let family = config["model_type"].as_str().unwrap();
        let expected = trained(&model, "cpu", "1f1b", Recompute::Nothing);
        assert!(expected[STEPS - 1] < expected[0], "{family}: {expected:?}");
        let split = trained(&model, "gpu,gpu", "zb-h1", Recompute::Nothing);
        assert_within(near(), &split, &expected, &format!("{family}, split backwards"));
        let recomputed = trained(&model, "gpu,gpu", "1f1b", Recompute::Full);
        assert_within(near(), &recomputed, &expected, &format!("{family}, recomputed"));
    }
    // Other tests cause warnings about a layer `whole_on_the_device`, attention with heads of these sizes, f64 on the
    // device and bf16 on the CPU. The language models of this test compute in f32.
    let of_others = [
        "whole_on_the_device",
        "heads of 264 elements",
        "heads of 272 elements",
        "elements of the type F64",
        "elements of the type BF16",
    ];
    let warnings = warnings();
    let operations = ["RMS normalisation", "layer normalisation", "rotary embedding", "SwiGLU", "GELU"];
    for words in operations.into_iter().chain(["causal attention", "cross-entropy", "is not split"]) {
        let mut lines = warnings.lines().filter(|line| of_others.iter().all(|other| !line.contains(other)));
        assert_eq!(lines.find(|line| line.contains(words)), None);
    }
}
