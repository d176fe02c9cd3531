//! Tests that models are written to folders and read again bit for bit, and that folders of unknown or inconsistent
//! models are rejected.

use std::path::Path;

use serde_json::{Value, json};
use stageline_hub::{Dtype, Layout, ModelFolder, TensorLayout};
use stageline_models::LanguageModel;

use crate::toy::{VOCABULARY, batch, configurations, logits, new, plain, tokens};

/// Writes a changed copy of the model folder `from` to the folder `to`. The closure `change` may change the names,
/// dtypes and shapes of the tensors. The fields of `config` are added to the configuration, or replace its fields.
///
/// New tensors, and tensors with a new size, are filled with zeros. The tensor `lm_head.weight` has the values of the
/// token embedding table.
fn rewritten(from: &Path, to: &Path, config: Value, change: impl Fn(&mut Vec<TensorLayout>)) {
    let source = ModelFolder::open(from).unwrap();
    let mut tensors: Vec<_> = source.layout().unwrap().tensors().cloned().collect();
    change(&mut tensors);
    let numbers = |name: &str| -> Result<Vec<f32>, stageline_hub::FolderError> {
        let of = if name == "lm_head.weight" { "transformer.wte.weight" } else { name };
        let known = source.tensor(of).and_then(|tensor| tensor.to_f32()).unwrap_or_default();
        let elements = tensors.iter().find(|tensor| tensor.name == name).unwrap().shape.iter().product();
        Ok(if known.len() == elements { known } else { vec![0.0; elements] })
    };
    Layout::single(tensors.clone()).unwrap().write(to, numbers).unwrap();
    let mut merged = source.config().unwrap().clone();
    merged.as_object_mut().unwrap().extend(config.as_object().unwrap().clone());
    stageline_hub::write_config(to, &merged).unwrap();
}

#[test]
fn an_exported_model_has_the_same_bits_again() {
    let folder = tempfile::tempdir().unwrap();
    for config in configurations() {
        let place = folder.path().join(config["model_type"].as_str().unwrap());
        let model = new(folder.path(), &config);
        let mut pipeline = plain(&model);
        drop(pipeline.step(batch(0)).unwrap());
        model.export(pipeline.snapshot().unwrap(), &place).unwrap();
        let opened = LanguageModel::open(&place).unwrap();
        assert_eq!(logits(&mut plain(&opened)), logits(&mut pipeline), "{config}");
        // A second export has the same bytes, and an export to the folder that the model was opened from is an error.
        let copy = folder.path().join("copy");
        opened.export(plain(&opened).snapshot().unwrap(), &copy).unwrap();
        let [first, second] = [&place, &copy].map(|place| std::fs::read(place.join("model.safetensors")).unwrap());
        assert!(first == second, "{config}");
        assert!(opened.export(plain(&opened).snapshot().unwrap(), &place).is_err());
        let tied = !first.windows(9).any(|name| name == b"lm_head.w");
        assert_eq!(tied, config["tie_word_embeddings"].as_bool().unwrap_or(true));
    }
}

#[test]
fn logits_are_written_row_by_row_with_the_bits_of_each_row() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("logits.safetensors");
    let model = new(folder.path(), &configurations()[1]);
    let mut pipeline = plain(&model);
    // A step has 6 micro-batches, so the 8 rows need two inference batches.
    model.write_logits(&mut pipeline, tokens(3, 8, 11), &file).unwrap();
    let rows = tokens(3, 8, 11).split(1, 0).into_iter();
    let expected: Vec<u8> = rows
        .flat_map(|row| pipeline.infer((row, None)).unwrap().into_data().iter::<f32>().collect::<Vec<_>>())
        .flat_map(f32::to_le_bytes)
        .collect();
    let written = std::fs::read(&file).unwrap();
    assert_eq!(expected.len(), 8 * 11 * VOCABULARY * 4);
    assert!(written.ends_with(&expected));
    let header =
        r#"{"__metadata__":{"format":"pt"},"logits":{"dtype":"F32","shape":[8,11,37],"data_offsets":[0,13024]}}"#;
    assert_eq!(std::str::from_utf8(&written[8..written.len() - expected.len()]).unwrap().trim_end(), header);
}

