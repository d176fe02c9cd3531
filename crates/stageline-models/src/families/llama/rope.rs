//! A rotary embedding's frequencies, as `config.json` describes them ([`Rope`]).
//!
//! At position p, a pair of a head's elements is rotated by p times its frequency, so rounding errors grow with the
//! position. Frequencies are therefore computed with the same f32 operations, in the same order and with the same
//! rounding, as by the Transformers library on a CPU (`modeling_rope_utils.py`). In PyTorch, a number divided by a
//! tensor is rounded twice: the number is multiplied by the tensor's reciprocal.

use std::f32::consts::TAU;

use serde::Deserialize;
use serde_json::{Map, Value};

/// The rotary embedding's settings in `config.json`: the object `rope_scaling`, or `rope_parameters` in newer files,
/// completed with top-level fields.
#[derive(Clone, Default, Deserialize)]
pub struct Rope {
    rope_type: Option<String>,
    /// The field `type`, which is the older name of `rope_type`. Some files have both fields.
    #[serde(rename = "type")]
    old_type: Option<String>,
    /// The base (theta) of the rotary embedding's frequencies; 10,000 if the configuration has none.
    rope_theta: Option<f64>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<f64>,
    partial_rotary_factor: Option<f64>,
}

impl Rope {
    /// Reads the rotary embedding's settings from `config`, a `config.json` completed with default values. They are in
    /// the object `rope_scaling` or, if that is empty, in `rope_parameters`; the other object is ignored. A `null`
    /// field counts as present. These are the Transformers library's rules (`convert_rope_params_to_dict` and
    /// `standardize_rope_params`).
    ///
    /// # Errors
    /// Returns the reason as a string if a field has an unsupported value.
    pub fn read(config: &Value) -> Result<Self, String> {
        let mut fields = described(config)?;
        if let Some((name, _)) = fields.iter().find(|(name, value)| value.is_object() || name.ends_with("_attention")) {
            return Err(format!("the rotary embedding has the field {name:?}: these models have one for all layers"));
        }
        for name in ["rope_theta", "partial_rotary_factor"] {
            if let Some(value) = config.get(name) {
                fields.entry(name).or_insert_with(|| value.clone());
            }
        }
        let original = "original_max_position_embeddings";
        if let Some(value) = config.get(original) {
            fields.insert(original.to_owned(), value.clone());
        }
        fields.entry(original).or_insert_with(|| config["max_position_embeddings"].clone());
        let type_field = if fields.contains_key("rope_type") { "rope_type" } else { "type" };
        if let Some(name) = ["rope_theta", type_field].into_iter().find(|name| fields.get(*name) == Some(&Value::Null))
        {
            return Err(format!("{name} null: give a value, or leave the field out"));
        }
        serde_path_to_error::deserialize(Value::Object(fields)).map_err(|error| error.to_string())
    }

    /// Returns the rotary embedding's type, which selects how its frequencies are scaled: `default`, `linear` or
    /// `llama3`.
    fn kind(&self) -> &str {
        self.rope_type.as_deref().or(self.old_type.as_deref()).unwrap_or("default")
    }

    /// Returns the maximum sequence length, in positions, of a model with this rotary embedding. `length` is the
    /// configuration's `max_position_embeddings`. Linear scaling multiplies it by the scaling factor, because it is
    /// often the length before the scaling.
    pub fn positions(&self, length: usize) -> usize {
        let factor = self.factor.filter(|factor| self.kind() == "linear" && *factor > 1.0).unwrap_or(1.0);
        (length as f64 * factor) as usize
    }

