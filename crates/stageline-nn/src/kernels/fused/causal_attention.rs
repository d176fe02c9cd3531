//! Computes causal attention and its gradient on GPUs with burn's own operations. In f16, intermediate results are
//! scaled so that they do not overflow.

use std::cell::RefCell;
use std::ops::Range;

use burn::tensor::{Bool, DType, Device, Int, Tensor};

use super::{as_given, wide};
use crate::kernels::attention_blocks::{AttentionHeads, scale, scale_of_f16};
use crate::kernels::attention_mask::{before_document, hidden};

/// The values that the forward pass of causal attention on a GPU saves for its backward pass.
#[derive(Clone, Debug)]
pub struct Attended<T> {
    /// Queries, keys and values of all heads, rearranged to one matrix per head: `[batch x (query heads + 2 x key-value
    /// heads), length, size]`.
    pub(crate) parts: T,
    /// Unnormalised attention weights of each query: exp(score - the query's largest score), multiplied by a constant
    /// in f16 (`Scales::weights`). Their shape is `[batch x key-value heads, group x length, length]`, where `group` is
    /// the number of query heads that share a key-value head.
    pub(crate) weights: T,
    /// Reciprocal of the sum of each query's unnormalised attention weights (`weights`), in f32: `[batch x key-value
    /// heads, group x length, 1]`, where `group` is the number of query heads that share a key-value head.
    pub(crate) shares: T,
    /// Output of causal attention's forward pass, `[batch, length, query heads x size]`.
    pub(crate) output: T,
}

/// Rearranges attention's packed input, `[batch, length, (query heads + 2 x key-value heads) x size]`, to one
/// contiguous matrix per head, `[batch x (query heads + 2 x key-value heads), length, size]`, for batched matrix
/// products. The queries of all samples come first, then all keys, then all values.
fn apart(side_by_side: Tensor<3>, heads: AttentionHeads) -> Tensor<3> {
    let [batch, length, columns] = side_by_side.dims();
    let size = columns / heads.columns();
    if heads.group() == 1 {
        let all = side_by_side.reshape([batch, length, 3, heads.query, size]).permute([2, 0, 3, 1, 4]);
        return all.reshape([3 * batch * heads.query, length, size]);
    }
    let all = side_by_side.reshape([batch, length, heads.columns(), size]);
    let parts = ranges(heads, 1).map(|range| {
        let count = range.len();
        all.clone().slice_dim(2, range).swap_dims(1, 2).reshape([batch * count, length, size])
    });
    Tensor::cat(parts.to_vec(), 0)
}

/// Returns the index ranges of queries, keys and values along the first dimension of the rearranged attention input,
/// where each index is one head of one of `batch` samples.
fn ranges(heads: AttentionHeads, batch: usize) -> [Range<usize>; 3] {
    let [queries, keys] = [heads.query, heads.key_value].map(|count| count * batch);
    [0..queries, queries..queries + keys, queries + keys..queries + 2 * keys]
}

/// Splits attention's input, rearranged by [`apart`] to one matrix per head, into three tensors:
///
/// - the queries, `[batch x key-value heads, group x length, size]`
/// - the keys and the values, each `[batch x key-value heads, length, size]`
///
/// The `group` query heads that share a key-value head are concatenated, so that no key is copied.
fn each(parts: &Tensor<3>, heads: AttentionHeads) -> [Tensor<3>; 3] {
    let [count, length, size] = parts.dims();
    let batch = count / heads.columns();
    let [query, key, value] = ranges(heads, batch).map(|range| parts.clone().slice_dim(0, range));
    let query = match heads.group() {
        1 => query,
        group => query.reshape([batch * heads.key_value, group * length, size]),
    };
    [query, key, value]
}

/// Coefficients that scale attention's intermediate results, so that they do not overflow or lose precision in f16.
///
/// f16 values are at most 65504, and lose precision below 6e-5. The sum of a query's unnormalised attention weights can
/// be as large as the sequence length. Gradients divided by this sum can be as small as 1 / length.
struct Scales {
    /// Scales the queries before their product with the keys, so that the product does not overflow in f16; 1 for other
    /// dtypes.
    query: f64,
    /// Scales the product of the already scaled queries and the keys to attention scores: `1 / sqrt(head size)` divided
    /// by `query`.
    rest: f64,
    /// Scales the unnormalised attention weights, so that sums of weighted values do not overflow in f16; 1 for other
    /// dtypes.
    weights: f64,
}

impl Scales {
    /// Largest sequence length whose attention weights are not scaled in f16. Unnormalised weights are at most 1, so
    /// 128 products of a weight and an f16 value below 512 add up to at most 65504, the largest f16 value.
    const UNSCALED: usize = 128;

