//! The health of each parameter: training statistics of one step, such as gradient norm, update size, fraction of zeros
//! and a histogram of the gradient.

use std::collections::HashMap;

use burn::module::{Module, ParamId};
use burn::optim::GradientsParams;

use stageline_nn::params::{Named, named_gradients, values_by_id};

/// The health of one parameter in one training step: the size of its update, and the norm, fraction of zeros and
/// histogram of its gradient. Norms are Euclidean, over all elements of the parameter.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ParameterHealth {
    /// Zero-based index of the stage that trains this parameter.
    pub stage: usize,
    /// The name of the parameter in checkpoints, such as `blocks.3.linear.weight`.
    pub name: String,
    /// The Euclidean norm of the parameter's gradient, which is summed over all micro-batches of the step and not yet
    /// clipped.
    pub gradient_norm: f64,
    /// The Euclidean norm of the parameter's values after the optimizer step.
    pub parameter_norm: f64,
    /// The Euclidean norm of the parameter's update: the difference between its values after and before the optimizer
    /// step.
    pub update_norm: f64,
    /// The optimizer's second moment of the gradient (a running mean of its square), averaged over the parameter's
    /// elements. `None` unless the optimizer is Adam, AdamW, Lamb, Adan or RMSProp. If the second moment grows while
    /// the loss does not fall, the gradients are mostly noise.
    pub second_moment: Option<f64>,
    /// The fraction, from 0 to 1, of the gradient's elements that are exactly 0.
    pub zeros: f64,
    /// The histogram of the magnitudes of the gradient's elements, before clipping.
    pub histogram: Histogram,
}

impl ParameterHealth {
    /// Returns the norm of the parameter's update divided by the norm of the parameter. A ratio of about 1e-3 is usual.
    /// The result is 0 if the parameter's norm is 0.
    pub fn update_ratio(&self) -> f64 {
        if self.parameter_norm > 0.0 { self.update_norm / self.parameter_norm } else { 0.0 }
    }
}

/// A histogram of the magnitudes of a gradient's elements, with one bin for each power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Histogram {
    counts: [u64; Self::BINS],
}

impl Histogram {
    /// The number of bins in a histogram of a gradient's elements: one for magnitudes below 2^-32, and one for each of
    /// the 39 powers of two from there on.
    pub const BINS: usize = 40;

    /// Base-2 exponent of the lower end of the histogram's second bin. The first bin counts all smaller magnitudes
    /// except 0, and the last bin has no upper end.
    const LOWEST: i32 = -32;

    fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut counts = [0; Self::BINS];
        for value in values.filter(|value| *value != 0.0) {
            let bin = value.abs().log2().floor() - f64::from(Self::LOWEST) + 1.0;
            counts[bin.clamp(0.0, (Self::BINS - 1) as f64) as usize] += 1;
        }
        Self { counts }
    }

    /// Returns the histogram's bins in ascending order of magnitude: the lower end of each bin, and the number of
    /// values in it. Zeros are in no bin.
    pub fn bins(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        let from = |bin: usize| if bin == 0 { 0.0 } else { 2.0_f64.powi(Self::LOWEST + bin as i32 - 1) };
        self.counts.iter().enumerate().map(move |(bin, count)| (from(bin), *count))
    }
}

/// A stage's parameter values and gradients, saved before an optimizer step. A comparison with the values after the
/// step gives the health (training statistics) of each parameter.
pub(crate) struct Examination {
    gradients: Vec<Named>,
    values: HashMap<ParamId, Vec<f32>>,
}

impl Examination {
    pub(crate) fn before<M: Module>(module: &M, gradients: &GradientsParams) -> Self {
        Self { gradients: named_gradients(module, gradients), values: values_by_id(module) }
    }

    /// Compares a stage's parameter values before and after its optimizer step. Returns the health (such as the size of
    /// the update) of every parameter with a gradient. The names in the result are empty, because a stage does not know
    /// its parameters' names in checkpoints.
    pub(crate) fn after<M: Module>(
        self,
        stage: usize,
        module: &M,
        second_moments: &HashMap<ParamId, f64>,
    ) -> Vec<(ParamId, ParameterHealth)> {
        let after = values_by_id(module);
        let health = |Named { id, gradient, .. }: Named| {
            let gradient = gradient?;
            let elements = || gradient.iter().copied().map(f64::from);
            let (before, after) = (&self.values[&id], &after[&id]);
            let health = ParameterHealth {
                stage,
                name: String::new(),
                gradient_norm: norm(elements()),
                parameter_norm: norm(after.iter().copied().map(f64::from)),
                update_norm: norm(
                    after.iter().zip(before).map(|(after, before)| f64::from(*after) - f64::from(*before)),
                ),
                second_moment: second_moments.get(&id).copied(),
                zeros: elements().filter(|element| *element == 0.0).count() as f64 / gradient.len().max(1) as f64,
                histogram: Histogram::of(elements()),
            };
            Some((id, health))
        };
        self.gradients.into_iter().filter_map(health).collect()
    }
}

fn norm(elements: impl Iterator<Item = f64>) -> f64 {
    elements.map(|element| element * element).sum::<f64>().sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_histogram_counts_magnitudes_in_powers_of_two() {
        let histogram = Histogram::of([0.0, 1.0, -1.5, 2.0, 1e-30, 1e30].into_iter());
        let counted: Vec<_> = histogram.bins().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counted, [(0.0, 1), (1.0, 2), (2.0, 1), (2.0_f64.powi(6), 1)]);
    }
}
