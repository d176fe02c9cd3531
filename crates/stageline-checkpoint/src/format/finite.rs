//! Finds the first infinity or NaN in a tensor, because no checkpoint may contain one.

use safetensors::Dtype;

use crate::format::tensor::Tensor;

/// Returns the first element of a tensor that is infinite or NaN: its index in row-major order, and its value. Returns
/// `None` if all elements are finite.
///
/// Only F16, BF16, F32, F64 and C64 are searched. Tensors of all other dtypes, such as 8-bit floats, may contain any
/// value.
pub(crate) fn first_not_finite(tensor: &Tensor) -> Option<(usize, f64)> {
    let bytes = &tensor.bytes;
    match tensor.dtype {
        Dtype::F16 => first(bytes, |[a, b]| f16(u16::from_le_bytes([a, b]))),
        Dtype::BF16 => first(bytes, |[a, b]| f32::from_le_bytes([0, 0, a, b]).into()),
        Dtype::F32 => first(bytes, |element| f32::from_le_bytes(element).into()),
        Dtype::C64 => first(bytes, |part| f32::from_le_bytes(part).into()).map(|(part, value)| (part / 2, value)),
        Dtype::F64 => first(bytes, f64::from_le_bytes),
        _ => None,
    }
}

fn first<const N: usize>(bytes: &[u8], value: impl Fn([u8; N]) -> f64) -> Option<(usize, f64)> {
    let (elements, _) = bytes.as_chunks::<N>();
    elements.iter().enumerate().map(|(i, &element)| (i, value(element))).find(|(_, value)| !value.is_finite())
}

/// Converts the bits of a half-precision float (F16) to f64, for the search for infinities and NaNs only: every finite
/// value becomes 0.
fn f16(bits: u16) -> f64 {
    match (bits & 0x7C00 == 0x7C00, bits & 0x03FF, bits >> 15) {
        (false, ..) => 0.0,
        (true, 0, 0) => f64::INFINITY,
        (true, 0, _) => f64::NEG_INFINITY,
        (true, ..) => f64::NAN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(dtype: Dtype, elements: &[&[u8]]) -> Option<(usize, String)> {
        let tensor = Tensor::new(dtype, vec![elements.len()], elements.concat().into());
        first_not_finite(&tensor).map(|(index, value)| (index, value.to_string()))
    }

    #[test]
    fn every_float_type_is_searched() {
        let some = |index, value: &str| Some((index, value.to_owned()));
        let (one, nan) = (1f32.to_le_bytes(), f32::NAN.to_le_bytes());
        assert_eq!(found(Dtype::F32, &[&one, &nan]), some(1, "NaN"));
        assert_eq!(found(Dtype::F32, &[&one, &f32::MAX.to_le_bytes()]), None);
        assert_eq!(found(Dtype::F64, &[&f64::NEG_INFINITY.to_le_bytes()]), some(0, "-inf"));
        assert_eq!(found(Dtype::F64, &[&f64::MAX.to_le_bytes()]), None);
        assert_eq!(found(Dtype::F16, &[&[0xFF, 0x7B], &[0x00, 0x7C]]), some(1, "inf"));
        assert_eq!(found(Dtype::F16, &[&[0x00, 0xFC]]), some(0, "-inf"));
        assert_eq!(found(Dtype::F16, &[&[0x01, 0x7C]]), some(0, "NaN"));
        assert_eq!(found(Dtype::BF16, &[&[0x7F, 0x7F], &[0x80, 0x7F]]), some(1, "inf"));
        assert_eq!(found(Dtype::BF16, &[&[0x81, 0xFF]]), some(0, "NaN"));
        assert_eq!(found(Dtype::C64, &[&[one, one].concat(), &[one, nan].concat()]), some(1, "NaN"));
        assert_eq!(found(Dtype::U8, &[&[0xFF]]), None);
    }
}
