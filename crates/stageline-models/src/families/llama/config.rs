//! The configuration of Llama, and of families with the same layers (Mistral, Qwen2, Qwen3), as `config.json` describes
//! it.

use serde::Deserialize;
use serde_json::{Value, json};

use super::rope::Rope;
use crate::families::limits;

/// A Llama-family model's configuration: its sizes, biases, rotary embedding and attention windows.
#[derive(Clone, Debug)]
pub struct Config {
    pub vocabulary: usize,
    pub width: usize,
    pub hidden: usize,
    pub layers: usize,
    pub heads: usize,
    pub key_value_heads: usize,
    /// The head size: the number of elements of one head's query, key or value for one token.
    pub head_size: usize,
    pub epsilon: f64,
    pub tied: bool,
    /// The id of the padding token, whose embedding is not trained; `None` if the model has no such token.
    pub padding: Option<usize>,
    pub deviation: f64,
    /// The frequencies of the rotary embedding in radians per position, one for each pair of a head's elements.
    pub frequencies: Vec<f32>,
    /// Whether the linear layers for queries, keys and values have biases.
    pub query_key_value_bias: bool,
    /// Whether the output projection of attention has a bias.
    pub output_bias: bool,
    pub mlp_bias: bool,
    /// Whether each head's queries and keys are normalised before the rotary embedding (Qwen3).
    pub head_norms: bool,
    /// The sliding window of each block: the number of keys that a query attends to, up to and including its own
    /// position; `None` if a query attends to all earlier positions.
    pub windows: Vec<Option<usize>>,
    /// The length, in tokens, of the longest sequence that the model supports.
    pub positions: usize,
}

/// The fields that this crate reads from a Llama-family model's `config.json`, after [`defaults`] has filled in missing
/// ones.
#[derive(Deserialize)]
struct Fields {
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    rms_norm_eps: f64,
    tie_word_embeddings: bool,
    initializer_range: f64,
    hidden_act: String,
    attention_bias: bool,
    mlp_bias: bool,
    max_position_embeddings: usize,
    sliding_window: Option<usize>,
    use_sliding_window: bool,
    max_window_layers: usize,
    layer_types: Option<Vec<String>>,
    pad_token_id: Option<i64>,
}

/// Returns the Transformers library's default values for the fields of a `config.json` with the model type `kind`.
fn defaults(kind: &str) -> Value {
    let mut defaults = json!({
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "rms_norm_eps": 1e-6, "tie_word_embeddings": false, "initializer_range": 0.02,
        "hidden_act": "silu", "attention_bias": false, "mlp_bias": false, "max_position_embeddings": 2048,
        "use_sliding_window": false, "max_window_layers": 28,
    });
    let of_kind = match kind {
        "mistral" => json!({
            "intermediate_size": 14336, "num_key_value_heads": 8, "max_position_embeddings": 131_072, "sliding_window": 4096,
        }),
        "qwen2" | "qwen3" => json!({
            "vocab_size": 151_936, "intermediate_size": 22016, "num_key_value_heads": 32, "max_position_embeddings": 32768,
            "sliding_window": 4096, "head_dim": if kind == "qwen3" { json!(128) } else { Value::Null },
        }),
        _ => json!({}),
    };
    merge(&mut defaults, &of_kind);
    defaults
}

/// Whether a `null` for the field `name` of a `config.json` counts as a missing field, which has the default value. In
/// other fields, `null` replaces the default value.
pub fn null_is_default(name: &str) -> bool {
    const FIELDS: [&str; 5] =
        ["tie_word_embeddings", "attention_bias", "mlp_bias", "use_sliding_window", "max_window_layers"];
    FIELDS.contains(&name)
}

/// Overwrites fields of the JSON object `object`, such as default values, with those of `with`. A `null` in `with` does
/// not overwrite a field for which `null` means the default ([`null_is_default`]).
fn merge(object: &mut Value, with: &Value) {
    if let (Value::Object(object), Value::Object(with)) = (object, with) {
        for (name, value) in with {
            if !(value.is_null() && null_is_default(name)) {
                object.insert(name.clone(), value.clone());
            }
        }
    }
}

