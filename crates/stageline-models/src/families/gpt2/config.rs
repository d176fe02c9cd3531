//! The configuration of GPT-2, as `config.json` describes it.

use serde::Deserialize;
use serde_json::Value;

use crate::families::limits;

/// A GPT-2 model's configuration: its sizes, its activation function and the standard deviation of its initial weights.
#[derive(Clone, Debug)]
pub struct Config {
    pub vocabulary: usize,
    pub width: usize,
    pub layers: usize,
    pub heads: usize,
    /// The number of learned position embeddings, which limits the sequence length in tokens.
    pub positions: usize,
    /// The hidden size of each block's MLP.
    pub hidden: usize,
    pub epsilon: f64,
    pub activation: Activation,
    /// Whether attention scores are divided by the square root of the head size.
    pub scale_by_size: bool,
    /// Whether a block's attention scores are also divided by the block's one-based index, in addition to
    /// `scale_by_size`.
    pub scale_by_block: bool,
    pub tied: bool,
    /// The standard deviation of the initial weights of a new model.
    pub deviation: f64,
}

/// The activation function of GPT-2's MLPs: the exact GELU or its tanh approximation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    Gelu,
    GeluTanh,
}

/// The fields of GPT-2's `config.json` that this crate reads, with the defaults of the Transformers library.
#[derive(Deserialize)]
#[serde(default)]
struct Fields {
    vocab_size: usize,
    n_embd: usize,
    n_layer: usize,
    n_head: usize,
    n_positions: usize,
    n_inner: Option<usize>,
    activation_function: String,
    layer_norm_epsilon: f64,
    initializer_range: f64,
    /// Whether the head's projection is tied to the token embedding table. `None` stands for a missing field or `null`,
    /// for which the default applies.
    tie_word_embeddings: Option<bool>,
    scale_attn_weights: bool,
    scale_attn_by_inverse_layer_idx: bool,
    add_cross_attention: bool,
}

impl Default for Fields {
    fn default() -> Self {
        Self {
            vocab_size: 50_257,
            n_embd: 768,
            n_layer: 12,
            n_head: 12,
            n_positions: 1024,
            n_inner: None,
            activation_function: "gelu_new".to_owned(),
            layer_norm_epsilon: 1e-5,
            initializer_range: 0.02,
            tie_word_embeddings: None,
            scale_attn_weights: true,
            scale_attn_by_inverse_layer_idx: false,
            add_cross_attention: false,
        }
    }
}

impl Config {
    /// Reads a GPT-2 model's configuration from the contents of its `config.json`.
    ///
    /// # Errors
    /// Returns the reason as a string if a field has an unsupported value, or is in the file under two names with
    /// different values.
    pub fn read(config: &Value) -> Result<Self, String> {
        // If a value has the wrong type, the error message names its field.
        let fields: Fields = serde_path_to_error::deserialize(renamed(config)?).map_err(|error| error.to_string())?;
        let activation = match fields.activation_function.as_str() {
            "gelu_new" | "gelu_fast" | "gelu_pytorch_tanh" | "gelu_python_tanh" | "gelu_accurate" => {
                Activation::GeluTanh
            }
            "gelu" | "gelu_python" => Activation::Gelu,
            other => {
                return Err(format!(
                    "activation_function {other:?}: known are gelu and gelu_new, by all of their names"
                ));
            }
        };
        if fields.add_cross_attention {
            return Err("add_cross_attention true: GPT-2 is implemented without this".to_owned());
        }
        let Fields { n_embd: width, n_head: heads, .. } = fields;
        limits::sizes(&[
            ("vocab_size", fields.vocab_size),
            ("n_embd", width),
            ("n_positions", fields.n_positions),
            ("n_inner", fields.n_inner.unwrap_or(1)),
        ])?;
        limits::counts(&[("n_layer", fields.n_layer), ("n_head", heads)])?;
        limits::positive("layer_norm_epsilon", fields.layer_norm_epsilon)?;
        limits::deviation("initializer_range", fields.initializer_range)?;
        if !width.is_multiple_of(heads) {
            return Err(format!("n_embd {width} is not a multiple of n_head {heads}"));
        }
        Ok(Self {
            vocabulary: fields.vocab_size,
            width,
            layers: fields.n_layer,
            heads,
            positions: fields.n_positions,
            hidden: fields.n_inner.unwrap_or(4 * width),
            epsilon: fields.layer_norm_epsilon,
            activation,
            scale_by_size: fields.scale_attn_weights,
            scale_by_block: fields.scale_attn_by_inverse_layer_idx,
            tied: fields.tie_word_embeddings.unwrap_or(true),
            deviation: fields.initializer_range,
        })
    }