    /// Returns the rotary embedding's frequencies in radians per position, for heads of `head_size` elements. The
    /// frequency of the `i`-th pair of elements is `theta^(-2i / head_size)`, scaled as the configuration says.
    ///
    /// # Errors
    /// Returns the reason as a string if a field is missing or has an unsupported value.
    pub fn frequencies(&self, head_size: usize) -> Result<Vec<f32>, String> {
        let partial = self.partial_rotary_factor.unwrap_or(1.0);
        if partial != 1.0 {
            return Err(format!("partial_rotary_factor {partial}: these models rotate whole heads"));
        }
        let theta = self.rope_theta.unwrap_or(10_000.0);
        if !(theta > 0.0 && theta.is_finite()) {
            return Err(format!("rope_theta {theta}: give a number above 0"));
        }
        let plain = (0..head_size / 2).map(|pair| plain(theta as f32, pair, head_size));
        let kind = self.kind();
        let need = |name: &str, value: Option<f64>| match value {
            Some(value) if value > 0.0 && value.is_finite() => Ok(value),
            _ => Err(format!("the rotary embedding of the type {kind:?} needs {name} above 0")),
        };
        let scaled: Vec<f32> = match kind {
            "default" => plain.collect(),
            "linear" => {
                let factor = need("factor", self.factor)?;
                plain.map(|frequency| frequency / factor as f32).collect()
            }
            "llama3" => {
                let factor = need("factor", self.factor)?;
                let low = need("low_freq_factor", self.low_freq_factor)?;
                let high = need("high_freq_factor", self.high_freq_factor)?;
                let original = need("original_max_position_embeddings", self.original_max_position_embeddings)?;
                if high <= low {
                    return Err(format!("high_freq_factor {high} must be above low_freq_factor {low}"));
                }
                plain.map(|frequency| llama3(frequency, factor, [low, high], original)).collect()
            }
            other => return Err(format!("rope_type {other:?}: known are default, linear and llama3")),
        };
        match scaled.iter().all(|frequency| frequency.is_finite()) {
            true => Ok(scaled),
            false => Err(format!("the rotary embedding of the type {kind:?} has frequencies that are not finite")),
        }
    }
}

/// Returns the object in `config.json` that describes the rotary embedding: `rope_scaling` if it has fields, or else
/// `rope_parameters`; an empty object if neither has any.
fn described(config: &Value) -> Result<Map<String, Value>, String> {
    for name in ["rope_scaling", "rope_parameters"] {
        match config.get(name) {
            None | Some(Value::Null) => {}
            Some(Value::Object(fields)) if fields.is_empty() => {}
            Some(Value::Object(fields)) => return Ok(fields.clone()),
            Some(other) => return Err(format!("{name} {other}: give an object")),
        }
    }
    Ok(Map::new())
}

/// Returns the unscaled frequency, in radians per position, of the `pair`-th pair of a head's elements. With a head
/// size of `size`, it is `theta^(-2 pair / size)`.
fn plain(theta: f32, pair: usize, size: usize) -> f32 {
    let exponent = (2 * pair) as f32 / size as f32;
    // The power is computed in f64 and rounded to the nearest f32. PyTorch's f32 power may differ from it in the last
    // bit.
    (f64::from(theta).powf(f64::from(exponent)) as f32).recip()
}

