//! The numbers of elements and bytes of a model's parameters ([`ParameterCount`]).

use burn::tensor::quantization::quantized_data_len;
use burn::tensor::{DType, Shape};

/// The size of a model or of a stage: the number of elements in its float parameters, separately for trained and frozen
/// ones, and the bytes of the frozen ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ParameterCount {
    /// The number of elements in trainable (not frozen) parameters.
    pub trained: u64,
    /// The number of elements in frozen parameters and in running statistics, such as a batch norm's mean.
    pub frozen: u64,
    /// The number of bytes of the frozen parameters and running statistics in their own dtypes. A quantized weight may
    /// take only 8 bits per element. A lazy parameter of burn's layers has no dtype yet, and counts as f32.
    pub frozen_bytes: u64,
}

impl ParameterCount {
    /// Adds one float tensor to the count: its elements, as trained or frozen, and its bytes if it is frozen.
    pub(crate) fn add(&mut self, is_trained: bool, dtype: DType, shape: &Shape) {
        let elements = shape.num_elements() as u64;
        if is_trained {
            self.trained += elements;
            return;
        }
        self.frozen += elements;
        self.frozen_bytes += bytes_of_kind(dtype, shape) as u64;
    }
}

/// Returns the size in bytes of a tensor of the given dtype and shape. The size of a quantized tensor includes its
/// scales.
pub(crate) fn bytes_of_kind(dtype: DType, shape: &Shape) -> usize {
    match dtype {
        DType::QFloat(scheme) => quantized_data_len(&scheme, shape),
        dtype => shape.num_elements() * dtype.size(),
    }
}
