//! The warnings that a stage has logged ([`Warned`]), and the warning of operations that the kernels for its device do not
//! compute. It names those that the stage's layers list when the stage is built, and the others in the first forward.

use stageline_nn::Fallback;

/// The warnings that a stage has already logged, so that each is logged once.
#[derive(Default)]
pub(super) struct Warned {
    /// Whether the stage has already logged the warning that it recomputes nothing in its backward although
    /// recomputation is configured.
    pub(super) recompute: bool,
    /// Whether the stage has already checked that its layers can split their backwards (compute weight gradients later
    /// than input gradients); the check logs a warning if some layers cannot.
    pub(super) split: bool,
    /// Whether the stage has already checked that the kernels for its device compute all operations of its forward; the
    /// check logs a warning for those that they do not compute.
    pub(super) fallbacks: bool,
    /// The operations that the kernels for the stage's device do not compute, of which `build` has warned.
    pub(super) named: Vec<Fallback>,
}

fn is_same(one: &Fallback, other: &Fallback) -> bool {
    (one.operation, &one.reason) == (other.operation, &other.reason)
}

/// Warns of operations of a stage that fall back: one message for each operation and reason, with the first layer that has
/// it and the number of further ones.
pub(crate) fn warn_of_fallbacks(found: &[Fallback], stage: usize, replica: usize) {
    for (index, first) in found.iter().enumerate() {
        if found[..index].iter().any(|earlier| is_same(earlier, first)) {
            continue;
        }
        let Fallback { operation, layer, reason } = first;
        let place = match found.iter().filter(|other| is_same(other, first)).count() - 1 {
            _ if layer.is_empty() => format!("stage {stage}"),
            0 => format!("layer `{layer}` of stage {stage}"),
            more => format!("layer `{layer}` and {more} more of stage {stage}"),
        };
        tracing::warn!(stage, replica, "{operation} in {place} {reason}");
    }
}

/// Returns the operations that fell back in a forward, without those that an earlier warning has named. A forward does
/// not know the layer of an operation outside the sequence of layers, such as one of the loss.
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