impl Config {
    /// Reads the configuration of a model of the type `kind`, such as `qwen2`, from the contents of its `config.json`.
    ///
    /// # Errors
    /// Returns the reason as a string if a field has an unsupported value.
    pub fn read(config: &Value, kind: &str) -> Result<Self, String> {
        let mut filled = defaults(kind);
        merge(&mut filled, config);
        if kind == "llama" {
            // As in the Transformers library, Llama attention ignores the fields for sliding windows, so they are
            // cleared here. That library's KV cache does apply the window during generation; see
            // `ignored_in_generation`.
            merge(&mut filled, &json!({ "sliding_window": null, "layer_types": null }));
            merge(&mut filled, &json!({ "use_sliding_window": false, "max_window_layers": 0 }));
        }
        // If a value has the wrong type, the error message names its field.
        let fields: Fields = serde_path_to_error::deserialize(&filled).map_err(|error| error.to_string())?;
        if !["silu", "swish"].contains(&fields.hidden_act.as_str()) {
            return Err(format!("hidden_act {:?}: these models have silu", fields.hidden_act));
        }
        let heads = fields.num_attention_heads;
        let key_value_heads = fields.num_key_value_heads.unwrap_or(heads);
        check(&fields, key_value_heads)?;
        if !heads.is_multiple_of(key_value_heads) {
            return Err(format!(
                "num_attention_heads {heads} is not a multiple of num_key_value_heads {key_value_heads}"
            ));
        }
        // The Transformers library rejects a Llama whose width is not a multiple of its number of heads, but accepts
        // such a Mistral.
        if kind == "llama" && !fields.hidden_size.is_multiple_of(heads) {
            return Err(format!("hidden_size {} is not a multiple of num_attention_heads {heads}", fields.hidden_size));
        }
        if kind == "llama" && fields.initializer_range > 1.0 {
            return Err(format!("initializer_range {}: a Llama has a number from 0 to 1", fields.initializer_range));
        }
        let head_size = match fields.head_dim {
            Some(size) => size,
            None if fields.hidden_size.is_multiple_of(heads) => fields.hidden_size / heads,
            None => return Err(format!("hidden_size {} does not divide into {heads} heads", fields.hidden_size)),
        };
        if !head_size.is_multiple_of(2) {
            return Err(format!("head_dim {head_size}: a rotary embedding needs an even number"));
        }
        let rope = Rope::read(&filled)?;
        // Qwen2 always has query, key and value biases, and no others; Mistral has none.
        let has_bias = fields.attention_bias && ["llama", "qwen3"].contains(&kind);
        Ok(Self {
            vocabulary: fields.vocab_size,
            width: fields.hidden_size,
            hidden: fields.intermediate_size,
            layers: fields.num_hidden_layers,
            heads,
            key_value_heads,
            head_size,
            epsilon: fields.rms_norm_eps,
            tied: fields.tie_word_embeddings,
            padding: padding(&fields)?,
            deviation: fields.initializer_range,
            frequencies: rope.frequencies(head_size)?,
            query_key_value_bias: has_bias || kind == "qwen2",
            output_bias: has_bias,
            mlp_bias: fields.mlp_bias && kind == "llama",
            head_norms: kind == "qwen3",
            windows: windows(&fields, kind)?,
            positions: rope.positions(fields.max_position_embeddings),
        })
    }
}

