//! Compares a model's parameters after one step of a pipeline with those after the same step of a plain training loop,
//! by name and bit for bit ([`ParameterDifference`]).

use std::collections::HashMap;
use std::fmt;

use burn::tensor::{DType, TensorData};

use super::error::VerifyError;
use crate::state::layout::NamedTensor;

/// The difference between the values of one parameter after one step of a pipeline and after the same step of a plain
/// training loop.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ParameterDifference {
    /// Zero-based index of the stage that trains the differing parameter.
    pub stage: usize,
    /// The name, in checkpoints, of the differing parameter, such as `blocks.1.up.weight`.
    pub name: String,
    /// The number of all elements of the differing parameter, including those with equal values.
    pub elements: usize,
    /// The number of elements of the parameter whose bits after the pipeline's step and after the plain training loop's
    /// step differ.
    pub differing: usize,
    /// The largest absolute difference between an element's values after the pipeline's step and after the plain
    /// training loop's step. Infinite if one of the two is NaN.
    pub largest: f64,
    /// The largest difference, in units in the last place (ULPs), between an element's values after the pipeline's step
    /// and after the plain training loop's step. It counts the steps from one float to the next. 0 if the parameter has
    /// no floats.
    pub ulps: u64,
}

impl fmt::Display for ParameterDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stage, name, elements, differing, largest, ulps } = self;
        write!(f, "{name} of stage {stage}: {differing} of {elements} elements, by at most {largest:.1e} ({ulps} ulps)")
    }
}

/// Compares the tensors of two models by name: after one step of a pipeline, and after the same step of a plain
/// training loop. Returns the difference of each tensor whose bits differ, ordered from the loss to the model's input.
/// Returns an error if the two models do not have the same tensors.
pub(super) fn differences(
    found: &[NamedTensor],
    expected: &[NamedTensor],
) -> Result<Vec<ParameterDifference>, VerifyError> {
    let mut by_name: HashMap<&str, &NamedTensor> = found.iter().map(|tensor| (&*tensor.name, tensor)).collect();
    let mut differences = Vec::new();
    for expected in expected.iter().rev() {
        let found = by_name.remove(&*expected.name);
        let Some(found) = found.filter(|found| kind(&found.data) == kind(&expected.data)) else {
            return Err(other_model(found, Some(expected)));
        };
        differences.extend(difference(found, expected));
    }
    match by_name.into_values().min_by(|a, b| a.name.cmp(&b.name)) {
        Some(extra) => Err(other_model(Some(extra), None)),
        None => Ok(differences),
    }
}

fn kind(data: &TensorData) -> (DType, &[usize]) {
    (data.dtype(), data.shape().as_slice())
}

/// Returns the error for a tensor that only one of two compared models has, or that has different shapes or dtypes in
/// the two models.
fn other_model(found: Option<&NamedTensor>, expected: Option<&NamedTensor>) -> VerifyError {
    let describe = |tensor: Option<&NamedTensor>| match tensor {
        Some(NamedTensor { name, data, .. }) => {
            let (dtype, shape) = kind(data);
            format!("`{name}` of shape {shape:?} in {dtype:?}")
        }
        None => "no such parameter".to_owned(),
    };
    VerifyError::OtherModel { found: describe(found), expected: describe(expected) }
}

fn difference(found: &NamedTensor, expected: &NamedTensor) -> Option<ParameterDifference> {
    if found.data.as_bytes() == expected.data.as_bytes() {
        return None;
    }
    let width = width(&expected.data);
    let [bits, expected_bits] = [found, expected].map(|tensor| bits(&tensor.data, width));
    let [values, expected_values] = [found, expected].map(|tensor| values(&tensor.data));
    let mut difference = ParameterDifference {
        stage: expected.stage,
        name: expected.name.to_string(),
        elements: expected_bits.len(),
        differing: 0,
        largest: 0.0,
        ulps: 0,
    };
    let is_float = expected.data.dtype().is_float();
    for (at, (bits, expected_bits)) in bits.into_iter().zip(expected_bits).enumerate() {
        if bits == expected_bits {
            continue;
        }
        let apart = (values[at] - expected_values[at]).abs();
        difference.differing += 1;
        difference.largest = difference.largest.max(if apart.is_nan() { f64::INFINITY } else { apart });
        if is_float {
            difference.ulps = difference.ulps.max(ulps(bits, expected_bits, width));
        }
    }
    Some(difference)
}

