//! The warnings that a stage has logged ([`Warned`]), and the warning of operations that Stageline's own kernels do not
//! compute on the stage's device. Operations that the layers declare are named when the stage is built, and the others
//! after the first forward pass.

use stageline_nn::Fallback;

use crate::failure::refused_fallback::fallback_in_stage;

/// The warnings that a stage has already logged, so that each is logged once.
#[derive(Default)]
pub(super) struct Warned {
    /// Whether the stage has already logged the warning that it recomputes nothing although recomputation is
    /// configured.
    pub(super) recompute: bool,
    /// Whether the stage has already checked that its layers can compute weight gradients later than input gradients.
    /// The check logs a warning if some layers cannot.
    pub(super) split: bool,
    /// Whether the stage has already logged the warning of a parameter that is used more often in a later micro-batch
    /// than in the first one.
    pub(super) several: bool,
    /// Whether the stage's first forward pass has already been checked for operations that Stageline's own kernels do
    /// not compute. The check logs a warning of such operations.
    pub(super) fallbacks: bool,
    /// The operations that Stageline's own kernels do not compute, and that `build` has already named in a warning.
    pub(super) named: Vec<Fallback>,
}

fn is_same(one: &Fallback, other: &Fallback) -> bool {
    (one.operation, &one.reason) == (other.operation, &other.reason)
}

/// Logs warnings of a stage's operations that Stageline's own kernels do not compute: one message for each operation
/// and reason. The message names the first layer that has the operation, and the number of other layers that have it.
pub(crate) fn warn_of_fallbacks(found: &[Fallback], stage: usize, replica: usize) {
    for (index, first) in found.iter().enumerate() {
        if found[..index].iter().any(|earlier| is_same(earlier, first)) {
            continue;
        }
        let others = found.iter().filter(|other| is_same(other, first)).count() - 1;
        tracing::warn!(stage, replica, "{} {}", fallback_in_stage(stage, first, others), first.reason);
    }
}

/// Returns the operations in `found` that no logged warning has named so far. `named` lists the operations of all
/// earlier warnings. Both lists contain operations that Stageline's own kernels do not compute. An operation without a
/// layer counts as named if a warning named the same operation and reason. With a layer, the layer must be the same
/// too.
pub(super) fn unnamed(mut found: Vec<Fallback>, named: &[Fallback]) -> Vec<Fallback> {
    found.retain(|fallback| {
        let layer = &fallback.layer;
        !named.iter().any(|named| is_same(named, fallback) && (layer.is_empty() || *layer == named.layer))
    });
    found
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use burn::tensor::{DType, Device};
    use stageline_nn::Operation;

    use super::*;

    #[test]
    fn a_forward_names_only_what_was_not_named() {
        let of = |operation: Operation| operation.fallback(&Device::flex(), DType::F64).unwrap();
        let named = [of(Operation::gelu().in_layer(1)), of(Operation::cross_entropy().in_layer(2))];
        let other = of(Operation::gelu().in_layer(0));
        let found = vec![other.clone(), named[0].clone(), of(Operation::cross_entropy())];
        assert_eq!(unnamed(found, &named), [other]);
    }
}
