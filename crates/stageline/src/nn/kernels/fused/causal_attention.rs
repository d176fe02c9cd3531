//! Causal attention.

use std::cell::RefCell;

use burn::tensor::{Bool, DType, Device, Tensor};

use super::{as_given, wide};
use crate::nn::layers::causal_attention::scale;

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

/// `[batch, length, 3 x heads x size]` to `[3 x batch x heads, length, size]`: products take heads only where each is
/// in one piece.
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

/// Numbers in f16 are at most 65504, and have fewer than 11 bits below 6e-5. Weights that are not yet divided add up to
/// the length, and gradients that are divided are as small as one over it: what is stored in between is scaled into
/// that range.
struct Scales {
    /// The factor of queries before the product with keys, which is stored.
    query: f64,
    /// The rest of the scale of scores, applied to that product.
    rest: f64,
    /// The factor of weights.
    weights: f64,
}

impl Scales {
    /// The longest sequence whose values can be as large as 512 before their weighted sum leaves the range.
    const UNSCALED: usize = 128;

    fn of(dtype: DType, length: usize, size: usize) -> Self {
        let scale = scale(size);
        if dtype != DType::F16 {
            return Self { query: 1.0, rest: scale, weights: 1.0 };
        }
        // Powers of two, so that nothing is rounded.
        let query = scale.log2().floor().exp2();
        let times = length.div_ceil(Self::UNSCALED).next_power_of_two();
        Self { query, rest: scale / query, weights: 1.0 / times as f64 }
    }
}

/// The largest of the divided gradients of a head, once they are scaled for f16: sums of as many as 8192 have room.
const LARGEST: f64 = 0.125;

