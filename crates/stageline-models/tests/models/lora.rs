//! Tests LoRA adapters: the same bits under every plan, unchanged weights of the model, and rejected adapter folders.
//! `scripts/transformers-parity.py` compares adapters with the PEFT library.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use stageline::Recompute;
use stageline_hub::{Dtype, Layout, ModelFolder, TensorLayout, write_adapter_config};
use stageline_models::{LanguageModel, Lora, ModelError};

use crate::toy::{batch, configurations, logits, new, pipeline, plain};

const WEIGHTS: &str = "adapter_model.safetensors";

/// Trains a model's adapters for two steps, and exports the adapters to `folder`.
fn trained(model: &LanguageModel, cut: &str, schedule: &str, recompute: Recompute, folder: &Path) {
    let mut pipeline = pipeline(model, cut, schedule, recompute);
    (0..2).for_each(|step| drop(pipeline.step(batch(step)).unwrap()));
    model.export_adapter(pipeline.snapshot().unwrap(), folder).unwrap();
}

#[test]
fn adapters_have_the_same_bits_for_every_plan_and_the_model_keeps_its_own() {
    for config in configurations() {
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str| folder.path().join(name);
        let base = new(folder.path(), &config);
        base.export(plain(&base).snapshot().unwrap(), place("base")).unwrap();
        let opened = LanguageModel::open(place("base")).unwrap();
        let model = opened.clone().adapt(Lora::new(3, 6.0).seed(7)).unwrap();
        assert_eq!(logits(&mut plain(&model)), logits(&mut plain(&opened)), "new adapters change nothing");
        trained(&model, "0", "1f1b", Recompute::Nothing, &place("one"));
        let expected = fs::read(place("one").join(WEIGHTS)).unwrap();
        for (at, (cut, schedule, recompute)) in [
            ("0,4", "1f1b", Recompute::Full),
            ("0,3,6", "zb-h1", Recompute::Nothing),
            ("0,1,4,7", "interleaved", Recompute::Selective),
            ("0,2,5,9", "zb-v", Recompute::FeedForward),
        ]
        .into_iter()
        .enumerate()
        {
            let other = place(&at.to_string());
            trained(&model, cut, schedule, recompute, &other);
            assert!(fs::read(other.join(WEIGHTS)).unwrap() == expected, "{} {schedule}", config["model_type"]);
        }
        // Adapters that are read from the folder change the logits. Merged into the weights, they give nearly the same
        // logits.
        let again = opened.clone().adapt(Lora::open(place("one")).unwrap()).unwrap();
        let mut of_again = plain(&again);
        let computed = logits(&mut of_again);
        assert_ne!(computed, logits(&mut plain(&opened)));
        again.export(of_again.snapshot().unwrap(), place("merged")).unwrap();
        let merged = logits(&mut plain(&LanguageModel::open(place("merged")).unwrap()));
        let apart = computed.iter().zip(&merged).map(|(one, other)| f32::from_bits(*one) - f32::from_bits(*other));
        assert!(apart.map(f32::abs).fold(0.0, f32::max) < 1e-4);
        let [before, after] = ["base", "merged"].map(|name| ModelFolder::open(place(name)).unwrap());
        for (name, info) in before.tensors() {
            let [before, after] = [&before, &after].map(|folder| folder.tensor(name).unwrap().to_f32().unwrap());
            let is_embedding = ["embed", "lm_head", "wte", "wpe"].iter().any(|part| name.contains(part));
            assert_eq!(before == after, info.shape.len() == 1 || is_embedding, "{name}");
        }
    }
}

