//! Computes one hash of all parameters of a checkpoint, by which two trainings can be compared bit for bit.

use sha2::{Digest, Sha256};
use stageline::checkpoint::Checkpoint;

/// Returns the SHA-256 of the names, shapes and values of all parameters in a checkpoint, in hexadecimal, and the number
/// of values.
pub fn fingerprint(checkpoint: &Checkpoint) -> (String, usize) {
    let (mut digest, mut values) = (Sha256::new(), 0);
    for (name, tensor) in &checkpoint.parameters {
        digest.update((name.len() as u64).to_le_bytes());
        digest.update(name);
        for size in &tensor.shape {
            digest.update((*size as u64).to_le_bytes());
        }
        digest.update(&tensor.bytes);
        values += tensor.shape.iter().product::<usize>();
    }
    (digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect(), values)
}
