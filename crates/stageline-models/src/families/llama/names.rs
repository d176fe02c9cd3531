//! The names, on the Hugging Face hub, of the tensors of Llama and related families. Their linear weights are stored as
//! `[outputs, inputs]`.

use crate::parameters::{Name, Names};

/// The names of the tensors of Llama, Mistral, Qwen2, Qwen3 and SmolLM on the Hugging Face hub, by layer and parameter.
pub static NAMES: Names = Names {
    root: "model.",
    embeddings: &[Name::same("tokens.weight", "embed_tokens.weight")],
    blocks: "layers.",
    block: &[
        Name::same("attention.norm.gamma", "input_layernorm.weight"),
        Name::transposed("attention.query.weight", "self_attn.q_proj.weight"),
        Name::same("attention.query.bias", "self_attn.q_proj.bias"),
        Name::transposed("attention.key.weight", "self_attn.k_proj.weight"),
        Name::same("attention.key.bias", "self_attn.k_proj.bias"),
        Name::transposed("attention.value.weight", "self_attn.v_proj.weight"),
        Name::same("attention.value.bias", "self_attn.v_proj.bias"),
        Name::transposed("attention.output.weight", "self_attn.o_proj.weight"),
        Name::same("attention.output.bias", "self_attn.o_proj.bias"),
        Name::same("attention.query_norm.gamma", "self_attn.q_norm.weight"),
        Name::same("attention.key_norm.gamma", "self_attn.k_norm.weight"),
        Name::same("mlp.norm.gamma", "post_attention_layernorm.weight"),
        Name::transposed("mlp.gate.weight", "mlp.gate_proj.weight"),
        Name::same("mlp.gate.bias", "mlp.gate_proj.bias"),
        Name::transposed("mlp.up.weight", "mlp.up_proj.weight"),
        Name::same("mlp.up.bias", "mlp.up_proj.bias"),
        Name::transposed("mlp.down.weight", "mlp.down_proj.weight"),
        Name::same("mlp.down.bias", "mlp.down_proj.bias"),
    ],
    head: &[Name::same("norm.gamma", "norm.weight")],
    table: "tokens.weight",
    buffers: &["rotary_emb.inv_freq"],
    obsolete: &["rotary_emb.original_inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached"],
};