#[test]
fn new_adapters_are_those_of_the_selected_layers_and_of_the_seed() {
    let folder = tempfile::tempdir().unwrap();
    let base = new(folder.path(), &configurations()[1]);
    base.export(plain(&base).snapshot().unwrap(), folder.path().join("base")).unwrap();
    let base = LanguageModel::open(folder.path().join("base")).unwrap();
    let exported = |name: &str, lora: Lora| {
        let (model, place) = (base.clone().adapt(lora).unwrap(), folder.path().join(name));
        model.check_adapter_export(&place).unwrap();
        model.export_adapter(plain(&model).snapshot().unwrap(), &place).unwrap();
        ModelFolder::open_adapter(place).unwrap()
    };
    let queries = |seed| Lora::new(2, 1.0).targets(|name| name.contains("q_proj")).seed(seed);
    let [one, same, other] = [("a", 1), ("b", 1), ("c", 2)].map(|(name, seed)| exported(name, queries(seed)));
    let name = "base_model.model.model.layers.2.self_attn.q_proj.lora_A.weight";
    let values = |folder: &ModelFolder, name: &str| folder.expect(name, &[2, 24]).unwrap().to_f32().unwrap();
    assert_eq!((one.tensors().len(), values(&one, name)), (8, values(&same, name)));
    assert_ne!(values(&one, name), values(&other, name));
    assert_ne!(values(&one, name), values(&one, &name.replace(".2.", ".1.")), "each layer draws its own");
    assert_eq!(one.config().unwrap()["target_modules"], json!(["q_proj"]));
    let all = exported("all", Lora::new(2, 1.0));
    assert_eq!(all.tensors().len(), 4 * 7 * 2);
}

#[test]
fn settings_and_exports_that_make_no_sense_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let model = new(folder.path(), &configurations()[0]);
    let refused = |lora: Lora| model.clone().adapt(lora).err().unwrap().to_string();
    assert_eq!(
        refused(Lora::new(0, 1.0)),
        "LoRA adapters with the rank 0 and alpha 1: give a rank from 1 to 96, and a finite alpha other than 0"
    );
    assert!(refused(Lora::new(usize::MAX, 1.0)).contains("give a rank from 1 to 96"));
    assert!(refused(Lora::new(1, f64::NAN)).contains("alpha NaN"));
    assert!(refused(Lora::new(1, 0.0)).contains("alpha 0: give"));
    let error = refused(Lora::new(1, 1.0).targets(|name| name.contains("wte")));
    let expected = "no linear layer is selected for LoRA adapters; the weights of linear layers are named like \
                    `transformer.h.0.attn.c_attn.weight`";
    assert_eq!(error, expected);
    let place = folder.path().join("place");
    assert!(matches!(model.check_adapter_export(&place), Err(ModelError::NoAdapters)));
    assert!(matches!(model.export_adapter(plain(&model).snapshot().unwrap(), &place), Err(ModelError::NoAdapters)));
    // An export must not write adapters over a model, or a model over adapters.
    let adapted = model.clone().adapt(Lora::new(1, 1.0)).unwrap();
    let (whole, apart) = (folder.path().join("whole"), folder.path().join("apart"));
    adapted.export(plain(&adapted).snapshot().unwrap(), &whole).unwrap();
    adapted.export_adapter(plain(&adapted).snapshot().unwrap(), &apart).unwrap();
    assert!(adapted.check_adapter_export(&whole).unwrap_err().to_string().contains("has `model.safetensors`"));
    assert!(adapted.check_export(&apart).unwrap_err().to_string().contains("has `adapter_config.json`"));
    adapted.export_adapter(plain(&adapted).snapshot().unwrap(), &apart).unwrap();
}

#[test]
fn the_scale_of_rslora_is_in_the_exported_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let model = new(folder.path(), &configurations()[1]);
    for (lora, expected) in [(Lora::new(4, 6.0), false), (Lora::new(4, 6.0).rank_stabilised(), true)] {
        let adapted = model.clone().adapt(lora).unwrap();
        let place = folder.path().join(expected.to_string());
        adapted.export_adapter(plain(&adapted).snapshot().unwrap(), &place).unwrap();
        let config: Value = serde_json::from_slice(&fs::read(place.join("adapter_config.json")).unwrap()).unwrap();
        let fields = ["r", "lora_alpha", "use_rslora"].map(|field| config[field].clone());
        assert_eq!(fields, [json!(4), json!(6.0), json!(expected)]);
    }
}

