//! [`causal_attention`]: causal self-attention over the queries, keys and values of all heads. It is one operation if
//! the backend has a kernel. Grouped queries, a sliding window and several documents per sample are supported.

use burn::tensor::activation::softmax;
use burn::tensor::{DType, FloatDType, Int, Tensor};

#[cfg(any(feature = "flex", feature = "gpu", feature = "remote"))]
use crate::engine::of_their_backend;
use crate::forward::flops::report_flops;
use crate::kernels::attention_blocks::{AttentionHeads, scale, scale_of_f16};
use crate::kernels::attention_mask::{before_document, hidden};
use crate::layers::at_least_f32::at_least_f32;

/// Computes causal self-attention: each position attends to itself and to the positions before it (Vaswani et al.,
/// 2017, [arXiv:1706.03762](https://arxiv.org/abs/1706.03762)).
///
/// `heads` is a number of heads, or an [`AttentionHeads`] for grouped queries or a sliding window. The input is
/// `[batch, length, columns]`: the queries of all query heads, then the keys of all key-value heads, then their values.
/// The output is `[batch, length, query heads x size]`, where size is the number of elements of a head.
///
/// - In f32 on this host's CPU, attention is one operation. It skips the scores of positions that no query attends to,
///   and saves its input and the attention weights for the backward pass. For long sequences (without a window, of more
///   than 2048 positions) it saves only the input, and the backward pass computes the weights again.
/// - On GPUs, attention with heads of at most 256 elements stores no scores, and the backward pass recomputes them. The
///   limit is lower on GPUs with little shared memory or few threads in a thread block. For larger heads burn's
///   operations compute all scores, and the attention weights are saved.
/// - On NVIDIA GPUs, bf16 and f16 attention uses tensor cores if the head size is a multiple of 16 and at most 128.
///   Other heads take much longer there.
/// - In other dtypes on this host's CPU, burn's operations compute all scores and save what they need.
///
/// # Panics
/// Panics if the columns do not divide into the heads, if the number of query heads is not a positive multiple of the
/// number of key-value heads, or if the window is 0.
pub fn causal_attention(query_key_value: Tensor<3>, heads: impl Into<AttentionHeads>) -> Tensor<3> {
    attention(query_key_value, heads.into(), None)
}

/// Computes causal self-attention without attention across document boundaries, for samples that consist of several
/// documents: a position attends only to itself and to earlier positions of its own document. The input contains the
/// queries, keys and values of all heads side by side, as for [`causal_attention`].
///
/// `starts`, `[batch, length]`, contains, for every position, the position where its document begins, counted from 0 at
/// the start of the sample.
///
/// # Panics
/// Panics if the columns do not match the heads or the window is 0, as [`causal_attention`] does, and if `starts` has
/// another shape. In f32 on this host's CPU it also panics if an element of `starts` is negative or greater than
/// its own position.
pub fn causal_attention_within(
    query_key_value: Tensor<3>,
    heads: impl Into<AttentionHeads>,
    starts: Tensor<2, Int>,
) -> Tensor<3> {
    attention(query_key_value, heads.into(), Some(starts))
}

