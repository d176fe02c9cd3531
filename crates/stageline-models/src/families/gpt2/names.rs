//! The names of GPT-2's tensors on the Hugging Face hub. Its linear weights are stored as `[inputs, outputs]`.

use crate::parameters::{Name, Names};

/// The names of GPT-2's tensors on the Hugging Face hub, by layer and parameter.
pub static NAMES: Names = Names {
    root: "transformer.",
    embeddings: &[Name::same("tokens.weight", "wte.weight"), Name::same("positions", "wpe.weight")],
    blocks: "h.",
    block: &[
        Name::same("attention.norm.gamma", "ln_1.weight"),
        Name::same("attention.norm.beta", "ln_1.bias"),
        Name::same("attention.query_key_value.weight", "attn.c_attn.weight"),
        Name::same("attention.query_key_value.bias", "attn.c_attn.bias"),
        Name::same("attention.output.weight", "attn.c_proj.weight"),
        Name::same("attention.output.bias", "attn.c_proj.bias"),
        Name::same("mlp.norm.gamma", "ln_2.weight"),
        Name::same("mlp.norm.beta", "ln_2.bias"),
        Name::same("mlp.up.weight", "mlp.c_fc.weight"),
        Name::same("mlp.up.bias", "mlp.c_fc.bias"),
        Name::same("mlp.down.weight", "mlp.c_proj.weight"),
        Name::same("mlp.down.bias", "mlp.c_proj.bias"),
    ],
    head: &[Name::same("norm.gamma", "ln_f.weight"), Name::same("norm.beta", "ln_f.bias")],
    table: "tokens.weight",
    buffers: &["attn.bias", "crossattention.bias"],
    obsolete: &["attn.masked_bias", "crossattention.masked_bias"],
};
