//! The kernels of burn's own operations, for devices that fuse them: what is between two products or sums becomes one kernel.
//!
//! All of it is computed in f32, also of inputs in bf16 or f16, which are read and written as they are; products are burn's, in the
//! type of their inputs.
//!
//! burn's fusion takes operations as they come, and ends a kernel at the first that does not fit, with all that is used again
//! written down. So the order of operations counts here: what has another shape comes before, not in between, and what is cheap is
//! computed again instead of kept.

use std::cell::RefCell;
use std::f64::consts::{FRAC_1_SQRT_2, PI};

use burn::tensor::activation::log_softmax;
use burn::tensor::{Bool, Device, FloatDType, Int, IntDType, Tensor};

use super::causal_attention::scale;

fn wide<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
    if FloatDType::from(tensor.dtype()) == FloatDType::F64 { tensor } else { tensor.cast(FloatDType::F32) }
}

/// In the type of another tensor.
fn as_given<const D: usize, const E: usize>(tensor: Tensor<D>, given: &Tensor<E>) -> Tensor<D> {
    tensor.cast(FloatDType::from(given.dtype()))
}

/// The normal distribution's, at so many deviations.
fn cumulative(x: Tensor<2>) -> Tensor<2> {
    (x * FRAC_1_SQRT_2).erf() * 0.5 + 0.5
}

pub(super) fn gelu_of(input: &Tensor<2>) -> Tensor<2> {
    let x = wide(input.clone());
    as_given(x.clone() * cumulative(x), input)
}

pub(super) fn gelu_to_input(input: &Tensor<2>, gradient: Tensor<2>) -> Tensor<2> {
    let x = wide(input.clone());
    let density = (x.clone() * x.clone() * -0.5).exp() * (1.0 / (2.0 * PI).sqrt());
    as_given(wide(gradient) * (cumulative(x.clone()) + x * density), input)
}

/// `[rows, columns]` to `[groups, rows, columns]`, which are added up side by side, and then they: one long sum leaves most of a GPU
/// idle. As many as divide the rows, of the powers of two.
fn in_groups(rows: &Tensor<2>, most: usize) -> Tensor<3> {
    let [count, columns] = rows.dims();
    let groups = most.min(1 << count.trailing_zeros());
    rows.clone().reshape([groups, count / groups, columns])
}

/// The groups of rows: so many that with all columns a GPU is busy, so few that their own sum is short.
const ROWS: usize = 256;

/// `[groups, rows, columns]` to `[columns]`, in the type of another tensor.
fn sum_of_groups(all: Tensor<3>, given: &Tensor<2>) -> Tensor<1> {
    // Times one, because burn's fusion makes one kernel of a sum and the operations before it, of the same shape, only where there are
    // such, and where another operation follows.
    let of_each = (all.sum_dim(1) * 1.0).squeeze_dim::<2>(1);
    as_given((of_each * 1.0).sum_dim(0), given).squeeze_dim(0)
}

/// `[rows, columns]` to `[columns]`.
pub(super) fn sum_of_rows(rows: &Tensor<2>) -> Tensor<1> {
    sum_of_groups(wide(in_groups(rows, ROWS)), rows)
}

/// Of each row, `[rows, 1]`.
#[derive(Clone, Debug)]
pub(crate) struct Moments<T> {
    pub(super) mean: T,
    pub(super) over_deviation: T,
}

pub(super) fn normalised(
    input: &Tensor<2>,
    gamma: Tensor<1>,
    beta: Option<Tensor<1>>,
    epsilon: f32,
) -> (Tensor<2>, Moments<Tensor<2>>) {
    let gamma = wide(gamma).unsqueeze::<2>();
    let beta = beta.map(|beta| wide(beta).unsqueeze::<2>());
    let mean = wide(input.clone()).mean_dim(1);
    let centred = || wide(input.clone()) - mean.clone();
    let over_deviation = (centred().square().mean_dim(1) + epsilon).sqrt().recip();
    let scaled = centred() * over_deviation.clone() * gamma;
    let output = match beta {
        Some(beta) => scaled + beta,
        None => scaled,
    };
    (as_given(output, input), Moments { mean, over_deviation })
}

