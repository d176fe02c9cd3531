//! The GPU kernel that computes, for each query, the dot product of attention's output and the output's gradient. This
//! product equals the sum over keys of each weight times the weight's gradient (Dao et al., 2022, appendix B).

use burn_cubecl::cubecl;
use burn_cubecl::cubecl::prelude::*;

use super::block::Sizes;

/// Computes, for every query of every head, the dot product of attention's output and the output's gradient, which the
/// backward pass needs. Both are `[batch, length, query heads x size]`. The results go to `delta`, `[batch, query
/// heads, length]`. Each GPU thread computes one result.
#[cube(launch, address_type = "dynamic")]
pub fn attention_delta<E: Float>(
    output: &Tensor<E>,
    gradient: &Tensor<E>,
    delta: &mut Tensor<f32>,
    #[comptime] sizes: Sizes,
    #[define(E)] _type: ElemType,
) {
    if ABSOLUTE_POS >= delta.len() {
        terminate!();
    }
    let length = output.shape(1);
    let query = ABSOLUTE_POS % length;
    let head = ABSOLUTE_POS / length % sizes.query_heads;
    let sample = ABSOLUTE_POS / (length * sizes.query_heads);
    let from = ((sample * length + query) * sizes.query_heads + head) * sizes.width;
    let mut sum = f32::new(0.0);
    for element in 0..sizes.width {
        sum += f32::cast_from(output[from + element]) * f32::cast_from(gradient[from + element]);
    }
    delta[ABSOLUTE_POS] = sum;
}