#[test]
fn folders_without_the_root_with_buffers_and_with_copies_of_the_table_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("model");
    let model = new(folder.path(), &configurations()[0]);
    model.export(plain(&model).snapshot().unwrap(), &place).unwrap();
    let expected = logits(&mut plain(&model));
    let more = folder.path().join("more");
    rewritten(&place, &more, json!({}), |tensors| {
        let extra = |name: &str, shape: &[usize]| TensorLayout {
            name: name.to_owned(),
            dtype: Dtype::F32,
            shape: shape.to_vec(),
        };
        tensors.push(extra("transformer.h.0.attn.bias", &[1, 1, 4, 4]));
        tensors.push(extra("transformer.h.0.attn.masked_bias", &[1]));
        tensors.push(extra("lm_head.weight", &[37, 24]));
    });
    let opened = LanguageModel::open(&more).unwrap();
    assert_eq!(logits(&mut plain(&opened)), expected);
    let again = folder.path().join("again");
    opened.export(plain(&opened).snapshot().unwrap(), &again).unwrap();
    let again = ModelFolder::open(&again).unwrap();
    let has = |name: &str| again.tensors().any(|(found, _)| found == name);
    assert!(has("transformer.h.0.attn.bias"), "the mask is part of the folder");
    assert!(!has("transformer.h.0.attn.masked_bias"), "transformers would report this buffer as unexpected");
    let [table, copy] = ["transformer.wte.weight", "lm_head.weight"].map(|name| again.tensor(name).unwrap().bytes);
    assert!(table == copy, "both copies of the table must have the trained values");

    // A model that was saved without a head has the same tensor names without the prefix `transformer.`.
    let bytes = std::fs::read(place.join("model.safetensors")).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header = std::str::from_utf8(&bytes[8..8 + length]).unwrap().replace("transformer.", "");
    let bare = folder.path().join("bare");
    std::fs::create_dir(&bare).unwrap();
    std::fs::copy(place.join("config.json"), bare.join("config.json")).unwrap();
    let file = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &bytes[8 + length..]].concat();
    std::fs::write(bare.join("model.safetensors"), file).unwrap();
    assert_eq!(logits(&mut plain(&LanguageModel::open(&bare).unwrap())), expected);
}

/// Tests a rule of the Transformers library. A head whose values differ from the token embedding table is not tied,
/// even if the configuration says that it is.
#[test]
fn a_head_with_values_of_its_own_is_not_tied() {
    let folder = tempfile::tempdir().unwrap();
    let [untied, tied] = ["untied", "tied"].map(|name| folder.path().join(name));
    let model = new(folder.path(), &configurations()[2]);
    model.export(plain(&model).snapshot().unwrap(), &untied).unwrap();
    rewritten(&untied, &tied, json!({"tie_word_embeddings": true}), |_| {});
    std::fs::copy(untied.join("model.safetensors"), tied.join("model.safetensors")).unwrap();
    let opened = LanguageModel::open(&tied).unwrap();
    assert_eq!(logits(&mut plain(&opened)), logits(&mut plain(&model)));
}

/// Tests a rule of the Transformers library for a head that is tied to the token embedding table. A model folder may
/// have the table under the head's name, `lm_head.weight`, instead of the table's own name.
#[test]
fn a_tied_table_may_have_the_name_of_the_head() {
    let folder = tempfile::tempdir().unwrap();
    for (config, root) in configurations().into_iter().zip(["transformer.", "model."]) {
        let [place, headed, again] = ["place", "headed", "again"].map(|name| folder.path().join(root).join(name));
        let model = new(folder.path(), &config);
        model.export(plain(&model).snapshot().unwrap(), &place).unwrap();
        let table = if root == "model." { "model.embed_tokens.weight" } else { "transformer.wte.weight" };
        let source = ModelFolder::open(&place).unwrap();
        for without_root in [false, true] {
            let name_of = |name: &str| match name {
                name if name == table => "lm_head.weight".to_owned(),
                name if without_root => name.replacen(root, "", 1),
                name => name.to_owned(),
            };
            let renamed = |tensor: &TensorLayout| TensorLayout { name: name_of(&tensor.name), ..tensor.clone() };
            let tensors: Vec<_> = source.layout().unwrap().tensors().cloned().collect();
            let old = |name: &str| tensors.iter().find(|tensor| name_of(&tensor.name) == name).unwrap().name.clone();
            for path in [&headed, &again] {
                let _ = std::fs::remove_dir_all(path);
            }
            let values = |name: &str| source.tensor(&old(name)).and_then(|tensor| tensor.to_f32());
            Layout::single(tensors.iter().map(renamed)).unwrap().write(&headed, values).unwrap();
            stageline_hub::write_config(&headed, source.config().unwrap()).unwrap();
            let opened = LanguageModel::open(&headed).unwrap();
            assert_eq!(logits(&mut plain(&opened)), logits(&mut plain(&model)), "{root} {without_root}");
            assert!(opened.tensors().iter().any(|(name, _)| name == "lm_head.weight"));
            opened.export(plain(&opened).snapshot().unwrap(), &again).unwrap();
            let [first, second] = [&headed, &again].map(|path| std::fs::read(path.join("model.safetensors")).unwrap());
            assert!(first == second, "{root} {without_root}");
        }
    }
}