pub(super) fn normalised_to_input(
    input: &Tensor<2>,
    gamma: Tensor<1>,
    Moments { mean, over_deviation }: Moments<Tensor<2>>,
    gradient: Tensor<2>,
) -> Tensor<2> {
    let gamma = wide(gamma).unsqueeze::<2>();
    let hat = || (wide(input.clone()) - mean.clone()) * over_deviation.clone();
    let scaled = || wide(gradient.clone()) * gamma.clone();
    let along = (scaled() * hat()).mean_dim(1);
    let plain = scaled().mean_dim(1);
    as_given((scaled() - plain - hat() * along) * over_deviation.clone(), input)
}

pub(super) fn normalised_to_parameters(
    input: &Tensor<2>,
    Moments { mean, over_deviation }: Moments<Tensor<2>>,
    gradient: &Tensor<2>,
) -> [Tensor<1>; 2] {
    let [input, mean, over_deviation, upstream] =
        [input, &mean, &over_deviation, gradient].map(|rows| in_groups(rows, ROWS));
    let to_gamma = (wide(input) - mean) * over_deviation * wide(upstream);
    [sum_of_groups(to_gamma, gradient), sum_of_rows(gradient)]
}

/// What the backward of attention takes.
#[derive(Clone, Debug)]
pub(crate) struct Attended<T> {
    /// Queries, keys and values: `[3 x batch x heads, length, size]`.
    pub(super) parts: T,
    /// `[batch x heads, length, length]`.
    pub(super) weights: T,
    /// `[batch, length, heads x size]`.
    pub(super) output: T,
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

pub(super) fn causal_attention(input: Tensor<3>, heads: usize) -> (Tensor<3>, Attended<Tensor<3>>) {
    let [batch, length, columns] = input.dims();
    let (width, size) = (columns / 3, columns / (3 * heads));
    let parts = apart(input, heads);
    let [query, key, value] = each(&parts);
    let products = query.matmul(key.swap_dims(1, 2)).mask_fill(future(length, &parts.device()), f32::NEG_INFINITY);
    // In another shape, what follows is no part of the product's kernel, which would write it down in f32.
    let products = products.reshape([batch * heads * length, length]);
    let largest = wide(products.clone()).max_dim(1);
    let exponentials = || ((wide(products.clone()) - largest.clone()) * scale(size)).exp();
    let sums = exponentials().sum_dim(1);
    let weights = as_given(exponentials() / sums, &parts).reshape([batch * heads, length, length]);
    let output = weights.clone().matmul(value).reshape([batch, heads, length, size]);
    let output = output.swap_dims(1, 2).reshape([batch, length, width]);
    (output.clone(), Attended { parts, weights, output })
}

pub(super) fn causal_attention_to_input(
    Attended { parts, weights, output }: Attended<Tensor<3>>,
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
    let gradient = gradient.reshape([batch, length, heads, size]).swap_dims(1, 2);
    let gradient = gradient.reshape([batch * heads, length, size]);
    let to_value = weights.clone().swap_dims(1, 2).matmul(gradient.clone());
    let to_weights = gradient.matmul(value.swap_dims(1, 2));
    let to_products = as_given((wide(to_weights) * scale(size) - along) * wide(weights), &query);
    let to_query = to_products.clone().matmul(key);
    let to_key = to_products.swap_dims(1, 2).matmul(query);
    let parts = [to_query, to_key, to_value].map(|part| part.reshape([batch, 1, heads, length, size]));
    let parts = parts.map(|part| part.permute([0, 3, 1, 2, 4]));
    Tensor::cat(parts.to_vec(), 2).reshape([batch, length, 3 * width])
}

/// 1 at every index, else 0: `[indices, count]`.
fn is_at(indices: Tensor<1, Int>, count: usize) -> Tensor<2> {
    let places = Tensor::<1, Int>::arange(0..count as i64, &indices.device()).unsqueeze::<2>();
    // Comparisons on GPUs take both sides as the type of one.
    let indices = indices.cast(IntDType::from(places.dtype())).unsqueeze_dim(1);
    places.equal(indices).float()
}

/// What was taken by indices, `[indices, width]`, added up in a table, `[rows, width]`, by a product: in f32, and at once, where one
/// sum after the other would have a GPU wait for each.
pub(super) fn to_table(gradient: Tensor<2>, indices: Tensor<1, Int>, rows: usize) -> Tensor<2> {
    as_given(is_at(indices, rows), &gradient).swap_dims(0, 1).matmul(gradient)
}

/// The sum, and of each row the logarithm of what all classes come to, `[rows, classes]`.
pub(super) fn cross_entropy(logits: Tensor<2>, targets: Tensor<1, Int>) -> (Tensor<1>, Tensor<2>) {
    let likelihoods = log_softmax(wide(logits), 1);
    (-likelihoods.clone().gather(1, targets.unsqueeze_dim(1)).sum(), likelihoods)
}

pub(super) fn cross_entropy_to_logits(
    logits: &Tensor<2>,
    likelihoods: Tensor<2>,
    targets: Tensor<1, Int>,
    gradient: Tensor<1>,
) -> Tensor<2> {
    let is_target = as_given(is_at(targets, likelihoods.dims()[1]), &likelihoods);
    as_given((likelihoods.exp() - is_target) * wide(gradient).unsqueeze(), logits)
}

pub(super) fn sum_of_squares(tensor: Tensor<1>) -> Tensor<1> {
    let of_groups = in_groups(&tensor.unsqueeze_dim(1), 1024).squeeze_dim::<2>(2);
    // Times one, as above.
    (of_groups.cast(FloatDType::F64).square().sum_dim(1) * 1.0).sum_dim(0).squeeze_dim(0)
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use burn::tensor::module::layer_norm;
    use burn::tensor::{DType, Distribution, TensorData, activation};

    use super::*;

    fn random<const D: usize>(shape: [usize; D]) -> Tensor<D> {
        Tensor::random(shape, Distribution::Uniform(-2.0, 2.0), &Device::flex())
    }

    fn exactly<const D: usize>(tensor: &Tensor<D>) -> Tensor<D> {
        tensor.clone().cast(FloatDType::F64)
    }

    /// What a function gives in f64, and what burn derives from it.
    fn derived<const D: usize, const E: usize>(
        function: impl Fn(Tensor<D>) -> Tensor<E>,
        input: &Tensor<D>,
        upstream: &Tensor<E>,
    ) -> (Tensor<E>, Tensor<D>) {
        let leaf = exactly(input).autodiff().require_grad();
        let output = function(leaf.clone());
        let gradients = (output.clone() * exactly(upstream).autodiff()).sum().backward();
        (output.inner(), leaf.grad(&gradients).unwrap())
    }

    /// In f32, bf16 and f16; the latter two as far as their 8 and 11 bits go.
    fn in_all<const D: usize>(tensor: &Tensor<D>, check: impl Fn(Tensor<D>, f64)) {
        check(tensor.clone(), 1e-5);
        check(tensor.clone().cast(FloatDType::BF16), 3e-2);
        check(tensor.clone().cast(FloatDType::F16), 4e-3);
    }

    #[track_caller]
    fn near<const D: usize>(found: Tensor<D>, exact: &Tensor<D>, bound: f64) {
        let off = (exactly(&found) - exact.clone()).abs().max().into_scalar::<f64>();
        let of = exact.clone().abs().max().into_scalar::<f64>().max(1.0);
        assert!(off <= bound * of, "off by {off:.1e} of {of:.1e}");
    }

    #[test]
    fn gelu_is_burns_in_f64() {
        let (input, upstream) = (random([20, 25]), random([20, 25]));
        in_all(&input, |input, bound| {
            let (output, gradient) = derived(activation::gelu, &input, &upstream);
            near(gelu_of(&input), &output, bound);
            near(gelu_to_input(&input, upstream.clone()), &gradient, bound);
        });
    }

    #[test]
    fn layer_norm_is_burns_in_f64() {
        for rows in [31, 512] {
            let (input, upstream) = (random([rows, 48]), random([rows, 48]));
            let (gamma, beta) = (random([48]), random([48]));
            in_all(&input, |input, bound| {
                let inner = |tensor: &Tensor<1>| exactly(tensor).autodiff();
                let (output, gradient) =
                    derived(|input| layer_norm(input, inner(&gamma), Some(inner(&beta)), 1e-5), &input, &upstream);
                let (found, moments) = normalised(&input, gamma.clone(), Some(beta.clone()), 1e-5);
                near(found, &output, bound);
                near(normalised_to_input(&input, gamma.clone(), moments.clone(), upstream.clone()), &gradient, bound);
                let [input_f64, upstream_f64] = [&input, &upstream].map(exactly);
                let of_gamma = |gamma| layer_norm(input_f64.clone().autodiff(), gamma, Some(inner(&beta)), 1e-5);
                let (_, to_gamma) = derived(of_gamma, &gamma, &upstream_f64);
                let [found_gamma, found_beta] = normalised_to_parameters(&input, moments, &upstream);
                near(found_gamma, &to_gamma, bound);
                near(found_beta, &upstream_f64.sum_dim(0).squeeze_dim(0), bound);
            });
        }
    }

    #[test]
    fn attention_is_that_of_f64() {
        for length in [1, 7, 33] {
            let (input, upstream) = (random([2, length, 3 * 24]), random([2, length, 24]));
            in_all(&input, |input, bound| {
                let (output, gradient) = derived(|input| crate::nn::causal_attention(input, 3), &input, &upstream);
                let (found, attended) = causal_attention(input.clone(), 3);
                near(found, &output, bound);
                let upstream = as_given(upstream.clone(), &input);
                near(causal_attention_to_input(attended, 3, upstream), &gradient, bound);
            });
        }
    }

    #[test]
    fn cross_entropy_is_that_of_f64() {
        let (logits, upstream) = (random([20, 9]), random([1]));
        let targets: Vec<_> = (0..20_i64).map(|row| row * 5 % 9).collect();
        let targets = Tensor::<1, Int>::from_data(TensorData::new(targets, [20]), &Device::flex());
        let targets = targets.cast(IntDType::I64);
        in_all(&logits, |logits, bound| {
            let (sum, gradient) =
                derived(|logits| crate::nn::cross_entropy(logits, targets.clone().autodiff()), &logits, &upstream);
            let (found, likelihoods) = cross_entropy(logits.clone(), targets.clone());
            near(found, &sum, 1e-5);
            near(cross_entropy_to_logits(&logits, likelihoods, targets.clone(), upstream.clone()), &gradient, bound);
        });
    }

    #[test]
    fn a_table_gets_what_was_taken_of_it() {
        let gradient = random([700, 6]);
        let indices: Vec<_> = (0..700_i64).map(|at| at * at % 5).collect();
        let mut expected = vec![0.0; 5 * 6];
        for (value, at) in exactly(&gradient).into_data().iter::<f64>().zip(0..) {
            expected[indices[at / 6] as usize * 6 + at % 6] += value;
        }
        let expected = Tensor::<2>::from_data(TensorData::new(expected, [5, 6]), (&Device::flex(), DType::F64));
        let indices = Tensor::<1, Int>::from_data(TensorData::new(indices, [700]), &Device::flex());
        in_all(&gradient, |gradient, bound| near(to_table(gradient, indices.clone(), 5), &expected, bound));
    }

    #[test]
    fn squares_are_summed_in_f64() {
        for count in [7, 1000, 6144] {
            let numbers = random([count]);
            near(sum_of_squares(numbers.clone()), &(exactly(&numbers) * exactly(&numbers)).sum(), 1e-12);
        }
    }
}