/// Returns the size in bytes of one element of a tensor, for a comparison of bits. It is 1 for a quantized tensor,
/// because its elements are packed and its bytes are compared instead.
fn width(data: &TensorData) -> usize {
    match data.dtype() {
        DType::QFloat(_) => 1,
        dtype => dtype.size(),
    }
}

/// Returns the elements of a tensor as f64 values. For a quantized tensor, these are its bytes.
fn values(data: &TensorData) -> Vec<f64> {
    match data.dtype() {
        DType::QFloat(_) => data.as_bytes().iter().copied().map(f64::from).collect(),
        _ => data.iter::<f64>().collect(),
    }
}

/// Returns the bits of each element of a tensor as an integer. `width` is the size of an element in bytes.
fn bits(data: &TensorData, width: usize) -> Vec<u64> {
    let of_element = |bytes: &[u8]| bytes.iter().rev().fold(0, |bits, byte| bits << 8 | u64::from(*byte));
    data.as_bytes().chunks_exact(width).map(of_element).collect()
}

/// Returns the distance between two floats in units in the last place (ULPs), which is the number of steps from one
/// float to the next. `a` and `b` are the bits of the floats, each `width` bytes wide.
fn ulps(a: u64, b: u64, width: usize) -> u64 {
    let sign = 1_u64 << (8 * width - 1);
    // Floats of the same sign are ordered as their bits, and negative floats in the reverse order.
    let rank = |bits: u64| if bits & sign == 0 { i128::from(bits) } else { -i128::from(bits & (sign - 1)) };
    u64::try_from((rank(a) - rank(b)).unsigned_abs()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(stage: usize, name: &str, values: &[f32]) -> NamedTensor {
        let data = TensorData::new(values.to_vec(), [values.len()]);
        NamedTensor { stage, name: name.into(), path: name.to_owned(), data }
    }

    #[test]
    fn differing_elements_are_counted_and_measured_in_ulps() {
        let next = f32::from_bits(1.0_f32.to_bits() + 3);
        let expected = [tensor(0, "same", &[1.0]), tensor(0, "far", &[1.0, 2.0]), tensor(1, "near", &[1.0, 0.5])];
        let found = [tensor(0, "same", &[1.0]), tensor(0, "far", &[-1.0, f32::NAN]), tensor(1, "near", &[next, 0.5])];
        let [near, far] = <[_; 2]>::try_from(differences(&found, &expected).unwrap()).unwrap();
        assert_eq!((near.stage, &*near.name, near.elements, near.differing, near.ulps), (1, "near", 2, 1, 3));
        assert!((near.largest / (f64::from(next) - 1.0) - 1.0).abs() < 1e-12);
        let from_minus_one_to_one = 2 * u64::from(1.0_f32.to_bits());
        assert_eq!((far.differing, far.largest), (2, f64::INFINITY));
        assert!(far.ulps >= from_minus_one_to_one, "{far}");
        assert_eq!(near.to_string(), "near of stage 1: 1 of 2 elements, by at most 3.6e-7 (3 ulps)");
    }

    #[test]
    fn floats_of_every_width_are_counted_from_one_to_the_next() {
        assert_eq!(ulps(1.0_f64.to_bits(), 1.0_f64.next_up().to_bits(), 8), 1);
        assert_eq!(ulps((-0.0_f64).to_bits(), 0.0_f64.to_bits(), 8), 0);
        // These are the bf16 numbers directly before and after zero.
        assert_eq!(ulps(0x8001, 0x0001, 2), 2);
    }

    #[test]
    fn models_with_other_parameters_are_rejected() {
        let (a, b) = (tensor(0, "a", &[1.0]), tensor(0, "b", &[1.0]));
        let error = differences(&[a], &[b]).err().unwrap().to_string();
        assert!(error.contains("no such parameter") && error.contains("`b` of shape [1] in F32"), "{error}");
        let (one, two) = (tensor(0, "a", &[1.0]), tensor(0, "a", &[1.0, 2.0]));
        let error = differences(std::slice::from_ref(&two), std::slice::from_ref(&one)).err().unwrap().to_string();
        assert!(error.contains("`a` of shape [2] in F32") && error.contains("`a` of shape [1] in F32"), "{error}");
        let error = differences(&[one, tensor(1, "c", &[1.0])], &[tensor(0, "a", &[1.0])]).err().unwrap().to_string();
        assert!(error.contains("`c` of shape [1] in F32"), "{error}");
    }
}
