//! Computes the costs of micro-batches of another size from two runs of the same model.

use super::error::PredictError;
use super::measured::{LayerCost, Measured};

impl Measured {
    /// Computes the costs of micro-batches of another size from two runs of the same model: this run and `other`.
    /// `tokens` is the new size: the number of tokens in one micro-batch, summed over the data-parallel replicas
    /// (samples, if the data has no tokens).
    ///
    /// Every time per micro-batch is assumed to be a linear function of the size, and at least 0. A time that was
    /// shorter with the larger micro-batches stays constant outside the range of the two sizes. Predictions from the
    /// result do not include memory.
    ///
    /// # Errors
    /// Returns [`PredictError::Size`] if the micro-batches of both runs have the same size, if the models differ in
    /// their number of layers, or if `tokens` is not above 0. Returns [`PredictError::NotSlower`] if the larger
    /// micro-batches took no longer than the smaller ones.
    pub fn with_size(&self, other: &Self, tokens: f64) -> Result<Self, PredictError> {
        let distance = other.tokens - self.tokens;
        if distance == 0.0 || self.layers.len() != other.layers.len() || tokens.is_nan() || tokens <= 0.0 {
            return Err(PredictError::Size {
                size: tokens,
                unit: self.unit,
                of_runs: [self.tokens, other.tokens],
                layers: [self.layers.len(), other.layers.len()],
            });
        }
        let [own, others] = [self, other].map(Self::passes);
        if (others - own) * distance <= 0.0 {
            let of_runs = [(self.tokens, own), (other.tokens, others)];
            return Err(PredictError::NotSlower { unit: self.unit, of_runs });
        }
        let share = (tokens - self.tokens) / distance;
        let mix = |one: f64, other: f64| match (other - one) * distance < 0.0 {
            // The larger micro-batches took less time, because of noise or because this cost does not grow with the
            // size. Outside the range of the two sizes, the cost stays at its value for the nearer size.
            true => one + share.clamp(0.0, 1.0) * (other - one),
            // Below the smaller size, the linear function may fall below 0, but a time cannot be negative.
            false => (one + share * (other - one)).max(0.0),
        };
        let layer = |(one, other): (&LayerCost, &LayerCost)| LayerCost {
            forward: mix(one.forward, other.forward),
            backward: mix(one.backward, other.backward),
            input_gradient: mix(one.input_gradient, other.input_gradient).min(mix(one.backward, other.backward)),
            flush: f64::midpoint(one.flush, other.flush),
        };
        let bytes = self.boundary_bytes.iter().zip(&other.boundary_bytes).find(|(one, other)| one.len() == other.len());
        Ok(Self {
            layers: self.layers.iter().zip(&other.layers).map(layer).collect(),
            footprint: None,
            tokens,
            weight: tokens / self.tokens * self.weight,
            step_overhead: f64::midpoint(self.step_overhead, other.step_overhead),
            action_overhead: mix(self.action_overhead, other.action_overhead),
            send_seconds: mix(self.send_seconds, other.send_seconds),
            variation: f64::midpoint(self.variation, other.variation),
            boundary_bytes: bytes
                .map(|(one, other)| one.iter().zip(other).map(|(one, other)| mix(*one, *other)).collect()),
            ..self.clone()
        })
    }

    /// Returns the time of a micro-batch's forward and backward pass through all layers, in seconds.
    fn passes(&self) -> f64 {
        self.layers.iter().map(|layer| layer.forward + layer.backward).sum()
    }
}