/// Returns an error if a value in a Llama-family configuration is out of range: a size, a count, the norm epsilon or
/// the standard deviation of the initial weights.
fn check(fields: &Fields, key_value_heads: usize) -> Result<(), String> {
    limits::sizes(&[
        ("vocab_size", fields.vocab_size),
        ("hidden_size", fields.hidden_size),
        ("intermediate_size", fields.intermediate_size),
        ("max_position_embeddings", fields.max_position_embeddings),
    ])?;
    limits::counts(&[
        ("num_hidden_layers", fields.num_hidden_layers),
        ("num_attention_heads", fields.num_attention_heads),
        ("num_key_value_heads", key_value_heads),
        ("head_dim", fields.head_dim.unwrap_or(1)),
    ])?;
    limits::positive("rms_norm_eps", fields.rms_norm_eps)?;
    limits::deviation("initializer_range", fields.initializer_range)
}

/// Returns the id of the padding token; `None` if there is none. A negative id counts from the end of the vocabulary,
/// as in PyTorch's `torch.nn.Embedding`. An id outside the vocabulary is an error.
fn padding(fields: &Fields) -> Result<Option<usize>, String> {
    let Some(id) = fields.pad_token_id else { return Ok(None) };
    let from_end = if id < 0 { fields.vocab_size as i64 } else { 0 };
    let index = usize::try_from(id.saturating_add(from_end)).ok().filter(|index| *index < fields.vocab_size);
    index.map(Some).ok_or_else(|| {
        format!("pad_token_id {id}: vocab_size is {}; give a token of the vocabulary, or null", fields.vocab_size)
    })
}

