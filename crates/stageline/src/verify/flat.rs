//! Arithmetic on the gradients of all parameters of a model, joined into one flat vector.

use super::difference::wide;
use crate::update::clip::{Clip, Scaling};
use crate::update::parameter_gradient::ParameterGradient;

/// The gradients of all parameters of a model as one flat vector, in the model's parameter order.
pub(super) type Flat = Vec<f64>;

/// Joins the gradients of all parameters of a model, before clipping, into one flat vector.
pub(super) fn flat(gradients: &[ParameterGradient]) -> Flat {
    gradients.iter().flat_map(|gradient| wide(&gradient.summed)).collect()
}

/// Computes `sum += factor * values`, element by element.
pub(super) fn add(sum: &mut Flat, values: &Flat, factor: f64) {
    sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += factor * value);
}

pub(super) fn dot(a: &Flat, b: &Flat) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Clips a model's gradients, which are given as one flat vector, and returns them. The setting `clip` limits either
/// the norm of the whole vector or the magnitude of each element; `None` changes nothing.
pub(super) fn clipped(mut gradients: Flat, clip: Option<Clip>) -> Flat {
    let norm = dot(&gradients, &gradients).sqrt();
    match clip.map_or(Scaling::Keep, |clip| clip.scaling(norm)) {
        Scaling::Keep => {}
        Scaling::By(factor) => gradients.iter_mut().for_each(|value| *value *= factor),
        Scaling::Within(bound) => gradients.iter_mut().for_each(|value| *value = value.clamp(-bound, bound)),
    }
    gradients
}
