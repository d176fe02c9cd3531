//! Tensors in f32 as numbers, and back.

use burn::backend::Flex;
use burn::backend::tensor::FloatTensor;
use burn::tensor::TensorData;

/// The numbers of a contiguous tensor in f32.
pub(crate) fn numbers(tensor: &FloatTensor<Flex>) -> &[f32] {
    tensor.as_slice::<f32>().expect("it is contiguous, and in f32")
}

/// The same, in twos.
pub(crate) fn pairs(tensor: &FloatTensor<Flex>) -> &[[f32; 2]] {
    numbers(tensor).as_chunks().0
}

/// Twos, as `[n, 2]`.
pub(crate) fn of_pairs(pairs: Vec<[f32; 2]>) -> FloatTensor<Flex> {
    let rows = pairs.len();
    FloatTensor::<Flex>::from_data(TensorData::new(pairs.into_flattened(), [rows, 2]))
}