/// Returns the sliding window of each block: the number of keys that a query attends to, up to and including its own
/// position; `None` if a query attends to all earlier positions.
///
/// # Errors
/// Returns the reason as a string if:
///
/// - The window is 0.
/// - `layer_types` has an unknown type, or its length is not the number of blocks.
/// - `layer_types` has a sliding window, but the other fields define none or turn it off.
/// - A Mistral has `layer_types` but no window.
fn windows(fields: &Fields, kind: &str) -> Result<Vec<Option<usize>>, String> {
    let layers = fields.num_hidden_layers;
    let window = fields.sliding_window.filter(|_| match kind {
        "mistral" => true,
        "qwen2" | "qwen3" => fields.use_sliding_window,
        _ => false,
    });
    if window == Some(0) {
        return Err("sliding_window 0: give 1 or more, or null".to_owned());
    }
    let Some(types) = &fields.layer_types else {
        // Qwen2 and Qwen3 use full attention in their first `max_window_layers` blocks.
        let full = if kind == "mistral" { 0 } else { fields.max_window_layers };
        return Ok((0..layers).map(|layer| window.filter(|_| layer >= full)).collect());
    };
    if types.len() != layers {
        return Err(format!("layer_types has {} entries, and num_hidden_layers is {layers}", types.len()));
    }
    // The Transformers library also rejects a Mistral with `layer_types` but without a window.
    if kind == "mistral" && window.is_none() {
        return Err("a Mistral with layer_types needs a sliding_window".to_owned());
    }
    let missing = match fields.sliding_window {
        Some(_) => "use_sliding_window is false",
        None => "there is no sliding_window",
    };
    let of = |kind: &String| match kind.as_str() {
        "full_attention" | "attention" => Ok(None),
        "sliding_attention" => {
            window.map(Some).ok_or_else(|| format!("layer_types has sliding_attention, and {missing}"))
        }
        other => Err(format!("layer_types {other:?}: known are full_attention and sliding_attention")),
    };
    types.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads the configuration of a small test model of the type `kind`. The fields in `with` are added to the usual
    /// fields of this model, or replace them.
    fn read(kind: &str, with: Value) -> Result<Config, String> {
        let mut config = json!({"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 6});
        config["num_key_value_heads"] = 6.into();
        config["head_dim"] = 4.into();
        merge(&mut config, &with);
        Config::read(&config, kind)
    }

    #[test]
    fn null_stands_for_the_default() {
        for (kind, with) in [
            ("llama", json!({"tie_word_embeddings": null, "max_window_layers": null})),
            ("qwen2", json!({"tie_word_embeddings": null, "use_sliding_window": true, "max_window_layers": null})),
        ] {
            let config = read(kind, with).unwrap();
            assert_eq!((config.tied, config.windows), (false, vec![None; 3]), "{kind}");
        }
        let windowed = json!({"use_sliding_window": true, "sliding_window": 5, "max_window_layers": 1});
        assert_eq!(read("qwen2", windowed).unwrap().windows, [None, Some(5), Some(5)]);
    }

    #[test]
    fn a_negative_padding_token_counts_from_the_end_of_the_vocabulary() {
        let padding =
            |id: Value| read("llama", json!({"vocab_size": 9, "pad_token_id": id})).map(|config| config.padding);
        for (id, expected) in [(json!(null), None), (json!(0), Some(0)), (json!(8), Some(8)), (json!(-1), Some(8))] {
            assert_eq!(padding(id), Ok(expected));
        }
        for id in [9, -10, i64::MAX, i64::MIN] {
            let reason = padding(json!(id)).unwrap_err();
            assert!(reason.starts_with(&format!("pad_token_id {id}: vocab_size is 9; ")), "{reason}");
        }
    }

    /// Tests sizes that the Transformers library rejects for a Llama, but loads for a Mistral.
    #[test]
    fn a_llama_that_transformers_refuses_is_refused() {
        let sizes = json!({"hidden_size": 20, "head_dim": 8});
        assert_eq!(
            read("llama", sizes.clone()).unwrap_err(),
            "hidden_size 20 is not a multiple of num_attention_heads 6"
        );
        assert!(read("mistral", sizes).is_ok());
        let wide = json!({"initializer_range": 1.5});
        assert_eq!(read("llama", wide.clone()).unwrap_err(), "initializer_range 1.5: a Llama has a number from 0 to 1");
        assert!(read("mistral", wide).is_ok());
        let old_name = json!({"layer_types": ["attention", "attention", "full_attention"]});
        assert_eq!(read("qwen2", old_name).unwrap().windows, [None; 3]);
    }

    #[test]
    fn a_llama_has_no_windows_whatever_its_configuration_says() {
        for with in [
            json!({"sliding_window": 5}),
            json!({"sliding_window": 0, "use_sliding_window": true}),
            json!({"sliding_window": 5, "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention"]}),
            json!({"layer_types": ["chunked_attention"], "max_window_layers": "all"}),
        ] {
            assert_eq!(read("llama", with.clone()).unwrap().windows, [None; 3], "{with}");
        }
    }

    #[test]
    fn a_sliding_layer_needs_a_window_in_use() {
        let types = json!(["full_attention", "sliding_attention", "full_attention"]);
        for (kind, with) in [
            ("qwen2", json!({"use_sliding_window": true, "sliding_window": 5, "layer_types": types})),
            ("qwen3", json!({"use_sliding_window": true, "sliding_window": 5, "layer_types": types})),
            ("mistral", json!({"sliding_window": 5, "layer_types": types})),
        ] {
            assert_eq!(read(kind, with).unwrap().windows, [None, Some(5), None], "{kind}");
        }
        let full = json!(["full_attention", "full_attention", "full_attention"]);
        assert_eq!(read("qwen3", json!({"layer_types": full})).unwrap().windows, [None; 3]);
        for (kind, with, reason) in [
            (
                "qwen2",
                json!({"sliding_window": 5, "layer_types": types}),
                "layer_types has sliding_attention, and use_sliding_window is false",
            ),
            (
                "qwen3",
                json!({"use_sliding_window": true, "sliding_window": null, "layer_types": types}),
                "layer_types has sliding_attention, and there is no sliding_window",
            ),
            (
                "mistral",
                json!({"sliding_window": null, "layer_types": full}),
                "a Mistral with layer_types needs a sliding_window",
            ),
            (
                "qwen3",
                json!({"layer_types": ["full_attention"]}),
                "layer_types has 1 entries, and num_hidden_layers is 3",
            ),
        ] {
            assert_eq!(read(kind, with).unwrap_err(), reason, "{kind}");
        }
    }
}
