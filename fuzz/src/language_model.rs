//! Fuzzes the opening of language models: bytes replace the configuration of a small model, or the header of its
//! weights. A model that opens must have every tensor of its parameters.

use std::fs;
use std::path::Path;

use serde_json::Value;
use stageline_hub::ModelFolder;
use stageline_models::{LanguageModel, ModelError};
use tempfile::TempDir;

/// The largest length in bytes of a fuzz input. Longer inputs are skipped, because shorter ones reach the same code.
const LIMIT: usize = 4_096;

const CONFIG: &str = "config.json";
const WEIGHTS: &str = "model.safetensors";

/// The valid configurations of a GPT-2 and a Llama, each with one block.
const CONFIGS: [&str; 2] = [
    r#"{"model_type": "gpt2", "vocab_size": 3, "n_embd": 2, "n_layer": 1, "n_head": 1,
"n_positions": 4, "n_inner": 2}"#,
    r#"{"model_type": "llama", "vocab_size": 3, "hidden_size": 2, "intermediate_size": 4, "num_hidden_layers": 1,
"num_attention_heads": 1, "num_key_value_heads": 1, "max_position_embeddings": 8, "tie_word_embeddings": true}"#,
];

/// The valid headers of the weights files of a GPT-2 and a Llama.
const HEADERS: [&str; 2] = [
    r#"{"transformer.wte.weight":{"dtype":"F32","shape":[3,2],"data_offsets":[0,24]},
"transformer.wpe.weight":{"dtype":"F32","shape":[4,2],"data_offsets":[24,56]},
"transformer.h.0.ln_1.weight":{"dtype":"F32","shape":[2],"data_offsets":[56,64]},
"transformer.h.0.ln_1.bias":{"dtype":"F32","shape":[2],"data_offsets":[64,72]},
"transformer.h.0.attn.c_attn.weight":{"dtype":"F32","shape":[2,6],"data_offsets":[72,120]},
"transformer.h.0.attn.c_attn.bias":{"dtype":"F32","shape":[6],"data_offsets":[120,144]},
"transformer.h.0.attn.c_proj.weight":{"dtype":"F32","shape":[2,2],"data_offsets":[144,160]},
"transformer.h.0.attn.c_proj.bias":{"dtype":"F32","shape":[2],"data_offsets":[160,168]},
"transformer.h.0.ln_2.weight":{"dtype":"F32","shape":[2],"data_offsets":[168,176]},
"transformer.h.0.ln_2.bias":{"dtype":"F32","shape":[2],"data_offsets":[176,184]},
"transformer.h.0.mlp.c_fc.weight":{"dtype":"F32","shape":[2,2],"data_offsets":[184,200]},
"transformer.h.0.mlp.c_fc.bias":{"dtype":"F32","shape":[2],"data_offsets":[200,208]},
"transformer.h.0.mlp.c_proj.weight":{"dtype":"F32","shape":[2,2],"data_offsets":[208,224]},
"transformer.h.0.mlp.c_proj.bias":{"dtype":"F32","shape":[2],"data_offsets":[224,232]},
"transformer.ln_f.weight":{"dtype":"F32","shape":[2],"data_offsets":[232,240]},
"transformer.ln_f.bias":{"dtype":"F32","shape":[2],"data_offsets":[240,248]}}"#,
    r#"{"model.embed_tokens.weight":{"dtype":"F32","shape":[3,2],"data_offsets":[0,24]},
