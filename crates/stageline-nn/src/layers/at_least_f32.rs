//! The dtype for computations that need more range or precision than half precision has ([`at_least_f32`]).

use burn::tensor::FloatDType;

/// Returns the dtype in which a layer computes a sum or a scale of elements of the dtype `given`: F32, but F64 for F64.
pub fn at_least_f32(given: FloatDType) -> FloatDType {
    if given == FloatDType::F64 { given } else { FloatDType::F32 }
}