fn attention(query_key_value: Tensor<3>, heads: AttentionHeads, starts: Option<Tensor<2, Int>>) -> Tensor<3> {
    let [batch, length, columns] = query_key_value.dims();
    let AttentionHeads { query, key_value, window } = heads;
    assert!(
        key_value > 0 && query > 0 && query.is_multiple_of(key_value),
        "{query} query heads cannot share {key_value} key-value heads; give a multiple of the key-value heads"
    );
    assert!(window != Some(0), "the attention window is 0; give 1 position or more, or `None`");
    assert!(
        columns.is_multiple_of(heads.columns()) && columns > 0,
        "{columns} columns do not divide into the queries, keys and values of {query} heads with {key_value} key-value heads"
    );
    if let Some(starts) = &starts {
        assert_eq!(
            starts.dims(),
            [batch, length],
            "the starts of documents must have the samples and positions of the input"
        );
    }
    let size = columns / heads.columns();
    if batch * length == 0 {
        return query_key_value.slice_dim(2, 0..query * size);
    }
    // Counts two products: queries with keys, and weights with values. Masked scores count as well, as is usual.
    report_flops(4.0 * (batch * length * length) as f64 * (query * size) as f64);
    #[cfg(any(feature = "flex", feature = "gpu", feature = "remote"))]
    if let Some(output) = of_their_backend!(one::causal_attention, &query_key_value, heads, starts.as_ref()) {
        return output;
    }
    let device = query_key_value.device();
    let split = query_key_value.reshape([batch, length, heads.columns(), size]).swap_dims(1, 2);
    let part = |start: usize, count: usize| split.clone().slice_dim(1, start..start + count);
    // Query heads that share a key-value head get a dimension of their own, along which burn broadcasts keys and
    // values.
    let grouped = |part: Tensor<4>| {
        let group = part.dims()[1] / key_value;
        part.reshape([batch, key_value, group, length, size])
    };
    let (queries, keys) = (grouped(part(0, query)), grouped(part(query, key_value)));
    let values = grouped(part(query + key_value, key_value));
    let (queries, rest) = match queries.dtype() {
        DType::F16 => {
            let [before, rest] = scale_of_f16(size);
            (queries * before, rest)
        }
        _ => (queries, scale(size)),
    };
    let scores = queries.matmul(keys.swap_dims(3, 4)) * rest;
    let mask = hidden(length, window, &device).unsqueeze::<5>().expand(scores.shape());
    let mask = match starts {
        Some(starts) => {
            let before = before_document(starts).reshape([batch, 1, 1, length, length]);
            mask.bool_or(before.expand(scores.shape()))
        }
        None => mask,
    };
    // The backward pass of burn's softmax squares the sum of a row, which is too large for f16 from 256 keys on.
    let given = FloatDType::from(scores.dtype());
    let wide = at_least_f32(given);
    let weights = softmax(scores.cast(wide).mask_fill(mask, f32::NEG_INFINITY), 4).cast(given);
    weights.matmul(values).reshape([batch, query, length, size]).swap_dims(1, 2).reshape([batch, length, query * size])
}

#[cfg(any(feature = "flex", feature = "gpu", feature = "remote"))]
mod one {
    use std::marker::PhantomData;

    use burn::backend::autodiff::checkpoint::base::Checkpointer;
    use burn::backend::autodiff::grads::Gradients;
    use burn::backend::autodiff::ops::{Backward, Ops};
    use burn::tensor::{Int, Tensor};

    use crate::kernels::attention_blocks::AttentionHeads;
    use crate::kernels::declared::name::CAUSAL_ATTENTION;
    use crate::kernels::{Kernels, indices, operation};

    /// Causal attention as a single operation in burn's autodiff graph.
    #[derive(Debug)]
    struct CausalAttention;

    /// Values that causal attention's forward pass saves for its backward pass.
    #[derive(Clone, Debug)]
    struct State<B: Kernels> {
        attended: B::Attended,
        heads: AttentionHeads,
    }

    impl<B: Kernels> Backward<B, 1> for CausalAttention {
        type State = State<B>;

        fn backward(self, ops: Ops<State<B>, 1>, gradients: &mut Gradients, _: &mut Checkpointer) {
            let gradient = gradients.consume::<B>(&ops.node);
            let State { attended, heads } = ops.state;
            if let [Some(parent)] = ops.parents {
                let to_input = B::causal_attention_to_input(&attended, heads, &gradient);
                gradients.register::<B>(parent.id, to_input);
            }
        }
    }

    /// Computes causal attention with the backend's kernel; returns `None` if there is no kernel for the input's dtype
    /// or device.
    pub fn causal_attention<B: Kernels>(
        _: PhantomData<B>,
        input: &Tensor<3>,
        heads: AttentionHeads,
        starts: Option<&Tensor<2, Int>>,
    ) -> Option<Tensor<3>> {
        let starts = match starts {
            Some(starts) => Some(indices::<B, 3, 2>(CAUSAL_ATTENTION, input, starts)?),
            None => None,
        };
        operation::<B, _, 1, 3, 3>(CAUSAL_ATTENTION, CausalAttention, [input], |[input]| {
            let (output, attended) = B::causal_attention(&input, heads, starts.as_ref());
            (output, State { attended, heads })
        })
    }
}

