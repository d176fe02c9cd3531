//! The values of a tensor to write ([`Values`]), and their conversion to bytes in the tensor's dtype.

use std::borrow::Cow;
use std::io::Write;
use std::path::Path;

use half::{bf16, f16};
use safetensors::Dtype;

use crate::error::FolderError;
use crate::layout::TensorLayout;
use crate::refusal::Refusal;
use crate::tensor::{TensorView, byte_len};

/// The number of a tensor's values that are converted and written at a time.
const CHUNK: usize = 1 << 16;

/// The values of a tensor to write, in row-major order, for [`Layout::write`](crate::Layout::write): f32 values, or
/// bytes in the tensor's own dtype.
#[derive(Clone, Debug)]
pub enum Values<'a> {
    /// Values in f32, which are converted to the dtype of the tensor to write. Conversions to F16 and BF16 round to the
    /// nearest value (ties to even). A finite value that would become infinite is an error.
    F32(Vec<f32>),
    /// Bytes in the dtype of the tensor to write, in little-endian order. They are written unchanged. Use this variant
    /// for a tensor that is not trained or has an integer dtype, for example.
    Bytes(Cow<'a, [u8]>),
}

impl From<Vec<f32>> for Values<'_> {
    fn from(values: Vec<f32>) -> Self {
        Self::F32(values)
    }
}

impl<'a> From<TensorView<'a>> for Values<'a> {
    /// Wraps the bytes of a tensor from an open model folder, to be written unchanged.
    fn from(tensor: TensorView<'a>) -> Self {
        Self::Bytes(Cow::Borrowed(tensor.bytes))
    }
}

/// A tensor to write (its name, dtype and shape), with the path of its weights file.
pub(crate) struct Target<'a> {
    pub(crate) tensor: &'a TensorLayout,
    /// Final path (not the temporary one) of the tensor's weights file, for error messages.
    pub(crate) path: &'a Path,
}

impl Target<'_> {
    /// Checks that the number of `values` fits the shape of the tensor to write, and writes the values to `out`. Values
    /// in f32 are converted to the tensor's dtype.
    pub(crate) fn write(&self, values: &Values<'_>, out: &mut impl Write) -> Result<(), FolderError> {
        let TensorLayout { dtype, shape, .. } = self.tensor;
        match values {
            Values::Bytes(bytes) => {
                self.check("bytes", byte_len(*dtype, shape), bytes.len())?;
                self.put(bytes, out)
            }
            Values::F32(values) => {
                let elements = shape.iter().try_fold(1usize, |product, &length| product.checked_mul(length));
                self.check("values", elements, values.len())?;
                match dtype {
                    Dtype::F32 => self.convert(values, out, f32::to_le_bytes, |_| false),
                    Dtype::F16 => {
                        let infinite = |value: f32| f16::from_f32(value).is_infinite();
                        self.convert(values, out, |value| f16::from_f32(value).to_le_bytes(), infinite)
                    }
                    Dtype::BF16 => {
                        let infinite = |value: f32| bf16::from_f32(value).is_infinite();
                        self.convert(values, out, |value| bf16::from_f32(value).to_le_bytes(), infinite)
                    }
                    dtype => Err(self.refused(Refusal::Dtype { tensor: self.tensor.name.clone(), dtype: *dtype })),
                }
            }
        }
    }

    /// Checks that a tensor gets exactly `expected` values or bytes; `found` is the number that the caller gave. `None`
    /// (a number that overflows or is not whole) always fails. The error contains both numbers and their `unit`,
    /// "values" or "bytes".
    pub(crate) fn check(&self, unit: &'static str, expected: Option<usize>, found: usize) -> Result<(), FolderError> {
        let expected = expected.unwrap_or(usize::MAX);
        if expected == found {
            return Ok(());
        }
        let (tensor, lengths) = (self.tensor.name.clone(), self.tensor.shape.clone());
        Err(self.refused(Refusal::Length { tensor, lengths, unit, expected, found }))
    }

    /// Writes f32 values to `out` in the tensor's dtype, in chunks, so that the converted tensor is never in host
    /// memory as a whole. `bytes` converts one value. `infinite` tells whether a value overflows in the tensor's dtype,
    /// which is an error for a finite value.
    fn convert<const N: usize>(
        &self,
        values: &[f32],
        out: &mut impl Write,
        bytes: impl Fn(f32) -> [u8; N],
        infinite: impl Fn(f32) -> bool,
    ) -> Result<(), FolderError> {
        let mut buffer = Vec::with_capacity(CHUNK.min(values.len()) * N);
        for (count, chunk) in values.chunks(CHUNK).enumerate() {
            if let Some(at) = chunk.iter().position(|&value| value.is_finite() && infinite(value)) {
                let (tensor, dtype, index) = (self.tensor.name.clone(), self.tensor.dtype, count * CHUNK + at);
                return Err(self.refused(Refusal::Overflow { tensor, dtype, index, value: chunk[at] }));
            }
            buffer.clear();
            buffer.extend(chunk.iter().flat_map(|&value| bytes(value)));
            self.put(&buffer, out)?;
        }
        Ok(())
    }

    fn put(&self, bytes: &[u8], out: &mut impl Write) -> Result<(), FolderError> {
        out.write_all(bytes).map_err(FolderError::write("write", self.path))
    }

    fn refused(&self, reason: Refusal) -> FolderError {
        FolderError::refused(self.path, reason)
    }
}