/// Tests a model folder with a second copy of the token embedding table, which has the same values in another dtype.
/// The head must stay tied to the table. The export must write both in one dtype, because rounding to two dtypes would
/// give two different tables.
#[test]
fn a_copy_of_the_table_in_another_type_is_tied() {
    let folder = tempfile::tempdir().unwrap();
    let [place, half, again] = ["model", "half", "again"].map(|name| folder.path().join(name));
    let model = new(folder.path(), &configurations()[0]);
    model.export(plain(&model).snapshot().unwrap(), &place).unwrap();
    let source = ModelFolder::open(&place).unwrap();
    let tensors = |dtype: Dtype| -> Vec<TensorLayout> {
        let mut tensors: Vec<_> = source.layout().unwrap().tensors().cloned().collect();
        let table = tensors.iter_mut().find(|tensor| tensor.name == "transformer.wte.weight").unwrap();
        table.dtype = dtype;
        let copy = TensorLayout { name: "lm_head.weight".to_owned(), dtype: Dtype::F32, ..table.clone() };
        tensors.push(copy);
        tensors
    };
    // bf16 represents multiples of 1/4 below 64 exactly.
    let values = |name: &str| -> Result<Vec<f32>, stageline_hub::FolderError> {
        match name {
            "transformer.wte.weight" | "lm_head.weight" => {
                Ok((0..VOCABULARY * 24).map(|at| (at % 61) as f32 / 4.0).collect())
            }
            _ => source.tensor(name)?.to_f32(),
        }
    };
    Layout::single(tensors(Dtype::BF16)).unwrap().write(&half, values).unwrap();
    stageline_hub::write_config(&half, source.config().unwrap()).unwrap();
    let opened = LanguageModel::open(&half).unwrap();
    assert!(opened.tensors().iter().all(|(name, _)| name != "lm_head.weight"));
    let mut pipeline = plain(&opened);
    drop(pipeline.step(batch(0)).unwrap());
    opened.export(pipeline.snapshot().unwrap(), &again).unwrap();
    let exported = ModelFolder::open(&again).unwrap();
    let [table, copy] = ["transformer.wte.weight", "lm_head.weight"].map(|name| exported.tensor(name).unwrap());
    assert_eq!((table.dtype, copy.dtype), (Dtype::BF16, Dtype::BF16));
    assert!(table.bytes == copy.bytes);
}

/// Tests the settings by which GPT-2 scales attention scores. Changed settings must give the same logits, up to
/// rounding, as default settings with queries that are multiplied by the change of the scale.
#[test]
fn scales_of_attention_scores_are_scales_of_queries() {
    const WIDTH: usize = 24;
    let folder = tempfile::tempdir().unwrap();
    let [place, scaled, queries] = ["model", "scaled", "queries"].map(|name| folder.path().join(name));
    let model = new(folder.path(), &configurations()[0]);
    model.export(plain(&model).snapshot().unwrap(), &place).unwrap();
    let flags = json!({"scale_attn_weights": false, "scale_attn_by_inverse_layer_idx": true});
    rewritten(&place, &scaled, flags, |_| {});

    let source = ModelFolder::open(&place).unwrap();
    let values = |name: &str| -> Result<Vec<f32>, stageline_hub::FolderError> {
        let mut values = source.tensor(name)?.to_f32()?;
        let block = (0..4).find(|block| name.starts_with(&format!("transformer.h.{block}.attn.c_attn.")));
        if let Some(block) = block {
            // A head has 8 elements. The first columns of the weight, and the first biases, are those of the queries.
            let scale = 8_f32.sqrt() / (block + 1) as f32;
            let rows = values.chunks_mut(3 * WIDTH);
            rows.for_each(|row| row[..WIDTH].iter_mut().for_each(|value| *value *= scale));
        }
        Ok(values)
    };
    source.layout().unwrap().write(&queries, values).unwrap();
    stageline_hub::write_config(&queries, source.config().unwrap()).unwrap();

    let numbers = |place: &Path| -> Vec<f32> {
        let model = LanguageModel::open(place).unwrap();
        logits(&mut plain(&model)).into_iter().map(f32::from_bits).collect()
    };
    let apart = |a: &[f32], b: &[f32]| {
        a.iter().zip(b).map(|(a, b)| (a - b).abs()).inspect(|apart| assert!(apart.is_finite())).fold(0.0, f32::max)
    };
    let [model, scaled, queries] = [place, scaled, queries].map(|place| numbers(&place));
    let (off, change) = (apart(&scaled, &queries), apart(&scaled, &model));
    assert!(off < 1e-3 * change, "{off:e} {change:e}");
}

