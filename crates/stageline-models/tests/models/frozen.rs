//! Tests frozen parameters that stay in memory in the lower precision in which the pipeline computes.

use std::fs;
use std::path::Path;

use burn::optim::AdamWConfig;
use burn::tensor::Device;
use serde_json::{Value, json};
use stageline::checkpoint::Checkpoint;
use stageline::schedule::schedule_named;
use stageline::{Cut, ParameterCount, Pipeline, Precision, Recompute, StageConfig};
use stageline_hub::{Dtype, Layout, ModelFolder, TensorLayout, write_config};
use stageline_models::{LanguageModel, Logits, Lora, Samples, Tokens};

use crate::toy::{VOCABULARY, batch, new, tokens};

/// The width of the test models. It gives large matrices, which have more than 8,192 elements and stay in bf16.
const WIDTH: usize = 96;

fn configurations() -> [Value; 2] {
    [
        json!({
            "model_type": "gpt2", "vocab_size": VOCABULARY, "n_embd": WIDTH, "n_layer": 2, "n_head": 3, "n_positions": 40,
        }),
        json!({
            "model_type": "llama", "vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": 130,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": true,
            "max_position_embeddings": 40,
        }),
    ]
}

/// Writes a new model to a folder in which all tensors are bf16, and opens the folder.
fn in_bf16(folder: &Path, config: &Value) -> LanguageModel {
    let [whole, half] = ["whole", "half"].map(|name| folder.join(name));
    let model = new(folder, config);
    let mut pipeline = pipeline(&model, "0", "1f1b", Precision::Full, None);
    model.export(pipeline.snapshot().unwrap(), &whole).unwrap();
    let source = ModelFolder::open(&whole).unwrap();
    let layout = source.layout().unwrap();
    let tensors = layout.tensors().map(|tensor| TensorLayout { dtype: Dtype::BF16, ..tensor.clone() });
    Layout::single(tensors.collect::<Vec<_>>())
        .unwrap()
        .write(&half, |name: &str| source.tensor(name)?.to_f32())
        .unwrap();
    write_config(&half, source.config().unwrap()).unwrap();
    LanguageModel::open(half).unwrap()
}

fn pipeline(
    model: &LanguageModel,
    cut: &str,
    schedule: &str,
    precision: Precision,
    resumed: Option<Checkpoint>,
) -> Pipeline<Samples, Logits, Tokens> {
    let cut: Cut = cut.parse().unwrap();
    let config = || StageConfig::new(Device::flex(), AdamWConfig::new().init(), 1e-2).recompute(Recompute::Selective);
    let builder = model.row().pipeline(&cut, (0..cut.stages()).map(|_| config())).unwrap();
    let builder = builder.schedule(schedule_named(schedule).unwrap()).micro_batches(6).precision(precision);
    resumed.into_iter().fold(builder, |builder, checkpoint| builder.restore(checkpoint)).build().unwrap()
}

/// Runs training steps on the batches with the indices `steps`, and returns the bits of each step's loss.
fn losses(pipeline: &mut Pipeline<Samples, Logits, Tokens>, steps: std::ops::Range<usize>) -> Vec<u64> {
    steps.map(|step| pipeline.step(batch(step)).unwrap().loss.to_bits()).collect()
}

/// Tests frozen matrices that are kept in the pipeline's precision, bf16. They must take half the memory, and change no
/// bit of losses, exports and resumed training.
#[test]
fn frozen_matrices_are_kept_in_the_precision_of_the_pipeline_and_change_no_bit() {
    const BF16: Precision = Precision::Bf16;
    for config in configurations() {
        let folder = tempfile::tempdir().unwrap();
        let opened = in_bf16(folder.path(), &config);
        let adapted = |model: LanguageModel| model.adapt(Lora::new(3, 6.0).seed(7)).unwrap();
        let partly = |model: LanguageModel| model.freeze(|name| name.contains("mlp") || name.contains("wte"));
        for (kind, change) in [("LoRA", &adapted as &dyn Fn(LanguageModel) -> LanguageModel), ("freeze", &partly)] {
            let (wide, narrow) = (change(opened.clone()), change(opened.clone().computing_in(BF16)));
            let name = format!("{} {kind}", config["model_type"]);
            let [all, few] = [&wide, &narrow].map(|model| model.row().parameters());
            assert_eq!(
                (all.trained, all.frozen, all.frozen_bytes),
                (few.trained, few.frozen, 4 * few.frozen),
                "{name}"
            );
            // Large frozen matrices take 2 bytes per element, and small frozen parameters stay in f32.
            assert!(few.frozen_bytes < 5 * few.frozen / 2 && few.frozen_bytes >= 2 * few.frozen, "{name}: {few:?}");
            let sample = || (tokens(0, 1, 9), None);
            assert_eq!(wide.row().count(sample()).flops(), narrow.row().count(sample()).flops(), "{name}");

            let mut expected = pipeline(&wide, "0", "1f1b", BF16, None);
            let [first, later] = [0..2, 2..4].map(|steps| losses(&mut expected, steps));
            let mut found = pipeline(&narrow, "0,3", "zb-h1", BF16, None);
            let sizes = found.parameters();
            assert_eq!(sizes.iter().map(|size: &ParameterCount| size.frozen_bytes).sum::<u64>(), few.frozen_bytes);
            assert_eq!(losses(&mut found, 0..2), first, "{name}");
            let kept = found.checkpoint().unwrap();
            assert_eq!(losses(&mut found, 2..4), later, "{name}");
            assert!(kept.frozen.values().all(|tensor| tensor.dtype == Dtype::F32) && !kept.frozen.is_empty());
            // Each of the two replicas has the frozen matrices. The first and the last of three stages have a copy of
            // the tied table.
            let [one, other] = [&wide, &narrow].map(|model| {
                let cut: Cut = "0,2,5".parse().unwrap();
                let config = || StageConfig::new(Device::flex(), AdamWConfig::new().init(), 1e-2);
                let builder = model.row().pipeline(&cut, (0..3).map(|_| config())).unwrap();
                let builder = builder.precision(BF16).micro_batches(3).replica((0..3).map(|_| Device::flex()));
                losses(&mut builder.build().unwrap(), 0..2)
            });
            assert!(one == other, "{name}: replicas");
            // A checkpoint resumes with frozen matrices in f32 and with frozen matrices in bf16.
            for model in [&wide, &narrow] {
                let mut resumed = pipeline(model, "0,2,5", "1f1b", BF16, Some(kept.clone()));
                assert_eq!(losses(&mut resumed, 2..4), later, "{name}");
            }
            // A pipeline in full precision has its frozen matrices in f32, whatever the model's setting.
            let [one, other] = [&wide, &narrow].map(|model| {
                let mut full = pipeline(model, "0,3", "1f1b", Precision::Full, Some(kept.clone()));
                let bytes: u64 = full.parameters().iter().map(|size| size.frozen_bytes).sum();
                assert_eq!(bytes, 4 * few.frozen, "{name}");
                losses(&mut full, 2..4)
            });
            assert!(one == other, "{name}: full precision");

            let [one, other] =
                [(&wide, &mut expected, "one"), (&narrow, &mut found, "other")].map(|(model, pipeline, place)| {
                    let place = folder.path().join(format!("{kind} {place}"));
                    model.export(pipeline.snapshot().unwrap(), &place).unwrap();
                    fs::read(place.join("model.safetensors")).unwrap()
                });
            assert!(one == other, "{name}: the exports");
        }
    }
}
