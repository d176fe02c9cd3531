//! Tests of what a training says about operations that the kernels for its devices do not compute.

use crate::runs::Place;

/// Tests the warnings about slower operations in a bf16 training on CPUs, whose kernels take f32 only. Each operation
/// is named once, with its first layer and the number of its other layers. The layers are `0` for the embeddings, `1.0`
/// and `1.1` for the blocks, and `2` for the head. The cross-entropy is not named, because its logits are in f32.
#[test]
fn operations_without_a_kernel_are_named_with_their_layers() {
    let place = Place::new();
    let said = |flags: &str| {
        let output = place.run(&format!("--stages 1 --steps 2 {flags}"));
        let said = place.shown(&output);
        assert!(output.status.success(), "{said}");
        said
    };
    let fell_back = "is computed by burn's own operations";
    assert!(!said("").contains(fell_back));
    let said = said("--precision bf16");
    let reason = "the kernels of this device take no elements of the type BF16; use f32";
    for expected in [
        format!("causal attention in layer `1.0` and 1 more of stage 0 {fell_back}, which are slower: {reason}"),
        format!("GELU in layer `1.0` and 1 more of stage 0 {fell_back}, which are slower: {reason}"),
        format!("layer normalisation in layer `1.0` and 2 more of stage 0 {fell_back}, which are slower: {reason}"),
    ] {
        assert_eq!(said.matches(&expected).count(), 1, "{expected} in {said}");
    }
    assert_eq!(said.matches(fell_back).count(), 3, "{said}");
}
