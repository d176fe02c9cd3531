//! Tests of what a training says about operations that the kernels for its devices do not compute.

use crate::runs::Place;

/// Tests that a training in bf16 on CPUs, whose kernels take f32 only, warns of each operation once with its layers. The
/// stage has the embeddings as layer `0`, the blocks as `1.0` and `1.1`, and the head as `2`. The cross-entropy is not
/// named, because its logits are in f32.
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
