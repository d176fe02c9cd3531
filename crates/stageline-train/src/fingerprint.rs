//! Hashes all parameters of a model, so that two training runs can be compared bit for bit.

use std::collections::HashSet;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::Tensor;
use sha2::{Digest, Sha256};

/// Returns a SHA-256 hash over the shapes and values of all float parameters of a module, as a hexadecimal string, and
/// the number of hashed values. Parameters are hashed in burn's order, tied ones once. Copies one parameter at a time
/// to host memory.
pub fn fingerprint<M: Module>(module: &M) -> (String, usize) {
    let mut hash = Hash { digest: Sha256::new(), values: 0, seen: HashSet::new() };
    module.visit(&mut hash);
    (hexadecimal(hash.digest), hash.values)
}

/// Returns a SHA-256 digest as a hexadecimal string, with two lowercase digits per byte.
pub(crate) fn hexadecimal(digest: Sha256) -> String {
    digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A visitor that adds the shape and values of each parameter of a model to a SHA-256 digest.
struct Hash {
    digest: Sha256,
    values: usize,
    /// The ids of the parameters already hashed, so that a tied parameter is hashed only once.
    seen: HashSet<ParamId>,
}

impl ModuleVisitor for Hash {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !self.seen.insert(param.id) {
            return;
        }
        let value = param.val();
        for size in value.dims() {
            self.digest.update((size as u64).to_le_bytes());
        }
        let values = value.into_data();
        for value in values.iter::<f32>() {
            self.digest.update(value.to_le_bytes());
        }
        self.values += values.num_elements();
    }
}
