//! Batch fingerprints: one hash over the values of all tensors of a list of batches.

use burn::tensor::{Bool, Int, Tensor, TensorData};
use sha2::{Digest, Sha256};
use stageline::{Batch, Payload, PayloadMapper};

use crate::fingerprint::hexadecimal;

/// Returns a SHA-256 hash, as a hexadecimal string, over the dtypes, shapes and values of all tensors in `batches`.
/// Copies one tensor at a time to host memory.
pub fn fingerprint_of<In: Payload, Target: Payload>(batches: &[Batch<In, Target>]) -> String {
    let mut hash = Hash(Sha256::new());
    batches.iter().for_each(|batch| batch.visit(&mut hash));
    hexadecimal(hash.0)
}

/// A visitor that adds each tensor's dtype, shape and values to a SHA-256 digest.
struct Hash(Sha256);

impl Hash {
    fn add(&mut self, data: &TensorData) {
        self.0.update(format!("{:?} {:?}", data.dtype(), data.shape()));
        self.0.update(data.as_bytes());
    }
}

impl PayloadMapper for Hash {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        self.add(&tensor.to_data());
        tensor
    }

    fn int<const D: usize>(&mut self, tensor: Tensor<D, Int>) -> Tensor<D, Int> {
        self.add(&tensor.to_data());
        tensor
    }

    fn bool<const D: usize>(&mut self, tensor: Tensor<D, Bool>) -> Tensor<D, Bool> {
        self.add(&tensor.to_data());
        tensor
    }
}
