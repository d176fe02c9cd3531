//! A tensor that depends on no framework: [`Tensor`] is a type, a shape and bytes.

use std::fmt;

use bytes::Bytes;
use safetensors::Dtype;

/// A tensor as raw bytes: little-endian elements in row-major order, with their type and shape.
#[derive(Clone, PartialEq)]
pub struct Tensor {
    /// The type of the elements of a checkpoint's tensor, such as F32.
    pub dtype: Dtype,
    /// The length of each dimension of a checkpoint's tensor; empty for a scalar.
    pub shape: Vec<usize>,
    /// The bytes of all elements of a checkpoint's tensor: little-endian, in row-major order.
    pub bytes: Bytes,
}

impl Tensor {
    /// Makes a tensor from its element type, its shape and its bytes, without a check that they match.
    ///
    /// [`Store::save`](crate::Store::save) refuses a tensor whose bytes do not match its type and shape.
    pub fn new(dtype: Dtype, shape: Vec<usize>, bytes: Bytes) -> Self {
        Self { dtype, shape, bytes }
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({} {:?}, {} bytes)", self.dtype, self.shape, self.bytes.len())
    }
}

/// Returns the number of bytes of a tensor with the type `dtype` and the shape `shape`; `None` if the number overflows
/// or is not whole.
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
