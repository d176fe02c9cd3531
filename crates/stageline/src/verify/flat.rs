//! Arithmetic with all gradients of a model as one list of numbers.

use super::difference::wide;
use crate::update::clip::{Clip, Scaling};
use crate::update::parameter_gradient::ParameterGradient;

/// The gradients of all parameters of a model as one list of numbers, joined in the model's order.
pub(super) type Flat = Vec<f64>;

/// Joins the gradients of all parameters of a model, before clipping, into one list of numbers.
pub(super) fn flat(gradients: &[ParameterGradient]) -> Flat {
    gradients.iter().flat_map(|gradient| wide(&gradient.summed)).collect()
}

/// Adds the gradients `values`, multiplied by `factor`, to the gradients `sum`, number by number.
pub(super) fn add(sum: &mut Flat, values: &Flat, factor: f64) {
    sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += factor * value);
}

/// Returns the scalar product of two lists of numbers, each with the gradients of all parameters.
pub(super) fn dot(a: &Flat, b: &Flat) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Clips one list of gradients alone: by the norm of this list, or by value. Without `clip`, returns the list
/// unchanged.
pub(super) fn clipped(mut gradients: Flat, clip: Option<Clip>) -> Flat {
    let norm = dot(&gradients, &gradients).sqrt();
    match clip.map_or(Scaling::Keep, |clip| clip.scaling(norm)) {
        Scaling::Keep => {}
        Scaling::By(factor) => gradients.iter_mut().for_each(|value| *value *= factor),
        Scaling::Within(bound) => gradients.iter_mut().for_each(|value| *value = value.clamp(-bound, bound)),
    }
    gradients
}
