//! Converts f32 tensors of the CPU backend to slices of numbers, and numbers to tensors.

use burn::backend::Flex;
use burn::backend::tensor::FloatTensor;
use burn::tensor::TensorData;

/// Returns the numbers of a tensor, which must be contiguous and in f32.
pub fn numbers(tensor: &FloatTensor<Flex>) -> &[f32] {
    tensor.as_slice::<f32>().expect("a kernel's tensor must be contiguous and in f32")
}

/// Returns the numbers of a contiguous f32 tensor `[n, 2]` as pairs.
pub fn pairs(tensor: &FloatTensor<Flex>) -> &[[f32; 2]] {
    numbers(tensor).as_chunks().0
}

/// Returns a tensor `[n, 2]` of n pairs.
pub fn of_pairs(pairs: Vec<[f32; 2]>) -> FloatTensor<Flex> {
    let rows = pairs.len();
    FloatTensor::<Flex>::from_data(TensorData::new(pairs.into_flattened(), [rows, 2]))
}
