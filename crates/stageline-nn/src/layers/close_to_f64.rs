//! Compares f32 tensors with values that a test has computed in f64.

use burn::tensor::Tensor;

pub fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    tensor.into_data().iter::<f32>().map(f64::from).collect()
}

/// Returns the largest difference between an element of `found` and the element of `exact` at the same index. A
/// difference is relative if the exact value is above 1 in magnitude, and absolute otherwise.
///
/// # Panics
/// Panics if the lists differ in length, or if a difference is not finite, which `f64::max` would drop.
pub fn apart(found: &[f64], exact: &[f64]) -> f64 {
    assert_eq!(found.len(), exact.len());
    found
        .iter()
        .zip(exact)
        .map(|(found, exact)| (found - exact).abs() / exact.abs().max(1.0))
        .inspect(|apart| assert!(apart.is_finite()))
        .fold(0.0, f64::max)
}
