//! A tensor that depends on no framework: [`Tensor`] is a dtype, a shape and bytes.

use std::fmt;

use bytes::Bytes;
use safetensors::Dtype;

/// A tensor as raw bytes: little-endian elements in row-major order, with their dtype and shape.
#[derive(Clone, PartialEq)]
pub struct Tensor {
    /// The dtype of a tensor in a checkpoint, such as F32.
    pub dtype: Dtype,
    /// The shape of a tensor in a checkpoint: the length of each dimension; empty for a scalar.
    pub shape: Vec<usize>,
    /// The bytes of a tensor in a checkpoint: little-endian elements in row-major order.
    pub bytes: Bytes,
}

impl Tensor {
    /// Creates a tensor from its dtype, shape and bytes, without checking that they match.
    ///
    /// [`Store::save`](crate::Store::save) returns an error for a tensor whose bytes do not match its dtype and shape.
    pub fn new(dtype: Dtype, shape: Vec<usize>, bytes: Bytes) -> Self {
        Self { dtype, shape, bytes }
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({} {:?}, {} bytes)", self.dtype, self.shape, self.bytes.len())
    }
}

/// Returns the size in bytes of a tensor with the given `dtype` and `shape`; `None` if the size overflows or is not a
/// whole number of bytes.
pub(crate) fn byte_len(dtype: Dtype, shape: &[usize]) -> Option<usize> {
    let elements = shape.iter().try_fold(1usize, |product, &length| product.checked_mul(length))?;
    let bits = elements.checked_mul(dtype.bitsize())?;
    (bits % 8 == 0).then_some(bits / 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_follow_from_type_and_shape() {
        assert_eq!(byte_len(Dtype::F32, &[2, 3]), Some(24));
        assert_eq!(byte_len(Dtype::F64, &[]), Some(8));
        assert_eq!(byte_len(Dtype::BF16, &[5, 0]), Some(0));
        assert_eq!(byte_len(Dtype::F4, &[4]), Some(2));
    }

    #[test]
    fn lengths_that_overflow_or_are_not_whole_are_none() {
        assert_eq!(byte_len(Dtype::U8, &[usize::MAX, 2]), None);
        assert_eq!(byte_len(Dtype::F32, &[usize::MAX / 8]), None);
        assert_eq!(byte_len(Dtype::F4, &[3]), None);
    }

    #[test]
    fn debug_shows_no_bytes() {
        let tensor = Tensor::new(Dtype::F32, vec![2, 3], Bytes::from(vec![7; 24]));
        assert_eq!(format!("{tensor:?}"), "Tensor(F32 [2, 3], 24 bytes)");
    }
}