    /// Returns the scale applied to a block's queries before attention. Attention itself divides scores by the square
    /// root of the head size, so this changes their scale to the configured one. `index` is the block's zero-based
    /// index.
    pub fn query_scale(&self, index: usize) -> f64 {
        let by_size = if self.scale_by_size { 1.0 } else { ((self.width / self.heads) as f64).sqrt() };
        let by_block = if self.scale_by_block { (index + 1) as f64 } else { 1.0 };
        by_size / by_block
    }
}

/// Field names of other families that the Transformers library also accepts in a GPT-2 configuration (its
/// `attribute_map`), each with GPT-2's own name.
const ALIASES: [(&str, &str); 4] = [
    ("hidden_size", "n_embd"),
    ("num_hidden_layers", "n_layer"),
    ("num_attention_heads", "n_head"),
    ("max_position_embeddings", "n_positions"),
];

/// Renames fields of a GPT-2 `config.json` from other families' names to GPT-2's own. Returns an error if a field has
/// both names, with different values.
fn renamed(config: &Value) -> Result<Value, String> {
    let mut config = config.clone();
    let Some(fields) = config.as_object_mut() else { return Ok(config) };
    for (alias, name) in ALIASES {
        let Some(value) = fields.remove(alias) else { continue };
        match fields.get(name) {
            Some(other) if *other != value => {
                return Err(format!("{name} {other} and {alias} {value} are one field: remove one of them"));
            }
            _ => fields.insert(name.to_owned(), value),
        };
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_head_is_tied_unless_the_configuration_says_false() {
        for (config, tied) in [
            (json!({}), true),
            (json!({"tie_word_embeddings": null}), true),
            (json!({"tie_word_embeddings": true}), true),
            (json!({"tie_word_embeddings": false}), false),
        ] {
            assert_eq!(Config::read(&config).unwrap().tied, tied, "{config}");
        }
    }

    #[test]
    fn queries_are_scaled_as_the_configuration_says() {
        let scales = |fields: Value| {
            let mut config = json!({"n_embd": 48, "n_head": 3});
            config.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            let config = Config::read(&config).unwrap();
            [0, 1, 3].map(|index| config.query_scale(index))
        };
        assert_eq!(scales(json!({})), [1.0, 1.0, 1.0]);
        assert_eq!(scales(json!({"scale_attn_by_inverse_layer_idx": true})), [1.0, 0.5, 0.25]);
        assert_eq!(scales(json!({"scale_attn_weights": false})), [4.0, 4.0, 4.0]);
        let both = json!({"scale_attn_weights": false, "scale_attn_by_inverse_layer_idx": true});
        assert_eq!(scales(both), [4.0, 2.0, 1.0]);
    }

    #[test]
    fn sizes_may_have_the_names_of_other_families() {
        let config = json!({
            "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "max_position_embeddings": 40, "n_head": 3,
        });
        let Config { width, layers, heads, positions, .. } = Config::read(&config).unwrap();
        assert_eq!([width, layers, heads, positions], [24, 2, 3, 40]);
        let reason = Config::read(&json!({"n_embd": 48, "hidden_size": 24})).unwrap_err();
        assert_eq!(reason, "n_embd 48 and hidden_size 24 are one field: remove one of them");
        let reason = Config::read(&json!({"hidden_size": null})).unwrap_err();
        assert_eq!(reason, "n_embd: invalid type: null, expected usize");
    }

    #[test]
    fn an_activation_has_all_of_its_names() {
        let read = |name: &str| Config::read(&json!({"activation_function": name})).map(|config| config.activation);
        for name in ["gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_python_tanh", "gelu_accurate"] {
            assert!(matches!(read(name), Ok(Activation::GeluTanh)), "{name}");
        }
        for name in ["gelu", "gelu_python"] {
            assert!(matches!(read(name), Ok(Activation::Gelu)), "{name}");
        }
        assert!(read("relu").unwrap_err().starts_with("activation_function \"relu\": "));
    }

    #[test]
    fn cross_attention_is_refused() {
        let reason = Config::read(&json!({"add_cross_attention": true})).unwrap_err();
        assert_eq!(reason, "add_cross_attention true: GPT-2 is implemented without this");
    }
}