    /// Returns the coefficients for attention over sequences of `length` positions with heads of `size` elements, in
    /// the dtype `dtype`.
    fn of(dtype: DType, length: usize, size: usize) -> Self {
        if dtype != DType::F16 {
            return Self { query: 1.0, rest: scale(size), weights: 1.0 };
        }
        let [query, rest] = scale_of_f16(size);
        // A power of two, so that multiplying by it is exact.
        let times = length.div_ceil(Self::UNSCALED).next_power_of_two();
        Self { query, rest, weights: 1.0 / times as f64 }
    }
}

/// The magnitude to which an attention head's largest gradient is scaled in f16. Sums of up to 8192 such gradients then
/// stay within the range of f16.
const LARGEST: f64 = 0.125;

/// Returns a coefficient for each attention head that scales the head's largest gradient to [`LARGEST`]. Returns `None`
/// if `dtype` is not f16, because other dtypes need no scaling. `gradients` is `[heads of all samples, length, size]`,
/// and the coefficients are `[heads of all samples, 1, 1]`.
fn gradient_scales(dtype: DType, gradients: &Tensor<3>) -> Option<Tensor<3>> {
    let [heads, length, size] = gradients.dims();
    let largest = || gradients.clone().abs().reshape([heads, length * size]).max_dim(1);
    // If all of a head's gradients are zero, any coefficient works; the lower bound avoids a division by zero.
    (dtype == DType::F16).then(|| (largest().clamp_min(1e-30).recip() * LARGEST).reshape([heads, 1, 1]))
}

thread_local! {
    /// This thread's last causal mask, cached because making a mask launches more GPU kernels than the rest of
    /// attention.
    static MASK: RefCell<Option<(Device, AttentionHeads, Tensor<3, Bool>)>> = const { RefCell::new(None) };
}

/// Returns the causal mask, `[1, group x length, length]`, for samples of one document each: true where the key is
/// after the query or before its window. `group` is the number of query heads that share a key-value head.
fn unseen(length: usize, heads: AttentionHeads, device: &Device) -> Tensor<3, Bool> {
    MASK.with_borrow_mut(|last| match last {
        Some((known, masked, mask)) if known == device && *masked == heads && mask.dims()[2] == length => mask.clone(),
        _ => {
            let mask = hidden(length, heads.window, device).unsqueeze::<3>().repeat_dim(1, heads.group());
            *last = Some((device.clone(), heads, mask.clone()));
            mask
        }
    })
}

/// Returns the attention mask, `[batch x key-value heads, group x length, length]`: true where a query must not attend
/// to a key. `starts`, `[batch, length]`, contains the position where each query's document begins, counted from 0 in
/// the sample. If `starts` is `None`, one mask serves the whole batch and the first dimension is 1.
fn masked(length: usize, heads: AttentionHeads, starts: Option<Tensor<2, Int>>, device: &Device) -> Tensor<3, Bool> {
    let unseen = unseen(length, heads, device);
    let Some(starts) = starts else { return unseen };
    let [batch, _] = starts.dims();
    let before = before_document(starts).reshape([batch, 1, 1, length, length]);
    let before = before.expand([batch, heads.key_value, heads.group(), length, length]);
    before.reshape([batch * heads.key_value, heads.group() * length, length]).bool_or(unseen)
}

/// Computes causal attention of an input `[batch, length, (query heads + 2 x key-value heads) x size]`. Returns the
/// output, `[batch, length, query heads x size]`, and the values that the backward pass needs. `starts`, `[batch,
/// length]`, contains, for each query, the position where its document begins (from 0 in the sample); `None` for
/// samples of one document.
pub(crate) fn attended(
    input: Tensor<3>,
    heads: AttentionHeads,
    starts: Option<Tensor<2, Int>>,
) -> (Tensor<3>, Attended<Tensor<3>>) {
    let [batch, length, columns] = input.dims();
    let size = columns / heads.columns();
    let parts = apart(input, heads);
    let [query, key, value] = each(&parts, heads);
    let mask = masked(length, heads, starts, &parts.device());
    let heads = heads.query;
    let scales = Scales::of(parts.dtype(), length, size);
    let query = if scales.query == 1.0 { query } else { query * scales.query };
    let products = query.matmul(key.swap_dims(1, 2)).mask_fill(mask, f32::NEG_INFINITY);
    let largest = wide(products.clone()).max_dim(2);
    let weights = ((wide(products) - largest) * scales.rest).exp();
    let weights = as_given(if scales.weights == 1.0 { weights } else { weights * scales.weights }, &parts);
    // Normalising the outputs instead of the weights takes fewer divisions (Dao et al., 2022, arXiv:2205.14135, section
    // 3.1).
    let shares = wide(weights.clone()).sum_dim(2).recip();
    let output = as_given(wide(weights.clone().matmul(value)) * shares.clone(), &parts);
    let output = output.reshape([batch, heads, length, size]).swap_dims(1, 2).reshape([batch, length, heads * size]);
    (output.clone(), Attended { parts, weights, shares, output })
}

