//! The configuration of Llama and its relatives, as `config.json` has it. A relative is a configuration of the same
//! layers.

use std::f64::consts::TAU;

use serde::Deserialize;
use serde_json::Value;

/// The configuration of a model of the Llama family: its sizes, biases, rotary embedding and attention windows.
#[derive(Clone, Debug)]
pub struct Config {
    pub vocabulary: usize,
    pub width: usize,
    pub hidden: usize,
    pub layers: usize,
    pub heads: usize,
    pub key_value_heads: usize,
    /// The number of elements that a head's query, key or value has for one token.
    pub head_size: usize,
    pub epsilon: f64,
    pub tied: bool,
    pub deviation: f64,
    /// The frequencies of the rotary embedding in radians per position, one for each pair of a head's elements.
    pub frequencies: Vec<f32>,
    /// Whether the linear layers of queries, keys and values have biases.
    pub query_key_value_bias: bool,
    /// Whether the linear layer after attention has a bias.
    pub output_bias: bool,
    pub mlp_bias: bool,
    /// Whether each head's queries and keys are normalised before they are rotated (Qwen3).
    pub head_norms: bool,
    /// The sliding window of each block: the number of keys that a query sees, up to and with its own position; `None`
    /// for all earlier positions.
    pub windows: Vec<Option<usize>>,
    /// The longest sequence that the model is made for, in tokens.
    pub positions: usize,
}

/// The fields of a Llama family `config.json` that this crate reads, with the defaults of the Transformers library.
#[derive(Deserialize)]
struct Fields {
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    #[serde(default = "epsilon")]
    rms_norm_eps: f64,
    #[serde(default)]
    tie_word_embeddings: bool,
    #[serde(default = "deviation")]
    initializer_range: f64,
    #[serde(default = "silu")]
    hidden_act: String,
    attention_bias: Option<bool>,
    #[serde(default)]
    mlp_bias: bool,
    #[serde(default = "positions")]
    max_position_embeddings: usize,
    sliding_window: Option<usize>,
    use_sliding_window: Option<bool>,
    max_window_layers: Option<usize>,
    layer_types: Option<Vec<String>>,
    rope_theta: Option<f64>,
    rope_scaling: Option<Rope>,
    rope_parameters: Option<Rope>,
    partial_rotary_factor: Option<f64>,
}

/// The fields of `config.json` about the rotary embedding: `rope_scaling`, or `rope_parameters` in newer files.
#[derive(Clone, Deserialize)]
struct Rope {
    #[serde(alias = "type")]
    rope_type: Option<String>,
    rope_theta: Option<f64>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<f64>,
    partial_rotary_factor: Option<f64>,
}

fn epsilon() -> f64 {
    1e-6
}

fn deviation() -> f64 {
    0.02
}

fn silu() -> String {
    "silu".to_owned()
}

fn positions() -> usize {
    2048
}

impl Config {
    /// Reads the configuration of a model of the type `kind`, such as `qwen2`, from the contents of its `config.json`.
    ///
    /// # Errors
    /// Returns the reason if a field is missing or has a value that these models do not take.
    pub fn read(config: &Value, kind: &str) -> Result<Self, String> {
        let fields = Fields::deserialize(config).map_err(|error| error.to_string())?;
        if fields.hidden_act != "silu" {
            return Err(format!("hidden_act {:?}: these models have silu", fields.hidden_act));
        }
        let heads = fields.num_attention_heads;
        let key_value_heads = fields.num_key_value_heads.unwrap_or(heads);
        if key_value_heads == 0 || heads == 0 || !heads.is_multiple_of(key_value_heads) {
            return Err(format!(
                "num_attention_heads {heads} is not a multiple of num_key_value_heads {key_value_heads}"
            ));
        }
        let head_size = match fields.head_dim {
            Some(size) => size,
            None if fields.hidden_size.is_multiple_of(heads) => fields.hidden_size / heads,
            None => return Err(format!("hidden_size {} does not divide into {heads} heads", fields.hidden_size)),
        };
        if head_size == 0 || !head_size.is_multiple_of(2) {
            return Err(format!("head_dim {head_size}: a rotary embedding needs an even number"));
        }
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
            deviation: fields.initializer_range,
            frequencies: frequencies(&fields, head_size)?,
            query_key_value_bias: fields.attention_bias.unwrap_or(kind == "qwen2"),
            output_bias: fields.attention_bias.unwrap_or(false) && kind != "qwen2",
            mlp_bias: fields.mlp_bias,
            head_norms: kind == "qwen3",
            windows: windows(&fields, kind)?,
            positions: fields.max_position_embeddings,
        })
    }
}