/// Scales one rotary frequency (in radians per position) as Llama 3.1 does (Grattafiori et al., 2024,
/// arXiv:2407.21783), with the formula of Meta's `apply_scaling`. `original` is the context length before the scaling,
/// in positions:
///
/// - A frequency with fewer than `low` periods in the original context length is divided by `factor`.
/// - A frequency with more than `high` periods is unchanged.
/// - Between these two limits, the result is interpolated between the divided and the unchanged frequency.
fn llama3(frequency: f32, factor: f64, [low, high]: [f64; 2], original: f64) -> f32 {
    let [longest, shortest] = [low, high].map(|periods| (original / periods) as f32);
    let wavelength = frequency.recip() * TAU;
    if wavelength < shortest {
        return frequency;
    }
    if wavelength > longest {
        return frequency / factor as f32;
    }
    let share = (wavelength.recip() * original as f32 - low as f32) / (high - low) as f32;
    (1.0 - share) * frequency / factor as f32 + share * frequency
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn frequencies(rope: &Rope, theta: f64, size: usize) -> Vec<f32> {
        Rope { rope_theta: Some(theta), ..rope.clone() }.frequencies(size).unwrap()
    }

    /// Returns the configuration of the rotary embedding of Llama 3.2, for tests.
    fn llama32() -> Rope {
        Rope {
            rope_type: Some("llama3".to_owned()),
            factor: Some(32.0),
            low_freq_factor: Some(1.0),
            high_freq_factor: Some(4.0),
            original_max_position_embeddings: Some(8192.0),
            ..Rope::default()
        }
    }

    /// Returns the frequency of pair `pair` of a rotary embedding in f64, `theta` to the power of `-2 pair / size`, for
    /// heads of `size` elements. Also returns a bound on the relative error of the same frequency computed in f32.
    ///
    /// The bound is the sum of three rounding errors, each of at most half an ulp (unit in the last place): those of
    /// the power, the reciprocal and the exponent. The exponent is at most 1. Its error is multiplied by the logarithm
    /// of `theta`.
    fn exact(theta: f64, pair: usize, size: usize) -> (f64, f64) {
        let unit = f64::from(f32::EPSILON);
        (theta.powf(-2.0 * pair as f64 / size as f64), unit * (theta.ln() / 2.0 + 1.0))
    }

    #[test]
    fn frequencies_are_those_in_f64_within_the_precision_of_f32() {
        let linear = Rope { old_type: Some("linear".to_owned()), factor: Some(3.0), ..Rope::default() };
        for (theta, size) in [(10_000.0, 128), (500_000.0, 64), (1e6, 96), (77.5, 6)] {
            for (rope, factor) in [(&Rope::default(), 1.0), (&linear, 3.0)] {
                let found = frequencies(rope, theta, size);
                assert_eq!((found.len(), found[0]), (size / 2, 1.0 / factor as f32));
                for (pair, found) in found.into_iter().enumerate() {
                    let (exact, bound) = exact(theta, pair, size);
                    let off = (f64::from(found) * factor / exact - 1.0).abs();
                    assert!(off <= bound + f64::from(f32::EPSILON) / 2.0, "{theta} {size} {pair}: {off:e}");
                }
            }
        }
    }

    #[test]
    fn only_linear_scaling_lengthens_the_longest_sequence() {
        let linear = Rope { old_type: Some("linear".to_owned()), factor: Some(4.0), ..Rope::default() };
        assert_eq!([&linear, &llama32(), &Rope::default()].map(|rope| rope.positions(4096)), [16384, 4096, 4096]);
    }

    #[test]
    fn llama3_keeps_short_waves_and_divides_long_ones() {
        let (plain, scaled) = (frequencies(&Rope::default(), 500_000.0, 64), frequencies(&llama32(), 500_000.0, 64));
        let mut between = 0;
        for (pair, (plain, scaled)) in plain.into_iter().zip(scaled).enumerate() {
            let periods = 8192.0 * f64::from(plain) / std::f64::consts::TAU;
            if periods > 4.0 {
                assert_eq!(scaled, plain, "{pair}");
            } else if periods < 1.0 {
                assert_eq!(scaled, plain / 32.0, "{pair}");
            } else {
                between += 1;
                let (exact, bound) = exact(500_000.0, pair, 64);
                let share = (8192.0 * exact / std::f64::consts::TAU - 1.0) / 3.0;
                let expected = exact * ((1.0 - share) / 32.0 + share);
                let off = (f64::from(scaled) / expected - 1.0).abs();
                assert!(off < 8.0 * bound, "{pair}: {off:e}");
            }
        }
        assert_eq!(between, 3);
    }

    /// Tests the bits of the rotary embedding's frequencies. The expected bits were computed in Python from the formula
    /// of the Transformers library, with every result rounded to f32 where PyTorch rounds it.
    #[test]
    fn every_operation_is_rounded_to_f32_in_the_order_of_transformers() {
        let bits = |numbers: Vec<f32>| numbers.into_iter().map(f32::to_bits).collect::<Vec<_>>();
        let plain = bits(frequencies(&Rope::default(), 500_000.0, 64));
        assert_eq!(plain[..6], [0x3f80_0000, 0x3f29_e1c6, 0x3ee1_77bc, 0x3e95_9ee3, 0x3e46_93b0, 0x3e03_c6a0]);
        let scaled = bits(frequencies(&llama32(), 500_000.0, 64));
        assert_eq!(scaled[14..19], [0x3b52_7720, 0x3aa9_279b, 0x39e1_3620, 0x38cb_98f7, 0x37a3_418d]);
    }

    /// Tests which object of `config.json` describes the rotary embedding: `rope_scaling` or `rope_parameters`. The
    /// expected frequencies are those of the Transformers library 5.24 (LlamaConfig and LlamaRotaryEmbedding). For
    /// heads of 4 elements, they are 1 and 1 / sqrt(theta).
    #[test]
    fn one_object_describes_the_rotary_embedding_and_an_empty_one_counts_as_missing() {
        for (with, second) in [
            (json!({"rope_theta": 100.0}), 0.1),
            (json!({"rope_scaling": {}, "rope_parameters": {"rope_theta": 100.0}}), 0.1),
            (json!({"rope_scaling": null, "rope_parameters": {"rope_theta": 100.0}, "rope_theta": null}), 0.1),
            (json!({"rope_scaling": {"rope_theta": 100.0}, "rope_parameters": {"rope_theta": 7.0}}), 0.1),
            (json!({"rope_parameters": {"rope_theta": 100.0}, "rope_theta": 7.0}), 0.1),
            (json!({"rope_scaling": {"rope_type": "default"}, "rope_parameters": {"rope_theta": 7.0}}), 0.01),
            (
                json!({"rope_scaling": {"type": "default"}, "rope_parameters": {"rope_theta": 7.0}, "rope_theta": 100.0}),
                0.1,
            ),
            (json!({"rope_scaling": {"type": null, "rope_type": "default"}}), 0.01),
        ] {
            assert_eq!(Rope::read(&with).unwrap().frequencies(4).unwrap(), [1.0, second], "{with}");
        }
    }

    #[test]
    fn descriptions_of_rotary_embeddings_that_transformers_cannot_use_are_refused() {
        for (with, reason) in [
            (json!({"rope_theta": null}), "rope_theta null: give a value, or leave the field out"),
            (
                json!({"rope_parameters": {"rope_theta": null}, "rope_theta": 7.0}),
                "rope_theta null: give a value, or leave the field out",
            ),
            (json!({"rope_scaling": {"rope_type": null}}), "rope_type null: give a value, or leave the field out"),
            (json!({"rope_scaling": {"type": null}}), "type null: give a value, or leave the field out"),
            (json!({"rope_scaling": "linear"}), "rope_scaling \"linear\": give an object"),
            (
                json!({"rope_parameters": {"full_attention": {"rope_theta": 7.0}}}),
                "the rotary embedding has the field \"full_attention\": these models have one for all layers",
            ),
            (
                json!({"rope_parameters": {"sliding_attention": null}}),
                "the rotary embedding has the field \"sliding_attention\": these models have one for all layers",
            ),
            (
                json!({"rope_scaling": {}, "rope_parameters": {"partial_rotary_factor": 0.5}}),
                "partial_rotary_factor 0.5: these models rotate whole heads",
            ),
        ] {
            assert_eq!(Rope::read(&with).and_then(|rope| rope.frequencies(4)).unwrap_err(), reason, "{with}");
        }
    }

    /// Tests which field gives the context length before the scaling of the type `llama3`. A field
    /// `original_max_position_embeddings` at the top level of `config.json` has precedence over one in the description
    /// of the rotary embedding. The expected frequencies are those of the Transformers library 5.24 (LlamaConfig and
    /// LlamaRotaryEmbedding).
    #[test]
    fn the_original_length_at_the_top_level_has_precedence() {
        let rope = |original: Value| {
            let mut rope = json!({"rope_type": "llama3", "rope_theta": 100.0, "factor": 8.0, "low_freq_factor": 1.0});
            rope["high_freq_factor"] = 4.0.into();
            rope.as_object_mut().unwrap().extend(original.as_object().unwrap().clone());
            json!({"rope_parameters": rope, "max_position_embeddings": 64})
        };
        let inner = || rope(json!({"original_max_position_embeddings": 64}));
        let mut top = inner();
        top["original_max_position_embeddings"] = 16.into();
        for (with, expected) in [
            (inner(), [1.0_f32, 0.244_384_59, 0.013_042_256, 0.003_952_847_3]),
            (rope(json!({})), [1.0, 0.244_384_59, 0.013_042_256, 0.003_952_847_3]),
            (top.clone(), [0.576_056_36, 0.039_528_47, 0.0125, 0.003_952_847_3]),
        ] {
            let found = Rope::read(&with).unwrap().frequencies(8).unwrap();
            let off = found.iter().zip(expected).map(|(found, expected)| (found / expected - 1.0).abs());
            assert!(found.len() == 4 && off.fold(0.0, f32::max) < 1e-6, "{with}: {found:?}");
        }
        top["original_max_position_embeddings"] = Value::Null;
        for with in [top, rope(json!({"original_max_position_embeddings": null}))] {
            let reason = Rope::read(&with).unwrap().frequencies(8).unwrap_err();
            assert!(reason.ends_with("needs original_max_position_embeddings above 0"), "{reason}");
        }
    }
}
