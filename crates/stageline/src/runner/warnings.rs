//! The warnings that a stage has logged ([`Warned`]), and the warning about operations without a Stageline kernel for
//! the stage's device. Operations that the layers declare are named when the stage is built, and all others after the
//! first forward pass.

use stageline_nn::Fallback;

use crate::failure::refused_fallback::fallback_in_stage;

/// The warnings that a stage has already logged, so that each is logged once.
#[derive(Default)]
pub(super) struct Warned {
    /// Whether the stage has already warned that it recomputes no activations although recomputation is configured.
    pub(super) recompute: bool,
    /// Whether the stage has already checked whether its layers can defer weight gradients in a split backward pass,
    /// and warned about those that cannot.
    pub(super) split: bool,
    /// Whether the stage has already warned about a parameter that is used more often in a later micro-batch than in
    /// the first one.
    pub(super) several: bool,
    /// Whether the stage has already checked its first forward pass for operations without a Stageline kernel, and
    /// warned about them.
    pub(super) fallbacks: bool,
    /// The operations without a Stageline kernel that `build` has already named in a warning.
    pub(super) named: Vec<Fallback>,
}

fn is_same(one: &Fallback, other: &Fallback) -> bool {
    (one.operation, &one.reason) == (other.operation, &other.reason)
}

/// Logs warnings about a stage's operations without a Stageline kernel: one message for each operation and reason. The
/// message names the first layer with the operation, and the number of other layers with it.
pub(crate) fn warn_of_fallbacks(found: &[Fallback], stage: usize, replica: usize) {
    for (index, first) in found.iter().enumerate() {
        if found[..index].iter().any(|earlier| is_same(earlier, first)) {
            continue;
        }
        let others = found.iter().filter(|other| is_same(other, first)).count() - 1;
        tracing::warn!(stage, replica, "{} {}", fallback_in_stage(stage, first, others), first.reason);
    }
}

/// Returns the operations in `found` that no earlier warning has named, so that each is warned about once. `named`
/// lists the operations of all earlier warnings. Both lists contain operations without a Stageline kernel. An operation
/// counts as named if an earlier warning has the same operation and reason, and also the same layer if its layer is
/// known.
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
