//! Causal attention.

use std::cell::RefCell;

use burn::tensor::{Bool, Device, Tensor};

use super::{as_given, wide};
use crate::nn::causal_attention::scale;

/// What the backward of attention takes.
#[derive(Clone, Debug)]
pub(crate) struct Attended<T> {
    /// Queries, keys and values: `[3 x batch x heads, length, size]`.
    pub(in crate::nn) parts: T,
    /// Weights, but for what divides each of a query: `[batch x heads, length, length]`,
    pub(in crate::nn) weights: T,
    /// and one over that: `[batch x heads, length, 1]`, in f32.
    pub(in crate::nn) shares: T,
    /// `[batch, length, heads x size]`.
    pub(in crate::nn) output: T,
}

/// `[batch, length, 3 x heads x size]` to `[3 x batch x heads, length, size]`: products take heads only where each is in one piece.
fn apart(side_by_side: Tensor<3>, heads: usize) -> Tensor<3> {
    let [batch, length, columns] = side_by_side.dims();
    let size = columns / (3 * heads);
    let all = side_by_side.reshape([batch, length, 3, heads, size]).permute([2, 0, 3, 1, 4]);
    all.reshape([3 * batch * heads, length, size])
}

fn each(parts: &Tensor<3>) -> [Tensor<3>; 3] {
    let count = parts.dims()[0] / 3;
    [0, 1, 2].map(|part| parts.clone().slice_dim(0, part * count..(part + 1) * count))
}

thread_local! {
    /// The last mask that this thread has used: making one takes more kernels than all else here.
    static MASK: RefCell<Option<(Device, Tensor<3, Bool>)>> = const { RefCell::new(None) };
}

/// Whether a key is behind its query, `[1, length, length]`.
fn future(length: usize, device: &Device) -> Tensor<3, Bool> {
    MASK.with_borrow_mut(|last| match last {
        Some((known, mask)) if known == device && mask.dims()[2] == length => mask.clone(),
        _ => {
            let mask = Tensor::<2, Bool>::tril_mask([length, length], 0, device).unsqueeze::<3>();
            *last = Some((device.clone(), mask.clone()));
            mask
        }
    })
}

pub(in crate::nn) fn attended(input: Tensor<3>, heads: usize) -> (Tensor<3>, Attended<Tensor<3>>) {
    let [batch, length, columns] = input.dims();
    let (width, size) = (columns / 3, columns / (3 * heads));
    let parts = apart(input, heads);
    let [query, key, value] = each(&parts);
    let products = query.matmul(key.swap_dims(1, 2)).mask_fill(future(length, &parts.device()), f32::NEG_INFINITY);
    // In another shape, what follows is no part of the product's kernel, which would write it down in f32.
    let products = products.reshape([batch * heads * length, length]);
    let largest = wide(products.clone()).max_dim(1);
    let weights = as_given(((wide(products) - largest) * scale(size)).exp(), &parts);
    // Outputs are divided, which are fewer than the weights (Dao et al., 2022, arXiv:2205.14135, section 3.1).
    let shares = wide(weights.clone()).sum_dim(1).recip().reshape([batch * heads, length, 1]);
    let weights = weights.reshape([batch * heads, length, length]);
    let output = as_given(wide(weights.clone().matmul(value)) * shares.clone(), &parts);
    let output = output.reshape([batch, heads, length, size]).swap_dims(1, 2).reshape([batch, length, width]);
    (output.clone(), Attended { parts, weights, shares, output })
}

pub(in crate::nn) fn to_input(
    Attended { parts, weights, shares, output }: Attended<Tensor<3>>,
    heads: usize,
    gradient: Tensor<3>,
) -> Tensor<3> {
    let [batch, length, width] = gradient.dims();
    let size = width / heads;
    let [query, key, value] = each(&parts);
    // The sum of each row of weights times their gradients (Dao et al., 2022, arXiv:2205.14135, appendix B).
    let [of_heads, outputs] = [&gradient, &output].map(|all| all.clone().reshape([batch * length * heads, size]));
    let along = (wide(of_heads) * wide(outputs)).sum_dim(1) * scale(size);
    let along = along.reshape([batch, length, heads, 1]).swap_dims(1, 2).reshape([batch * heads, length, 1]);
    let along = along * shares.clone();
    let gradient = gradient.reshape([batch, length, heads, size]).swap_dims(1, 2);
    let gradient = as_given(wide(gradient.reshape([batch * heads, length, size])) * shares, &query);
    let to_value = weights.clone().swap_dims(1, 2).matmul(gradient.clone());
    let to_weights = gradient.matmul(value.swap_dims(1, 2));
    let to_products = as_given((wide(to_weights) * scale(size) - along) * wide(weights), &query);
    let to_query = to_products.clone().matmul(key);
    let to_key = to_products.swap_dims(1, 2).matmul(query);
    let parts = [to_query, to_key, to_value].map(|part| part.reshape([batch, 1, heads, length, size]));
    let parts = parts.map(|part| part.permute([0, 3, 1, 2, 4]));
    Tensor::cat(parts.to_vec(), 2).reshape([batch, length, 3 * width])
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use super::super::checks::{derived, in_all, near, random};
    use super::*;

    #[test]
    fn attention_is_that_of_f64() {
        for length in [1, 7, 33] {
            let (input, upstream) = (random([2, length, 3 * 24]), random([2, length, 24]));
            in_all(&input, |input, bound| {
                let (output, gradient) = derived(|input| crate::nn::causal_attention(input, 3), &input, &upstream);
                let (found, kept) = attended(input.clone(), 3);
                near(found, &output, bound);
                let upstream = as_given(upstream.clone(), &input);
                near(to_input(kept, 3, upstream), &gradient, bound);
            });
        }
    }
}
