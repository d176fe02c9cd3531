//! Compares the gradients of two runs of one model, parameter by parameter: a verified run, and its reference on one
//! device.

use std::fmt;

use super::VerifyError;
use crate::update::parameter_gradient::ParameterGradient;

/// The difference between two gradients of one parameter in the first step: one from the verified run, and one from its
/// reference (the same training on one device).
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// Zero-based index of the stage that trains the parameter whose gradients are compared.
    pub stage: usize,
    /// The path, in the stage's module, of the parameter whose gradients are compared, such as `0.linear.weight`.
    pub path: String,
    /// The relative difference: the L2 norm of the difference between a parameter's gradients in the verified run and
    /// in its reference, divided by the norm of the reference's gradient. The divisor is at least a thousandth of the
    /// norm of all gradients, so that rounding in a gradient of zero does not count. Of the values before and after
    /// clipping, this is the larger one.
    pub relative: f64,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1e} {} of stage {}", self.relative, self.path, self.stage)
    }
}

/// Compares the gradients of two training runs, and returns the relative difference for each parameter. Each result is
/// the larger of the differences before and after clipping, because clipping can hide that gradients are too large.
pub(super) fn differences(
    configured: &[ParameterGradient],
    reference: &[ParameterGradient],
) -> Result<Vec<Difference>, VerifyError> {
    same_parameters(configured, reference)?;
    let norm = |values: fn(&ParameterGradient) -> &[f32]| {
        reference.iter().flat_map(|gradient| wide(values(gradient))).map(|value| value * value).sum::<f64>().sqrt()
    };
    let norms = [norm(|gradient| &gradient.summed), norm(|gradient| &gradient.applied)];
    let pairs = configured.iter().zip(reference);
    let difference = |(configured, reference): (&ParameterGradient, &ParameterGradient)| {
        let summed = relative(wide(&configured.summed), wide(&reference.summed), norms[0]);
        let applied = relative(wide(&configured.applied), wide(&reference.applied), norms[1]);
        let relative = if (summed + applied).is_nan() { f64::NAN } else { applied.max(summed) };
        Difference { stage: reference.stage, path: reference.path.clone(), relative }
    };
    Ok(pairs.map(difference).collect())
}

/// Returns the largest of `differences`: that of the parameter whose gradients differ most between the verified run and
/// its reference on one device. `None` if there are no parameters.
pub(super) fn worst(differences: &[Difference]) -> Option<&Difference> {
    differences.iter().max_by(|a, b| a.relative.total_cmp(&b.relative))
}

/// Checks that the gradients of two training runs belong to the same parameters. Returns an error if the two lists have
/// different lengths, or gradients of different sizes at the same position.
fn same_parameters(configured: &[ParameterGradient], reference: &[ParameterGradient]) -> Result<(), VerifyError> {
    let describe = |gradient: Option<&ParameterGradient>| match gradient {
        Some(gradient) => format!("`{}` of {} elements", gradient.path, gradient.applied.len()),
        None => "none".to_owned(),
    };
    let sizes =
        |gradient: Option<&ParameterGradient>| gradient.map(|gradient| (gradient.summed.len(), gradient.applied.len()));
    for at in 0..configured.len().max(reference.len()) {
        let (found, expected) = (configured.get(at), reference.get(at));
        if sizes(found) != sizes(expected) {
            return Err(VerifyError::Gradients { at, found: describe(found), expected: describe(expected) });
        }
    }
    Ok(())
}

/// Returns the relative difference between two gradients of a parameter: the L2 norm of `values` minus `reference`,
/// divided by the norm of `reference`. The result is 0 if the two are equal. The divisor is at least a thousandth of
/// `norm_of_all`, the norm of the gradients of all parameters.
pub(super) fn relative(
    values: impl Iterator<Item = f64>,
    reference: impl Iterator<Item = f64>,
    norm_of_all: f64,
) -> f64 {
    let (difference, norm) = values.zip(reference).fold((0.0, 0.0), |(difference, norm), (value, reference)| {
        (difference + (value - reference) * (value - reference), norm + reference * reference)
    });
    if difference == 0.0 { 0.0 } else { difference.sqrt() / norm.sqrt().max(1e-3 * norm_of_all) }
}

pub(super) fn wide(values: &[f32]) -> impl Iterator<Item = f64> {
    values.iter().copied().map(f64::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gradient(path: &str, values: &[f32]) -> ParameterGradient {
        ParameterGradient::new(0, path, values.to_vec(), values.to_vec())
    }

    #[test]
    fn differences_are_relative_and_rounding_of_a_zero_gradient_does_not_count() {
        let reference = [gradient("large", &[3.0, 4.0]), gradient("nothing", &[0.0, 1e-9])];
        let configured = [gradient("large", &[3.0, 4.5]), gradient("nothing", &[1e-9, 0.0])];
        let found = differences(&configured, &reference).unwrap();
        assert!((found[0].relative - 0.1).abs() < 1e-12 && found[1].relative < 1e-6, "{found:?}");
        assert_eq!(found[0].to_string(), "1.0e-1 large of stage 0");
    }

    #[test]
    fn gradients_of_other_parameters_are_rejected() {
        let (one, two) = (gradient("a", &[1.0]), gradient("b", &[1.0, 2.0]));
        let error = differences(std::slice::from_ref(&one), &[one.clone(), two.clone()]).unwrap_err().to_string();
        assert!(error.contains("gradient 1 of the training that is verified is none"), "{error}");
        let error = differences(&[two], &[one]).unwrap_err().to_string();
        assert!(error.contains("is `b` of 2 elements, where the model has `a` of 1 elements"), "{error}");
    }
}