/// Returns the test cases for causal attention: every kind of attention heads with every sequence length in `lengths`.
/// Heads are plain, share keys and values, or have windows.
#[cfg(test)]
pub fn cases(lengths: &[usize]) -> Vec<(AttentionHeads, usize)> {
    let shared = |query, key_value, window| AttentionHeads { query, key_value, window };
    let heads = [3.into(), shared(4, 2, None), shared(3, 1, Some(20)), shared(2, 2, Some(1)), shared(2, 1, Some(500))];
    heads.into_iter().flat_map(|heads| lengths.iter().map(move |length| (heads, *length))).collect()
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use super::*;
    use burn::tensor::{Device, FloatDType, TensorData};

    use crate::test_numbers::uniform;

    const SIZE: usize = 5;

    fn numbers(tensor: Tensor<3>) -> Vec<f64> {
        tensor.cast(FloatDType::F64).into_data().iter::<f64>().collect()
    }

    /// Runs the forward pass and backward pass of an attention function in a test. Returns the output for `input` and
    /// the gradient of `input`, both as f64 numbers. `upstream` is the gradient of the output.
    fn both(attention: impl Fn(Tensor<3>) -> Tensor<3>, input: &Tensor<3>, upstream: &Tensor<3>) -> [Vec<f64>; 2] {
        let leaf = input.clone().autodiff().require_grad();
        let output = attention(leaf.clone());
        let gradients = (output.clone() * upstream.clone().autodiff()).sum().backward();
        [numbers(output.inner()), numbers(leaf.grad(&gradients).unwrap())]
    }

    /// Computes the output of causal attention by its definition in the Transformers library, in plain loops. `starts`
    /// contains, for each position, the position where its document begins.
    fn defined(input: &Tensor<3>, heads: AttentionHeads, starts: &[usize]) -> Vec<f64> {
        let [batch, length, columns] = input.dims();
        let (size, numbers) = (columns / heads.columns(), numbers(input.clone()));
        let at = |sample: usize, position: usize, head: usize| {
            let start = (sample * length + position) * columns + head * size;
            &numbers[start..start + size]
        };
        let sees =
            |i: usize, j: usize| j <= i && heads.window.is_none_or(|window| i - j < window) && starts[i] == starts[j];
        let mut output = Vec::new();
        for row in 0..batch * length * heads.query {
            let (sample, i, head) = (row / heads.query / length, row / heads.query % length, row % heads.query);
            let key = heads.query + head / (heads.query / heads.key_value);
            let visible: Vec<usize> = (0..length).filter(|j| sees(i, *j)).collect();
            let score = |j: &usize| -> f64 {
                at(sample, i, head).iter().zip(at(sample, *j, key)).map(|(query, key)| query * key).sum()
            };
            let weights: Vec<f64> = visible.iter().map(|j| (score(j) / (size as f64).sqrt()).exp()).collect();
            let total: f64 = weights.iter().sum();
            output.extend((0..size).map(|element| {
                let value = |j: usize| at(sample, j, key + heads.key_value)[element];
                visible.iter().zip(&weights).map(|(j, weight)| weight * value(*j)).sum::<f64>() / total
            }));
        }
        output
    }

    /// Returns the largest absolute difference between two numbers at the same index in two lists.
    fn apart(found: &[f64], expected: &[f64]) -> f64 {
        assert_eq!(found.len(), expected.len());
        let apart = found.iter().zip(expected).map(|(found, expected)| (found - expected).abs());
        apart.inspect(|apart| assert!(apart.is_finite())).fold(0.0, f64::max)
    }

    /// Tests causal attention with a window of three positions. The expected outputs are those of the Transformers
    /// library in f64: of `eager_attention_forward` with the mask of `create_sliding_window_causal_mask`.
    #[test]
    fn a_window_has_the_outputs_of_transformers() {
        let input: Vec<f32> = (0..48_u16).map(|at| (f32::from(at * 7 % 11) - 5.0) / 4.0).collect();
        let input = Tensor::<3>::from_data(TensorData::new(input, [1, 6, 8]), &Device::flex());
        let expected = [
            [1.0, 0.0, 1.0, 0.0],
            [1.122_238, 0.122_238, 1.108_524, 0.108_524],
            [0.299_900, 0.257_363, 0.460_493, 0.220_690],
            [-0.429_806, 0.522_033, -0.265_937, 0.485_288],
            [-1.043_684, 0.706_316, -1.0, 0.75],
            [-0.779_310, 0.970_690, -0.826_204, 0.923_796],
        ];
        let heads = AttentionHeads { query: 2, key_value: 1, window: Some(3) };
        assert!(apart(&numbers(causal_attention(input.clone(), heads)), &expected.concat()) < 5e-6);
        assert!(apart(&defined(&input, heads, &[0; 6]), &expected.concat()) < 1e-6);
    }

    #[test]
    fn output_and_gradient_match_those_in_f64() {
        let device = Device::flex();
        // The lengths are less than a block of queries, one block, and more than one block.
        for (heads, length) in cases(&[1, 37, 64, 131]) {
            let random = |heads: usize, bound: f64| uniform([2, length, heads * SIZE], -bound..bound, &device);
            let (input, upstream) = (random(heads.columns(), 2.5), random(heads.query, 2.0));
            let [output, gradient] = both(|input| causal_attention(input, heads), &input, &upstream);
            assert_eq!(numbers(causal_attention(input.clone(), heads)), output, "a graph must not change the result");
            // No kernel takes f64, so the exact values come from burn's own operations.
            let exactly = |tensor: &Tensor<3>| tensor.clone().cast(FloatDType::F64);
            let exact = both(|input| causal_attention(input, heads), &exactly(&input), &exactly(&upstream));
            let by_definition = defined(&input, heads, &vec![0; length]);
            assert!(apart(&exact[0], &by_definition) < 1e-6, "{heads:?} {length}");
            let off = [apart(&output, &exact[0]), apart(&gradient, &exact[1])];
            println!("{heads:?} {length}: outputs are off by {:.1e}, gradients by {:.1e}", off[0], off[1]);
            // The scores are at most 14, so their error is at most 5e-6 and the relative error of the weights twice
            // that.
            assert!(off[0] < 2e-5 && off[1] < 1e-4, "{heads:?} {length}: {off:?}");
        }
    }

    /// Tests that attention over two documents in one sample gives the outputs and gradients of two samples with one
    /// document each.
    #[test]
    fn documents_of_a_sample_do_not_see_each_other() {
        let device = Device::flex();
        for (heads, length) in cases(&[3, 100]) {
            let random = |columns| uniform([2, length, columns * SIZE], 0.0..1.0, &device);
            let (input, upstream) = (random(heads.columns()), random(heads.query));
            let alone = both(|input| causal_attention(input, heads), &input, &upstream);
            let packed = |samples: &Tensor<3>| {
                let [_, _, columns] = samples.dims();
                samples.clone().reshape([1, 2 * length, columns])
            };
            let starts = [Tensor::<1, Int>::zeros([length], &device), Tensor::full([length], length as i64, &device)];
            let starts = Tensor::cat(starts.to_vec(), 0).unsqueeze::<2>();
            let within = |input| causal_attention_within(input, heads, starts.clone());
            let found = both(within, &packed(&input), &packed(&upstream));
            let by_definition = defined(&packed(&input), heads, &[vec![0; length], vec![length; length]].concat());
            assert!(apart(&found[0], &by_definition) < 1e-5, "{heads:?} {length}");
            // No kernel takes f64, so burn's own operations compute this.
            let exact = numbers(within(packed(&input).cast(FloatDType::F64)));
            assert!(apart(&exact, &by_definition) < 1e-6, "{heads:?} {length}");
            let off = |index: usize| apart(&alone[index], &found[index]);
            assert!(off(0) < 1e-5 && off(1) < 1e-5, "{heads:?} {length}: {} {}", off(0), off(1));
        }
    }

    /// Tests that two documents in one sample, which is so long that the backward pass computes the attention weights
    /// again, have the outputs and gradients of two samples whose weights are saved.
    #[test]
    fn documents_of_a_long_sample_do_not_see_each_other() {
        const LENGTH: usize = 1100;
        let (device, heads) = (Device::flex(), AttentionHeads { query: 2, key_value: 1, window: None });
        let random = |columns| uniform([2, LENGTH, columns * SIZE], 0.0..1.0, &device);
        let (input, upstream) = (random(heads.columns()), random(heads.query));
        let alone = both(|input| causal_attention(input, heads), &input, &upstream);
        let packed = |samples: Tensor<3>, columns: usize| samples.reshape([1, 2 * LENGTH, columns * SIZE]);
        let starts = [Tensor::<1, Int>::zeros([LENGTH], &device), Tensor::full([LENGTH], LENGTH as i64, &device)];
        let starts = Tensor::cat(starts.to_vec(), 0).unsqueeze::<2>();
        let within = |input| causal_attention_within(input, heads, starts.clone());
        let found = both(within, &packed(input, heads.columns()), &packed(upstream, heads.query));
        let off = [0, 1].map(|index| apart(&alone[index], &found[index]));
        assert!(off[0] < 1e-5 && off[1] < 1e-5, "{off:?}");
    }

    #[test]
    fn later_positions_are_masked_and_nan_propagates() {
        let device = Device::flex();
        let attend = |last: f32| {
            let values = [1.0, 2.0, 3.0, last, last, last];
            let input = Tensor::<1>::from_floats(values, &device).reshape([1, 2, 3]);
            numbers(causal_attention(input, 1))
        };
        assert_eq!((attend(0.5)[0], attend(500.0)[0]), (3.0, 3.0));
        assert!(attend(f32::NAN)[1].is_nan());
    }

    #[test]
    fn an_empty_batch_gives_an_empty_output() {
        let nothing = Tensor::<3>::zeros([0, 4, 6], &Device::flex());
        assert_eq!(causal_attention(nothing, 2).dims(), [0, 4, 2]);
    }

    #[test]
    #[should_panic = "8 columns do not divide into the queries, keys and values of 2 heads with 2 key-value heads"]
    fn columns_that_do_not_divide_into_heads_are_rejected() {
        causal_attention(Tensor::zeros([1, 2, 8], &Device::flex()), 2);
    }

    #[test]
    #[should_panic(expected = "the starts of documents must have the samples and positions of the input")]
    fn starts_of_one_sample_are_not_those_of_two() {
        let starts = Tensor::<2, Int>::zeros([1, 4], &Device::flex());
        causal_attention_within(Tensor::zeros([2, 4, 3 * SIZE], &Device::flex()), 1, starts);
    }

    /// Tests the gradients of attention in f16 and bf16, which no CPU kernel takes, with more keys than the square root
    /// of the largest f16 number. All scores are about equal, so the sum of a row of the softmax is the number of keys.
    #[test]
    fn gradients_over_many_keys_are_right_in_half_precision() {
        let (device, length) = (Device::flex(), 300);
        let part = |bounds: std::ops::Range<f64>| uniform([1, length, SIZE], bounds, &device);
        let input = Tensor::cat(vec![part(-0.1..0.1), part(-1.0..1.0), part(0.5..1.5)], 2);
        let upstream = part(-0.1..0.1);
        let of = |dtype: FloatDType| {
            let [_, gradient] =
                both(|input| causal_attention(input, 1), &input.clone().cast(dtype), &upstream.clone().cast(dtype));
            // Compares only the gradients of the queries, which come from the backward pass of the softmax.
            gradient.chunks(3 * SIZE).flat_map(|row| row[..SIZE].to_vec()).collect::<Vec<_>>()
        };
        let exact = of(FloatDType::F64);
        let largest = exact.iter().fold(0.0_f64, |largest, number| largest.max(number.abs()));
        for (dtype, bound) in [(FloatDType::F16, 0.01), (FloatDType::BF16, 0.05)] {
            let off = apart(&of(dtype), &exact) / largest;
            assert!(off < bound, "{dtype:?}: {off}");
        }
    }

    /// Tests attention that burn's operations compute: document starts may be i64, and scores that would overflow in
    /// f16 before they are scaled give the right output.
    #[test]
    fn attention_without_a_kernel_takes_all_positions_and_large_scores() {
        let device = Device::flex();
        let starts = Tensor::<1, Int>::from_data(TensorData::new(vec![0_i64, 0, 2, 2], [4]), (&device, DType::I64));
        let input = Tensor::<3>::full([1, 4, 3 * 64], 32.0, &device).cast(FloatDType::F16);
        let output = causal_attention_within(input, 1, starts.reshape([1, 4]));
        assert!(numbers(output).iter().all(|number| (number - 32.0).abs() < 0.1));
    }
}