/// Returns the gradient of the loss with respect to attention's input, `[batch, length, (query heads + 2 x key-value
/// heads) x size]`. `gradient` is the gradient with respect to attention's output, `[batch, length, query heads x
/// size]`.
pub(crate) fn to_input(
    Attended { parts, weights, shares, output }: Attended<Tensor<3>>,
    shared: AttentionHeads,
    gradient: Tensor<3>,
) -> Tensor<3> {
    let [batch, length, width] = gradient.dims();
    let (heads, size) = (shared.query, width / shared.query);
    let [query, key, value] = each(&parts, shared);
    let grouped = [batch * shared.key_value, shared.group() * length];
    // For each query, the sum over keys of each weight times its gradient is the dot product of the output and its
    // gradient (Dao et al., 2022, arXiv:2205.14135, appendix B).
    let [upstream, outputs] = [&gradient, &output].map(|all| all.clone().reshape([batch * length * heads, size]));
    let delta = (wide(upstream) * wide(outputs)).sum_dim(1) * scale(size);
    let delta = delta.reshape([batch, length, heads, 1]).swap_dims(1, 2).reshape([grouped[0], grouped[1], 1]);
    let delta = delta * shares.clone();
    let gradient = gradient.reshape([batch, length, heads, size]).swap_dims(1, 2);
    let gradient = wide(gradient.reshape([grouped[0], grouped[1], size])) * shares;
    let scales = gradient_scales(query.dtype(), &gradient);
    let scaled = |tensor: Tensor<3>| match &scales {
        Some(scales) => tensor * scales.clone(),
        None => tensor,
    };
    let (delta, gradient) = (scaled(delta), as_given(scaled(gradient), &query));
    let to_value = weights.clone().swap_dims(1, 2).matmul(gradient.clone());
    let to_weights = gradient.matmul(value.swap_dims(1, 2));
    let to_products = as_given((wide(to_weights) * scale(size) - delta) * wide(weights), &query);
    let to_query = to_products.clone().matmul(key);
    let to_key = to_products.swap_dims(1, 2).matmul(query);
    let parts = [to_query, to_key, to_value].map(|part| match &scales {
        Some(scales) => as_given(wide(part) / scales.clone(), &output),
        None => part,
    });
    let parts = parts.map(|part| {
        let heads = part.dims()[..2].iter().product::<usize>() / (batch * length);
        part.reshape([batch, heads, length, size]).swap_dims(1, 2)
    });
    Tensor::cat(parts.to_vec(), 2).reshape([batch, length, shared.columns() * size])
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use burn::tensor::FloatDType;

    use super::super::checks::{derived, exactly, in_all, near, random};
    use super::*;
    use crate::test_numbers::uniform;

    /// Tests attention over long sequences in f16 against attention in f64. The inputs strain the range of f16: large
    /// sums of values, small gradients, and scores that are equal or far apart.
    #[test]
    fn long_sequences_stay_in_the_range_of_f16() {
        const SIZE: usize = 8;
        let device = Device::flex();
        let within = |length: usize, bound: f64| uniform([1, length, SIZE], -1.0..1.0, &device) * bound;
        let worst = |found: Tensor<3>, exact: &Tensor<3>| {
            let off = (exactly(&found) - exact.clone()).abs().max().into_scalar::<f64>();
            off / exact.clone().abs().max().into_scalar::<f64>()
        };
        // Queries and keys lie within `scores` of `around`; those around 100 have products of about 80000.
        for (length, around, scores, value, gradient) in [
            (1500, 0.0, 0.0, 100.0, 1.2e-4),
            (1500, 0.0, 0.0, 17.0, 1.0),
            (1500, 0.0, 8.0, 17.0, 3e-4),
            (4096, 0.0, 8.0, 17.0, 1.2e-4),
            (1500, 0.0, 2.0, 1.0, 3e-4),
            (300, 0.0, 8.0, 200.0, 1.0),
            (300, 100.0, 0.0, 1.0, 1.0),
        ] {
            let [queries, keys] = [0, 1].map(|_| within(length, scores) + around);
            let values = within(length, 0.1 * value) + value;
            let (input, upstream) = (Tensor::cat(vec![queries, keys, values], 2), within(length, 1.0) * gradient);
            let (input, upstream) = (input.cast(FloatDType::F16), upstream.cast(FloatDType::F16));
            let (output, to_input_exact) =
                derived(|input| crate::layers::causal_attention(input, 1), &input, &upstream);
            let (found, kept) = attended(input.clone(), 1.into(), None);
            let off_output = worst(found, &output);
            let found = to_input(kept, 1.into(), upstream);
            let part = |all: &Tensor<3>, part: usize| all.clone().slice_dim(2, part * SIZE..(part + 1) * SIZE);
            let off_value = worst(part(&found, 2), &part(&to_input_exact, 2));
            println!("{length} {scores} {value} {gradient}: outputs {off_output:.1e}, values {off_value:.1e}");
            // In f16, scores of about 100 are rounded to multiples of 1/16.
            let bound = if scores > 4.0 { 1e-2 } else { 2e-3 };
            assert!(
                off_output < bound && off_value < bound,
                "{length} {scores} {value} {gradient}: {off_output} {off_value}"
            );
            // Score gradients are differences of numbers as large as a value times an output gradient. The bound is
            // therefore relative to such a product.
            let size = value * gradient * (around + scores).max(1.0);
            for at in [0, 1] {
                let off = (exactly(&part(&found, at)) - part(&to_input_exact, at)).abs().max().into_scalar::<f64>();
                println!("  part {at}: off by {:.1e} of {size:.1e}", off / size);
                assert!(off < 5e-3 * size, "{length} {scores} {value} {gradient}: part {at} is off by {off} of {size}");
            }
        }
    }

    #[test]
    fn equal_scores_over_8192_positions_give_means_in_f16() {
        const LENGTH: usize = 8192;
        const SIZE: usize = 8;
        let value = |at: usize| 17.0 + ((at * 7) % 16) as f32 / 16.0;
        let upstream = |at: usize| 1e-4 * (1.0 + ((at * 5) % 8) as f32 / 8.0);
        let column = |number: &dyn Fn(usize) -> f32| {
            let numbers: Vec<f32> = (0..LENGTH).map(number).collect();
            let column = Tensor::<1>::from_floats(numbers.as_slice(), &Device::flex()).reshape([1, LENGTH, 1]);
            // A head of one column would be multiplied as a vector, whose sums flex rounds to f16 after every addition.
            column.repeat_dim(2, SIZE).cast(FloatDType::F16)
        };
        let input = Tensor::cat(vec![column(&|_| 0.0), column(&|_| 0.0), column(&value)], 2);
        let (output, kept) = attended(input, 1.into(), None);
        let gradient = to_input(kept, 1.into(), column(&upstream));
        let numbers = |tensor: Tensor<3>| tensor.cast(FloatDType::F64).into_data().iter::<f64>().collect::<Vec<_>>();
        let (output, gradient) =
            (numbers(output.slice_dim(2, 0..1)), numbers(gradient.slice_dim(2, 2 * SIZE..2 * SIZE + 1)));
        let share = |at: usize| f64::from(upstream(at)) / (at + 1) as f64;
        let largest: f64 = (0..LENGTH).map(share).sum();
        let (mut sum, mut rest) = (0.0, 0.0);
        for (at, output) in output.into_iter().enumerate() {
            sum += f64::from(value(at));
            let mean = sum / (at + 1) as f64;
            assert!((output - mean).abs() < 2e-3 * mean, "output {at} is {output}, not {mean}");
            let last = LENGTH - 1 - at;
            rest += share(last);
            // A head's gradients share one scale, so the error is relative to the largest of them.
            let found = gradient[last];
            assert!((found - rest).abs() < 2e-3 * largest, "the gradient of value {last} is {found}, not {rest}");
        }
    }

    #[test]
    fn attention_matches_f64() {
        for (heads, length) in crate::layers::causal_attention::cases(&[1, 7, 33]) {
            let columns = heads.columns() * 8;
            let (input, upstream) = (random([2, length, columns]), random([2, length, heads.query * 8]));
            in_all(&input, |input, bound| {
                let attention = |input| crate::layers::causal_attention(input, heads);
                let (output, gradient) = derived(attention, &input, &upstream);
                let (found, kept) = attended(input.clone(), heads, None);
                near(found, &output, bound);
                let upstream = as_given(upstream.clone(), &input);
                near(to_input(kept, heads, upstream), &gradient, bound);
            });
        }
    }

    #[test]
    fn attention_within_documents_matches_f64() {
        let heads = AttentionHeads { query: 4, key_value: 2, window: Some(5) };
        let (input, upstream) = (random([2, 9, 64]), random([2, 9, 32]));
        let starts = [[0, 0, 0, 3, 3, 3, 3, 7, 7], [0, 1, 1, 1, 1, 1, 1, 1, 1]];
        let starts = Tensor::<2, Int>::from_data(starts, &input.device());
        let attention = |input| crate::layers::causal_attention_within(input, heads, starts.clone());
        let (output, gradient) = derived(attention, &input, &upstream);
        let (found, kept) = attended(input, heads, Some(starts.clone()));
        near(found, &output, 1e-5);
        near(to_input(kept, heads, upstream), &gradient, 1e-5);
    }
}
