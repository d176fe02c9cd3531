//! Converts f32 tensors of the CPU backend to slices, and vectors (`Vec`) to tensors.

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Flex, TensorMetadata};
use burn::tensor::{DType, Int, Shape, Tensor, TensorData};

/// Returns the elements of a CPU tensor as a slice. Panics if the tensor is not contiguous or not in f32.
pub fn numbers(tensor: &FloatTensor<Flex>) -> &[f32] {
    tensor.as_slice::<f32>().expect("a kernel's tensor must be contiguous and in f32")
}

/// Whether a kernel may overwrite a tensor in place: nothing else uses its memory, and the memory contains exactly the
/// tensor's f32 elements, in their order.
pub fn is_own(tensor: &FloatTensor<Flex>) -> bool {
    let is_whole = tensor.layout().contiguous_offsets().is_some_and(|(first, _)| first == 0);
    let bytes = tensor.shape().num_elements() * size_of::<f32>();
    tensor.dtype() == DType::F32 && tensor.is_unique() && is_whole && tensor.bytes().len() == bytes
}

/// Returns the elements of a CPU tensor of shape `[n, 2]` as a slice of pairs. Panics if the tensor is not contiguous
/// or not in f32.
pub fn pairs(tensor: &FloatTensor<Flex>) -> &[[f32; 2]] {
    numbers(tensor).as_chunks().0
}

/// Returns a CPU tensor of shape `[n, 2]` whose rows are the given n pairs.
pub fn of_pairs(pairs: Vec<[f32; 2]>) -> FloatTensor<Flex> {
    let rows = pairs.len();
    of_numbers(pairs.into_flattened(), [rows, 2])
}

/// Returns a CPU tensor of the given shape with the elements `numbers`.
pub fn of_numbers(numbers: Vec<f32>, shape: impl Into<Shape>) -> FloatTensor<Flex> {
    FloatTensor::<Flex>::from_data(TensorData::new(numbers, shape.into()))
}

/// Returns the elements of an integer CPU tensor of rank `D` as i64, whatever the tensor's dtype.
pub fn integers<const D: usize>(tensor: &IntTensor<Flex>) -> Vec<i64> {
    Tensor::<D, Int>::from_primitive::<Flex>(tensor.clone()).into_data().iter::<i64>().collect()
}
