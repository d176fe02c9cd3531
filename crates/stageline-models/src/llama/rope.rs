//! The frequencies of a rotary embedding, as `config.json` describes them ([`Rope`]).

use std::f64::consts::TAU;

use serde::Deserialize;

/// The fields of `config.json` about the rotary embedding: `rope_scaling`, or `rope_parameters` in newer files.
#[derive(Clone, Default, Deserialize)]
pub struct Rope {
    rope_type: Option<String>,
    /// The field `type`, which older files have instead of `rope_type`; some files have both.
    #[serde(rename = "type")]
    old_type: Option<String>,
    rope_theta: Option<f64>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<f64>,
    partial_rotary_factor: Option<f64>,
}

/// The fields of `config.json` that determine the frequencies of the rotary embedding together with those in [`Rope`].
pub struct Around {
    pub rope_theta: Option<f64>,
    pub partial_rotary_factor: Option<f64>,
    /// The longest sequence that the model is made for, in tokens.
    pub positions: usize,
    /// The number of elements of a head's query or key.
    pub head_size: usize,
}

impl Rope {
    /// Returns the frequencies of the rotary embedding in radians per position: `theta` to the power of `-2 i / size`
    /// for pair i of a head's `size` elements, scaled as the configuration says.
    ///
    /// # Errors
    /// Returns the reason as text if a field is missing or has a value that this crate does not support.
    pub fn frequencies(&self, around: &Around) -> Result<Vec<f32>, String> {
        let partial = self.partial_rotary_factor.or(around.partial_rotary_factor).unwrap_or(1.0);
        if partial != 1.0 {
            return Err(format!("partial_rotary_factor {partial}: these models rotate whole heads"));
        }
        let theta = self.rope_theta.or(around.rope_theta).unwrap_or(10_000.0);
        if !(theta > 0.0 && theta.is_finite()) {
            return Err(format!("rope_theta {theta}: give a number above 0"));
        }
        let plain = (0..around.head_size / 2).map(|pair| theta.powf(-2.0 * pair as f64 / around.head_size as f64));
        let kind = self.rope_type.as_deref().or(self.old_type.as_deref()).unwrap_or("default");
        let need = |name: &str, value: Option<f64>| match value {
            Some(value) if value > 0.0 && value.is_finite() => Ok(value),
            _ => Err(format!("the rotary embedding of the type {kind:?} needs {name} above 0")),
        };
        let scaled: Vec<f64> = match kind {
            "default" => plain.collect(),
            "linear" => {
                let factor = need("factor", self.factor)?;
                plain.map(|frequency| frequency / factor).collect()
            }
            "llama3" => {
                let factor = need("factor", self.factor)?;
                let low = need("low_freq_factor", self.low_freq_factor)?;
                let high = need("high_freq_factor", self.high_freq_factor)?;
                let original = self.original_max_position_embeddings.unwrap_or(around.positions as f64);
                let original = need("original_max_position_embeddings", Some(original))?;
                if high <= low {
                    return Err(format!("high_freq_factor {high} must be above low_freq_factor {low}"));
                }
                plain.map(|frequency| llama3(frequency, factor, [low, high], original)).collect()
            }
            other => return Err(format!("rope_type {other:?}: known are default, linear and llama3")),
        };
        let scaled: Vec<_> = scaled.into_iter().map(|frequency| frequency as f32).collect();
        match scaled.iter().all(|frequency| frequency.is_finite()) {
            true => Ok(scaled),
            false => Err(format!("the rotary embedding of the type {kind:?} has frequencies that are not finite")),
        }
    }
}

/// Scales one frequency of the rotary embedding (in radians per position) as Llama 3.1 does. `original` is the context
/// length before the scaling, in positions. A frequency with fewer than `low` periods in this length is divided by
/// `factor`, one with more than `high` periods is kept, and between the two the result is interpolated (Grattafiori et
/// al., 2024, arXiv:2407.21783; the formula is that of Meta's `apply_scaling`).
fn llama3(frequency: f64, factor: f64, [low, high]: [f64; 2], original: f64) -> f64 {
    let waves = original * frequency / TAU;
    let share = ((waves - low) / (high - low)).clamp(0.0, 1.0);
    (1.0 - share) * frequency / factor + share * frequency
}