/// What gradients of a head, `[batch x heads, length, size]`, are multiplied by for f16, so that the largest is
/// [`LARGEST`]: `[batch x heads, 1, 1]`; `None` for other types, which have the range.
fn gradient_scales(dtype: DType, gradients: &Tensor<3>) -> Option<Tensor<3>> {
    let [heads, length, size] = gradients.dims();
    let largest = || gradients.clone().abs().reshape([heads, length * size]).max_dim(1);
    // Where there is no gradient, any scale does.
    (dtype == DType::F16).then(|| (largest().clamp_min(1e-30).recip() * LARGEST).reshape([heads, 1, 1]))
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
    let scales = Scales::of(parts.dtype(), length, size);
    let query = if scales.query == 1.0 { query } else { query * scales.query };
    let products = query.matmul(key.swap_dims(1, 2)).mask_fill(future(length, &parts.device()), f32::NEG_INFINITY);
    // In another shape, what follows is no part of the product's kernel, which would write it down in f32.
    let products = products.reshape([batch * heads * length, length]);
    let largest = wide(products.clone()).max_dim(1);
    let weights = ((wide(products) - largest) * scales.rest).exp();
    let weights = as_given(if scales.weights == 1.0 { weights } else { weights * scales.weights }, &parts);
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
    let gradient = wide(gradient.reshape([batch * heads, length, size])) * shares;
    let scales = gradient_scales(query.dtype(), &gradient);
    let scaled = |tensor: Tensor<3>| match &scales {
        Some(scales) => tensor * scales.clone(),
        None => tensor,
    };
    let (along, gradient) = (scaled(along), as_given(scaled(gradient), &query));
    let to_value = weights.clone().swap_dims(1, 2).matmul(gradient.clone());
    let to_weights = gradient.matmul(value.swap_dims(1, 2));
    let to_products = as_given((wide(to_weights) * scale(size) - along) * wide(weights), &query);
    let to_query = to_products.clone().matmul(key);
    let to_key = to_products.swap_dims(1, 2).matmul(query);
    let parts = [to_query, to_key, to_value].map(|part| match &scales {
        Some(scales) => as_given(wide(part) / scales.clone(), &output),
        None => part,
    });
    let parts = parts.map(|part| part.reshape([batch, 1, heads, length, size]));
    let parts = parts.map(|part| part.permute([0, 3, 1, 2, 4]));
    Tensor::cat(parts.to_vec(), 2).reshape([batch, length, 3 * width])
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use super::super::checks::{derived, in_all, near, random};
    use super::*;

    /// Constant scores divide by the length, and peaked ones by one: with values above 65504 / length, and with small
    /// gradients, in f16 as far as its 11 bits go.
    #[test]
    fn attention_in_f16_has_the_range_of_long_sequences() {
        use burn::tensor::{Distribution, FloatDType};

        use super::super::checks::exactly;
        const SIZE: usize = 8;
        let device = Device::flex();
        let uniform = |length: usize, bound: f64| {
            Tensor::<3>::random([1, length, SIZE], Distribution::Uniform(-1.0, 1.0), &device) * bound
        };
        let worst = |found: Tensor<3>, exact: &Tensor<3>| {
            let off = (exactly(&found) - exact.clone()).abs().max().into_scalar::<f64>();
            off / exact.clone().abs().max().into_scalar::<f64>()
        };
        // All queries and keys around a number, and how far: the products of those around 100 are 80000.
        for (length, around, scores, value, gradient) in [
            (1500, 0.0, 0.0, 100.0, 1.2e-4),
            (1500, 0.0, 0.0, 17.0, 1.0),
            (1500, 0.0, 8.0, 17.0, 3e-4),
            (1500, 0.0, 2.0, 1.0, 3e-4),
            (300, 0.0, 8.0, 200.0, 1.0),
            (300, 100.0, 0.0, 1.0, 1.0),
        ] {
            let (input, upstream) = crate::seeded(&device, 3, || {
                let [queries, keys] = [0, 1].map(|_| uniform(length, scores) + around);
                let values = uniform(length, 0.1 * value) + value;
                (Tensor::cat(vec![queries, keys, values], 2), uniform(length, 1.0) * gradient)
            });
            let (input, upstream) = (input.cast(FloatDType::F16), upstream.cast(FloatDType::F16));
            let (output, to_input_exact) =
                derived(|input| crate::nn::layers::causal_attention(input, 1), &input, &upstream);
            let (found, kept) = attended(input.clone(), 1);
            let off_output = worst(found, &output);
            let found = to_input(kept, 1, upstream);
            let part = |all: &Tensor<3>, part: usize| all.clone().slice_dim(2, part * SIZE..(part + 1) * SIZE);
            let off_value = worst(part(&found, 2), &part(&to_input_exact, 2));
            println!("{length} {scores} {value} {gradient}: outputs {off_output:.1e}, values {off_value:.1e}");
            // Scores of a hundred are stored to a sixteenth.
            let bound = if scores > 4.0 { 1e-2 } else { 2e-3 };
            assert!(
                off_output < bound && off_value < bound,
                "{length} {scores} {value} {gradient}: {off_output} {off_value}"
            );
            // Gradients of scores are differences of numbers as large as values times gradients.
            let size = value * gradient * (around + scores).max(1.0);
            for at in [0, 1] {
                let off = (exactly(&part(&found, at)) - part(&to_input_exact, at)).abs().max().into_scalar::<f64>();
                println!("  part {at}: off by {:.1e} of {size:.1e}", off / size);
                assert!(off < 5e-3 * size, "{length} {scores} {value} {gradient}: part {at} is off by {off} of {size}");
            }
        }
    }

    #[test]
    fn attention_is_that_of_f64() {
        for length in [1, 7, 33] {
            let (input, upstream) = (random([2, length, 3 * 24]), random([2, length, 24]));
            in_all(&input, |input, bound| {
                let (output, gradient) =
                    derived(|input| crate::nn::layers::causal_attention(input, 3), &input, &upstream);
                let (found, kept) = attended(input.clone(), 3);
                near(found, &output, bound);
                let upstream = as_given(upstream.clone(), &input);
                near(to_input(kept, 3, upstream), &gradient, bound);
            });
        }
    }
}
