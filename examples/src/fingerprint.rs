//! Computes one hash of all parameters of the model, by which two runs can be compared bit for bit.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::Tensor;
use sha2::{Digest, Sha256};

use crate::model::Layers;

/// Returns the SHA-256 of the shape and values of every parameter of the model in layer order, in hexadecimal, and the
/// number of values.
pub fn fingerprint(layers: &Layers) -> (String, usize) {
    let mut hash = Hash { digest: Sha256::new(), values: 0 };
    layers.visit(&mut hash);
    let bytes = hash.digest.finalize();
    (bytes.iter().map(|byte| format!("{byte:02x}")).collect(), hash.values)
}

/// The visitor that adds the shape and values of each parameter to the SHA-256 digest.
struct Hash {
    digest: Sha256,
    values: usize,
}

impl ModuleVisitor for Hash {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let values = param.val().into_data();
        for size in param.val().dims() {
            self.digest.update((size as u64).to_le_bytes());
        }
        for value in values.iter::<f32>() {
            self.digest.update(value.to_le_bytes());
        }
        self.values += values.num_elements();
    }
}