/// Returns the sliding window of each block, which is the number of keys that a query sees, up to and with its own
/// position; `None` for all earlier positions.
fn windows(fields: &Fields, kind: &str) -> Result<Vec<Option<usize>>, String> {
    let layers = fields.num_hidden_layers;
    let window = fields.sliding_window.filter(|_| match kind {
        "mistral" => true,
        "qwen2" | "qwen3" => fields.use_sliding_window.unwrap_or(false),
        _ => false,
    });
    if window == Some(0) {
        return Err("sliding_window 0: give 1 or more, or null".to_owned());
    }
    let Some(types) = &fields.layer_types else {
        // Qwen2 and Qwen3 have full attention in their first blocks.
        let full = if kind == "mistral" { 0 } else { fields.max_window_layers.unwrap_or(28) };
        return Ok((0..layers).map(|layer| window.filter(|_| layer >= full)).collect());
    };
    if types.len() != layers {
        return Err(format!("layer_types has {} entries, and num_hidden_layers is {layers}", types.len()));
    }
    let of = |kind: &String| match kind.as_str() {
        "full_attention" => Ok(None),
        "sliding_attention" => match window.or(fields.sliding_window) {
            Some(window) => Ok(Some(window)),
            None => Err("layer_types has sliding_attention, and there is no sliding_window".to_owned()),
        },
        other => Err(format!("layer_types {other:?}: known are full_attention and sliding_attention")),
    };
    types.iter().map(of).collect()
}

/// Returns the frequencies of the rotary embedding in radians per position: `theta` to the power of `-2 i / size` for
/// pair i of a head's `size` elements, scaled as the configuration says.
fn frequencies(fields: &Fields, size: usize) -> Result<Vec<f32>, String> {
    let rope = fields.rope_parameters.clone().or_else(|| fields.rope_scaling.clone());
    let of_rope = |of: fn(&Rope) -> Option<f64>| rope.as_ref().and_then(of);
    let partial = of_rope(|rope| rope.partial_rotary_factor).or(fields.partial_rotary_factor).unwrap_or(1.0);
    if partial != 1.0 {
        return Err(format!("partial_rotary_factor {partial}: these models rotate whole heads"));
    }
    let theta = of_rope(|rope| rope.rope_theta).or(fields.rope_theta).unwrap_or(10_000.0);
    let plain = (0..size / 2).map(|pair| theta.powf(-2.0 * pair as f64 / size as f64));
    let kind = rope.as_ref().and_then(|rope| rope.rope_type.as_deref()).unwrap_or("default");
    let need = |name: &str, value: Option<f64>| match value {
        Some(value) if value > 0.0 => Ok(value),
        _ => Err(format!("the rotary embedding of the type {kind:?} needs {name} above 0")),
    };
    let scaled: Vec<f64> = match kind {
        "default" => plain.collect(),
        "linear" => {
            let factor = need("factor", of_rope(|rope| rope.factor))?;
            plain.map(|frequency| frequency / factor).collect()
        }
        "llama3" => {
            let factor = need("factor", of_rope(|rope| rope.factor))?;
            let low = need("low_freq_factor", of_rope(|rope| rope.low_freq_factor))?;
            let high = need("high_freq_factor", of_rope(|rope| rope.high_freq_factor))?;
            let original =
                need("original_max_position_embeddings", of_rope(|rope| rope.original_max_position_embeddings))?;
            if high <= low {
                return Err(format!("high_freq_factor {high} must be above low_freq_factor {low}"));
            }
            plain.map(|frequency| llama3(frequency, factor, [low, high], original)).collect()
        }
        other => return Err(format!("rope_type {other:?}: known are default, linear and llama3")),
    };
    Ok(scaled.into_iter().map(|frequency| frequency as f32).collect())
}

/// Scales one frequency of the rotary embedding as Llama 3.1 does. A frequency with fewer than `low` waves in
/// `original` positions, the context length before the scaling, is divided by `factor`. One with more than `high` waves
/// stays, and those between are interpolated (Grattafiori et al., 2024, arXiv:2407.21783; the formula is that of Meta's
/// `apply_scaling`).
fn llama3(frequency: f64, factor: f64, [low, high]: [f64; 2], original: f64) -> f64 {
    let waves = original * frequency / TAU;
    let share = ((waves - low) / (high - low)).clamp(0.0, 1.0);
    (1.0 - share) * frequency / factor + share * frequency
}