"model.layers.0.input_layernorm.weight":{"dtype":"F32","shape":[2],"data_offsets":[24,32]},
"model.layers.0.self_attn.q_proj.weight":{"dtype":"F32","shape":[2,2],"data_offsets":[32,48]},
"model.layers.0.self_attn.k_proj.weight":{"dtype":"F32","shape":[2,2],"data_offsets":[48,64]},
"model.layers.0.self_attn.v_proj.weight":{"dtype":"F32","shape":[2,2],"data_offsets":[64,80]},
"model.layers.0.self_attn.o_proj.weight":{"dtype":"F32","shape":[2,2],"data_offsets":[80,96]},
"model.layers.0.post_attention_layernorm.weight":{"dtype":"F32","shape":[2],"data_offsets":[96,104]},
"model.layers.0.mlp.gate_proj.weight":{"dtype":"F32","shape":[4,2],"data_offsets":[104,136]},
"model.layers.0.mlp.up_proj.weight":{"dtype":"F32","shape":[4,2],"data_offsets":[136,168]},
"model.layers.0.mlp.down_proj.weight":{"dtype":"F32","shape":[2,4],"data_offsets":[168,200]},
"model.norm.weight":{"dtype":"F32","shape":[2],"data_offsets":[200,208]}}"#,
];

/// Opens the language model that a fuzz input describes. Asserts that the model is complete, or that the error is safe
/// to print.
///
/// The first byte chooses what the rest of the input replaces: 0 for the configuration of a GPT-2, 1 for that of a
/// Llama, and 2 and 3 for the headers of their weights files. The data in a weights file are zeros.
pub fn language_model(bytes: &[u8]) {
    match opened(bytes) {
        Some((root, Ok(model))) => assert_complete(&model, root.path()),
        Some((_, Err(error))) => assert_shown(&error),
        None => {}
    }
}

/// Opens the language model that a fuzz input describes. Returns the model's folder and the result. Returns `None` if
/// the input is empty or too long.
pub fn opened(bytes: &[u8]) -> Option<(TempDir, Result<LanguageModel, ModelError>)> {
    let (&part, contents) = bytes.split_first().filter(|_| bytes.len() <= LIMIT)?;
    let part = part.wrapping_sub(b'0') % 4;
    let family = usize::from(part % 2);
    let (mut config, mut header) = (CONFIGS[family].as_bytes(), HEADERS[family].as_bytes());
    match part {
        0 | 1 => config = contents,
        _ => header = contents,
    }
    let root = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    let root = root.expect("temporary folders can be made");
    fs::write(root.path().join(CONFIG), config).expect("files can be made");
    fs::write(root.path().join(WEIGHTS), weights(header)).expect("files can be made");
    let model = LanguageModel::open(root.path());
    Some((root, model))
}

/// Returns the bytes of a weights file with the given header. Its data are as many zeros as the header describes, up to
/// a limit.
fn weights(header: &[u8]) -> Vec<u8> {
    let parsed: Value = serde_json::from_slice(header).unwrap_or_default();
    let ends = parsed.as_object().into_iter().flatten().filter_map(|(_, tensor)| tensor["data_offsets"][1].as_u64());
    let length = ends.max().unwrap_or(0).min(LIMIT as u64) as usize;
    [&(header.len() as u64).to_le_bytes(), header, vec![0; length].as_slice()].concat()
}

/// Asserts that a language model's folder has a tensor for every parameter of the model, and that the tensors' values
/// can be read.
fn assert_complete(model: &LanguageModel, root: &Path) {
    let folder = ModelFolder::open(root).expect("the model was opened");
    let tensors = model.tensors();
    assert!(!tensors.is_empty() && model.positions() > 0);
    for (index, (name, frozen)) in tensors.into_iter().enumerate() {
        let tensor = folder.tensor(&name).expect("an open model has all tensors");
        assert!(!frozen && tensor.to_f32().is_ok(), "{name:?}");
        // The first tensor is the table of token embeddings.
        assert!(index > 0 || tensor.shape[0] == model.vocabulary(), "{:?}", tensor.shape);
    }
}

/// Asserts that the messages of an error about a model are short, name a file of the model, and have no control
/// characters.
fn assert_shown(error: &ModelError) {
    for text in [error.to_string(), format!("{error:?}")] {
        assert!(text.len() <= ModelError::MOST_BYTES, "{} bytes: {text}", text.len());
        assert!(!text.contains(|letter: char| letter.is_control() || letter == '\u{202e}'), "{text:?}");
        assert!(text.contains(CONFIG) || text.contains(WEIGHTS), "{text}");
    }
}
