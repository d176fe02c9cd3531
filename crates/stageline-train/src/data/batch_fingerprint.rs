//! The fingerprint of batches: one hash of the values of all their tensors.

use burn::tensor::{Bool, Int, Tensor, TensorData};
use sha2::{Digest, Sha256};
use stageline::{Batch, Payload, PayloadMapper};

use crate::fingerprint::hexadecimal;

/// Returns the SHA-256 of the types, shapes and values of all tensors of the batches, in hexadecimal. One tensor at a
/// time is copied to the host's memory.
pub fn fingerprint_of<In: Payload, Target: Payload>(batches: &[Batch<In, Target>]) -> String {
    let mut hash = Hash(Sha256::new());
    batches.iter().for_each(|batch| batch.visit(&mut hash));
    hexadecimal(hash.0)
}

/// A visitor that adds the type, the shape and the values of each tensor of a batch to a SHA-256 digest.
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