/// Writes a folder of adapters, after `change` has modified its configuration and tensors. Returns the error message of
/// adapting a Llama with it, without the folder's path; empty if there is no error.
fn refusal(change: impl FnOnce(&mut Value, &mut Vec<TensorLayout>)) -> String {
    let folder = tempfile::tempdir().unwrap();
    let mut config = json!({"peft_type": "LORA", "r": 2, "lora_alpha": 4});
    let tensor = |factor: &str, shape: [usize; 2]| TensorLayout {
        name: format!("base_model.model.model.layers.0.self_attn.q_proj.{factor}.weight"),
        dtype: Dtype::F32,
        shape: shape.into(),
    };
    let mut tensors = vec![tensor("lora_A", [2, 24]), tensor("lora_B", [24, 2])];
    change(&mut config, &mut tensors);
    let place = folder.path().join("adapter");
    let sizes: std::collections::BTreeMap<_, usize> =
        tensors.iter().map(|tensor| (tensor.name.clone(), tensor.shape.iter().product())).collect();
    Layout::adapter(tensors).unwrap().write(&place, |name| Ok::<_, ModelError>(vec![0.0; sizes[name]])).unwrap();
    write_adapter_config(&place, &config).unwrap();
    let model = new(folder.path(), &configurations()[1]);
    match Lora::open(&place).and_then(|lora| model.adapt(lora)) {
        Ok(_) => String::new(),
        Err(error) => error.to_string().replace(&format!("{}/", place.display()), ""),
    }
}

#[test]
fn folders_of_adapters_that_do_not_fit_are_refused_with_the_file_and_the_reason() {
    assert_eq!(refusal(|_, _| ()), "");
    let dora = refusal(|config, _| config["use_dora"] = true.into());
    assert!(dora.starts_with("adapter_config.json: use_dora true: it is not implemented"), "{dora}");
    let rank = refusal(|config, _| config["r"] = 3.into());
    assert!(rank.starts_with("adapter_model.safetensors") && rank.contains("[2, 24]"), "{rank}");
    let left_out = refusal(|config, _| config["target_modules"] = json!(["v_proj"]));
    let expected = "adapter_config.json: target_modules leaves out model.layers.0.self_attn.q_proj, which has an adapter in \
                    adapter_model.safetensors; correct the field, or remove the tensors";
    assert_eq!(left_out, expected);
    let half = refusal(|_, tensors| drop(tensors.pop()));
    assert!(half.contains("lora_B") && half.starts_with("adapter_model.safetensors"), "{half}");
    let empty = refusal(|_, tensors| tensors.clear());
    assert_eq!(empty, "adapter_model.safetensors: it has no adapters; give a folder that PEFT's save_pretrained wrote");
    let other = refusal(|_, tensors| tensors[0].name = "base_model.model.model.layers.9.x.lora_A.weight".into());
    assert!(other.contains("lora_A") && other.starts_with("adapter_model.safetensors"), "{other}");
    let more = refusal(|_, tensors| {
        let name = "base_model.model.lm_head.lora_A.weight".to_owned();
        tensors.push(TensorLayout { name, dtype: Dtype::F32, shape: vec![2, 24] });
    });
    let expected = "adapter_model.safetensors: the tensor `base_model.model.lm_head.lora_A.weight` adapts no \
                    linear layer of the model's blocks; give adapters of this model, and merge those of the head and of \
                    embeddings with PEFT (`merge_and_unload`)";
    assert_eq!(more, expected);
    let folder = tempfile::tempdir().unwrap();
    let missing = Lora::open(folder.path()).err().unwrap().to_string();
    assert!(missing.contains("adapter_config.json is missing"), "{missing}");
    fs::write(folder.path().join("adapter_config.json"), "[1]").unwrap();
    assert!(Lora::open(folder.path()).err().unwrap().to_string().contains("adapter_config.json"));
}
