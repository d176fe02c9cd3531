//! Runs the fuzz target of models on its seeds and on mutations of the seeds, and checks that every invalid seed gives
//! the error message that is expected for it.

#[path = "../../../../fuzz/src/language_model.rs"]
mod language_model;
#[path = "../../../../fuzz/src/mutations.rs"]
mod mutations;

use std::collections::BTreeMap;
use std::fs;

const SEEDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/language_model");

/// Texts that random mutations insert into a model's files: fields and types of configurations and headers, numbers at
/// the limits of their range, and text that is unsafe to print.
const WORDS: [&str; 20] = [
    "0",
    "1",
    "2",
    "-1",
    "1e999",
    "1e-300",
    "16777216",
    "18446744073709551615",
    "null",
    "true",
    "false",
    "[]",
    "{}",
    "\"qwen2\"",
    "\"qwen3\"",
    "\"mistral\"",
    "\"I32\"",
    "\"BF16\"",
    "\\u001b[2J",
    "\u{202e}",
];

/// The fuzzer's stored inputs (seeds) that are invalid models. Opening them must fail. Each entry has the file name of
/// a seed and a part of the expected error message. All other seeds are valid models.
const REFUSED: [(&str, &str); 81] = [
    ("activation_long", r#"hidden_act "xxx"#),
    ("activation_other", r#"hidden_act "relu": these models have silu"#),
    ("architecture_control_character", r"the model type `\u{1b}[2J\u{202e}` is not known"),
    ("architecture_long", "xxx...xxx"),
    ("architecture_missing", "config.json: it has no model_type; known are gpt2, llama, mistral, qwen2, qwen3"),
    ("architecture_number", "config.json: model_type must be one of gpt2, llama, mistral, qwen2, qwen3, not 7"),
    ("architecture_of_other_names", "has no tensor `model.embed_tokens.weight`"),
    ("architecture_unknown", "the model type `bert` is not known"),
    ("biases_missing", "has no tensor `model.layers.0.self_attn.q_proj.bias`"),
    ("causal_false", "is_causal false: these models have causal attention"),
    ("config_cut", "config.json is malformed"),
    ("deviation_negative", "initializer_range -1: give a number that is 0 or more"),
    ("epsilon_zero", "rms_norm_eps 0: give a number above 0"),
    ("gpt2_activation_control_character", r#"activation_function "\u{1b}[2J\u{202e}": known are"#),
    ("gpt2_activation_other", r#"activation_function "relu": known are"#),
    ("gpt2_causal_null", "is_causal null: these models have causal attention"),
    ("gpt2_cross_attention", "add_cross_attention true: GPT-2 is implemented without this"),
    ("gpt2_heads_do_not_divide", "n_embd 2 is not a multiple of n_head 3"),
    ("gpt2_hidden_default", "but the model expects [2, 8]"),
    ("gpt2_positions_absurd", "n_positions 4294967296: give 1 to 16777216"),
    ("gpt2_positions_other", "`transformer.wpe.weight` with the shape [4, 2], but the model expects [8, 2]"),
    ("gpt2_sizes_contradict", "n_embd 2 and hidden_size 4 are one field: remove one of them"),
    ("head_most", "`model.layers.0.self_attn.q_proj.weight` with the shape [2, 2], but the model expects [8192, 2]"),
    ("head_norms_missing", "has no tensor `model.layers.0.self_attn.q_norm.weight`"),
    ("head_not_tied", "has no tensor `lm_head.weight`"),
    ("head_null", "has no tensor `lm_head.weight`"),
    ("head_odd", "head_dim 3: a rotary embedding needs an even number"),
    ("head_of_other_shape", "`lm_head.weight` with the shape [2, 3], but the model expects [3, 2]"),
    ("header_cut", "model.safetensors is malformed"),
    ("heads_do_not_divide", "num_attention_heads 3 is not a multiple of num_key_value_heads 2"),
    ("heads_none", "num_attention_heads 0: give 1 to 8192"),
    ("layer_types_mistral", "a Mistral with layer_types needs a sliding_window"),
    ("layer_types_more", "layer_types has 2 entries, and num_hidden_layers is 1"),
    ("layer_types_other", r#"layer_types "\u{1b}[2J\u{202e}": known are"#),
    ("layer_types_window_unused", "layer_types has sliding_attention, and use_sliding_window is false"),
    ("layers_absurd", "num_hidden_layers 10000000000: give 1 to 8192"),
    ("layers_more", "has no tensor `model.layers.1.input_layernorm.weight`"),
    ("layers_most", "has no tensor `model.layers.1.input_layernorm.weight`"),
    ("layers_none", "num_hidden_layers 0: give 1 to 8192"),
    ("padding_number", "pad_token_id: invalid type: floating point `1.5`"),
    ("padding_outside", "pad_token_id 3: vocab_size is 3; give a token of the vocabulary, or null"),
    ("per_layer", "per_layer_config: all blocks of these models have one configuration"),
    ("prefix_missing_once", "has no tensor `layers.0.input_layernorm.weight`"),
    ("quantised", "quantization_config: quantised models are not supported"),
    ("rope_control_character", r#"rope_type "\u{1b}[2J\u{202e}": known are"#),
    ("rope_llama3_incomplete", "needs factor above 0"),
    ("rope_llama3_reversed", "high_freq_factor 1 must be above low_freq_factor 4"),
    ("rope_nested", r#"the rotary embedding has the field "full_attention": these models have one for all layers"#),
    ("rope_nested_control_character", r#"the rotary embedding has the field "\u{1b}[2J\u{202e}""#),
    ("rope_original_null", "needs original_max_position_embeddings above 0"),
    ("rope_partial", "partial_rotary_factor 0.5: these models rotate whole heads"),
    ("rope_text", r#"rope_scaling "linear": give an object"#),
    ("rope_type_null", "rope_type null: give a value, or leave the field out"),
    ("rope_unknown", r#"rope_type "yarn": known are default, linear and llama3"#),
    ("tensor_empty", "with the shape [0, 1099511627776], but the model expects [2]"),
    ("tensor_first_missing", "has no tensor `model.embed_tokens.weight`"),
    ("tensor_missing", "has no tensor `model.norm.weight`"),
    ("tensor_more", "does not describe the tensor `model.extra`;"),
    ("tensor_renamed", "the most similar names are `model.norm.gamma`"),
    ("tensor_scalar", "`model.norm.weight` with the shape [], but the model expects [2]"),
    ("tensor_shape_other", "`model.norm.weight` with the shape [1, 2], but the model expects [2]"),
    ("tensor_transposed", "with the shape [2, 4], but the model expects [4, 2]"),
    ("tensor_type_f64", "the tensor `model.norm.weight` has the type F64"),
    (
        "tensor_type_integer",
        "the tensor `model.norm.weight` has the type I32; parameters are read from F32, F16 and BF16",
    ),
    ("tensors_more_control_character", r"does not describe the tensor `\u{1b}[2J\u{202e}` (and 1 more)"),
    ("tensors_none", "has no tensor `model.embed_tokens.weight`"),
    ("theta_negative", "rope_theta -5: give a number above 0"),
    ("theta_null", "rope_theta null: give a value, or leave the field out"),
    ("theta_null_inside", "rope_theta null: give a value, or leave the field out"),
    ("theta_tiny", "frequencies that are not finite"),
    ("vocabulary_most", "but the model expects [16777216, 2]"),
    ("vocabulary_other", "`model.embed_tokens.weight` with the shape [3, 2], but the model expects [4, 2]"),
    ("weights_file_other", r#".safetensors": the weights are read from model.safetensors"#),
    ("width_above_integers", "expected usize"),
    ("width_absurd", "hidden_size 18446744073709551615: give 1 to 16777216"),
    ("width_negative", "expected usize"),
    ("width_null", "invalid type: null, expected usize"),
    ("width_other", "but the model expects [3, 4]"),
    ("width_text", r#"invalid type: string "two", expected usize"#),
    ("width_text_control_character", r"\u{202e}"),
    ("window_zero", "sliding_window 0: give 1 or more, or null"),
];

#[test]
fn any_bytes_are_a_language_model_or_an_error() {
    let seeds = mutations::seeds(SEEDS);
    assert!(seeds.len() >= 70, "{} seeds", seeds.len());
    mutations::run(&seeds, &WORDS, 2_000, language_model::language_model);
}

#[test]
fn seeds_are_models_or_are_refused_for_their_reason() {
    let mut refused = BTreeMap::from(REFUSED);
    for entry in fs::read_dir(SEEDS).unwrap() {
        let entry = entry.unwrap();
        let (name, seed) = (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap());
        let (_, opened) = language_model::opened(&seed).unwrap();
        match (refused.remove(name.as_str()), opened.map(drop)) {
            (Some(part), Err(error)) => assert!(error.to_string().contains(part), "{name}: {error}"),
            (None, found) => found.unwrap_or_else(|error| panic!("{name}: {error}")),
            (Some(part), Ok(())) => panic!("{name}: the model opens, although {part}"),
        }
    }
    assert!(refused.is_empty(), "no seeds for {refused:?}");
}
