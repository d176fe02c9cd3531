//! A tensor of a model folder: its description, [`TensorInfo`], and its bytes, [`TensorView`].

use std::path::Path;

use half::{bf16, f16};
use safetensors::Dtype;

use crate::error::FolderError;

/// The description of a tensor in a model folder: its dtype, its shape and the weights file that contains it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// The dtype of a tensor in a model folder, such as BF16.
    pub dtype: Dtype,
    /// The shape of a tensor in a model folder: the length of each dimension; empty for a scalar.
    pub shape: Vec<usize>,
    /// The name of the weights file in the model folder that contains the tensor, such as `model.safetensors`.
    pub file: String,
}

/// A tensor of an open model folder. Its bytes are borrowed from the memory-mapped weights file, not copied.
#[derive(Clone, Copy, Debug)]
pub struct TensorView<'a> {
    /// The name of the tensor in its weights file.
    pub name: &'a str,
    /// The dtype of a tensor in its weights file, such as BF16.
    pub dtype: Dtype,
    /// The shape of a tensor in its weights file: the length of each dimension; empty for a scalar.
    pub shape: &'a [usize],
    /// The bytes of a tensor's elements, in row-major order; each element is little-endian. They may be unaligned for
    /// their dtype.
    pub bytes: &'a [u8],
    /// The path of the weights file that contains the tensor, for error messages.
    pub(crate) path: &'a Path,
}

impl TensorView<'_> {
    /// Returns the tensor's elements as f32, in row-major order. F32 elements are returned bit for bit, and the
    /// conversion of F16 and BF16 is exact.
    ///
    /// # Errors
    /// Returns [`FolderError::Dtype`] if the dtype is not F32, F16 or BF16.
    pub fn to_f32(&self) -> Result<Vec<f32>, FolderError> {
        match self.dtype {
            Dtype::F32 => Ok(converted(self.bytes, f32::from_le_bytes)),
            Dtype::F16 => Ok(converted(self.bytes, |bytes| f16::from_le_bytes(bytes).to_f32())),
            Dtype::BF16 => Ok(converted(self.bytes, |bytes| bf16::from_le_bytes(bytes).to_f32())),
            dtype => Err(FolderError::Dtype { path: self.path.to_path_buf(), tensor: self.name.to_owned(), dtype }),
        }
    }
}

/// Converts tensor elements of `N` bytes each to f32 values. The closure `convert` converts the bytes of one element.
fn converted<const N: usize>(bytes: &[u8], convert: impl Fn([u8; N]) -> f32) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|&chunk| convert(chunk)).collect()
}

/// Returns the size in bytes of a tensor with the given `dtype` and `shape`. Returns `None` if the size overflows or is
/// not a whole number of bytes, which is possible if an element takes less than a byte.
pub(crate) fn byte_len(dtype: Dtype, shape: &[usize]) -> Option<usize> {
    let elements = shape.iter().try_fold(1usize, |product, &length| product.checked_mul(length))?;
    let bits = elements.checked_mul(dtype.bitsize())?;
    bits.is_multiple_of(8).then_some(bits / 8)
}