fn export_llama(home: &Path, place: &Path) {
    let model = new(home, &configurations()[1]);
    model.export(plain(&model).snapshot().unwrap(), place).unwrap();
}

/// Copies a model folder to the folder `bad` with the fields of `config` in its configuration. Returns the error
/// message of opening the copy.
fn refusal(place: &Path, bad: &Path, config: Value) -> String {
    let _ = std::fs::remove_dir_all(bad);
    rewritten(place, bad, config, |_| {});
    LanguageModel::open(bad).map(drop).unwrap_err().to_string()
}

#[test]
fn folders_of_other_models_are_refused_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let [place, bad] = ["model", "bad"].map(|name| folder.path().join(name));
    export_llama(folder.path(), &place);
    let message = |config: Value| refusal(&place, &bad, config);
    for (config, expected) in [
        (
            json!({"model_type": "bert"}),
            "config.json: the model type `bert` is not known; known are gpt2, llama, mistral, qwen2, qwen3",
        ),
        (json!({"hidden_size": null}), "config.json: hidden_size: invalid type: null, expected usize"),
        (
            json!({"rope_scaling": {"rope_type": "linear", "factor": "2"}}),
            "config.json: factor: invalid type: string \"2\", expected f64",
        ),
        (json!({"hidden_act": "relu"}), "config.json: hidden_act \"relu\": these models have silu"),
        (
            json!({"num_key_value_heads": 4}),
            "config.json: num_attention_heads 6 is not a multiple of num_key_value_heads 4",
        ),
        (
            json!({"rope_scaling": {"rope_type": "yarn"}}),
            "config.json: rope_type \"yarn\": known are default, linear and llama3",
        ),
        (json!({"head_dim": 5}), "config.json: head_dim 5: a rotary embedding needs an even number"),
    ] {
        let found = message(config);
        assert!(found.ends_with(expected), "{found}");
    }
    for (config, expected) in [
        (json!({"num_hidden_layers": 10_000_000_000_u64}), "num_hidden_layers 10000000000: give 1 to 8192"),
        (json!({"head_dim": 1_u64 << 62}), "head_dim 4611686018427387904: give 1 to 8192"),
        (json!({"vocab_size": 0}), "vocab_size 0: give 1 to 16777216"),
        (json!({"rms_norm_eps": 0.0}), "rms_norm_eps 0: give a number above 0"),
        (json!({"rope_theta": -5.0}), "rope_theta -5: give a number above 0"),
    ] {
        let found = message(config);
        assert!(found.ends_with(expected), "{found}");
    }
    // A configuration may have both names of the rotary embedding's type, `type` and `rope_type`.
    let both = json!({"rope_scaling": {"type": "linear", "rope_type": "linear", "factor": 2.0}});
    let _ = std::fs::remove_dir_all(&bad);
    rewritten(&place, &bad, both, |_| {});
    assert!(LanguageModel::open(&bad).is_ok());
}

#[test]
fn configurations_that_contradict_the_tensors_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let [place, bad] = ["model", "bad"].map(|name| folder.path().join(name));
    export_llama(folder.path(), &place);
    let message = |config: Value| refusal(&place, &bad, config);
    for (config, parts) in [
        (json!({"num_hidden_layers": 5}), ["model.layers.4.input_layernorm.weight", "model.safetensors has no tensor"]),
        (
            json!({"num_hidden_layers": 3}),
            ["the configuration does not describe the tensor `model.layers.3.", "model.safetensors"],
        ),
        (json!({"intermediate_size": 40}), ["model.layers.0.mlp.gate_proj.weight", "40"]),
        (json!({"tie_word_embeddings": false}), ["lm_head.weight", "model.safetensors has no tensor"]),
        (json!({"model_type": "qwen3", "head_dim": 4}), ["q_norm.weight", "model.safetensors has no tensor"]),
    ] {
        let found = message(config);
        assert!(parts.iter().all(|part| found.contains(part)), "{found}");
    }
    // In the header of the copy, the first tensor gets another dtype of the same size.
    let mut bytes = std::fs::read(place.join("model.safetensors")).unwrap();
    let dtype = bytes.windows(5).position(|name| name == b"\"F32\"").unwrap();
    bytes[dtype + 1] = b'I';
    let _ = std::fs::remove_dir_all(&bad);
    rewritten(&place, &bad, json!({}), |_| {});
    std::fs::write(bad.join("model.safetensors"), bytes).unwrap();
    let found = LanguageModel::open(&bad).map(drop).unwrap_err().to_string();
    assert!(found.contains("I32") && found.contains("model.safetensors"), "{found}");
}
