//! Computes one hash of all parameters of a model, so that two training runs can be compared bit for bit.

use std::collections::HashSet;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::Tensor;
use sha2::{Digest, Sha256};

/// Returns the SHA-256 of the shapes and values of all float parameters of a module, in hexadecimal. Also returns the
/// number of these values. Parameters are hashed in burn's order, and a tied parameter only once. One parameter at a
/// time is copied to the host's memory.
pub fn fingerprint<M: Module>(module: &M) -> (String, usize) {
    let mut hash = Hash { digest: Sha256::new(), values: 0, seen: HashSet::new() };
    module.visit(&mut hash);
    (hexadecimal(hash.digest), hash.values)
}

/// Returns a SHA-256 in hexadecimal: two lowercase digits for each byte.
pub(crate) fn hexadecimal(digest: Sha256) -> String {
    digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The visitor that adds the shape and values of each parameter of a model to a SHA-256 digest.
struct Hash {
    digest: Sha256,
    values: usize,
    /// The ids of the parameters that have been hashed, so that a tied parameter is hashed only once.
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
