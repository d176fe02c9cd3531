//! Tests of attention on an asynchronous device: its outputs and gradients are those of attention in f64, in f32 and in
//! half precision, and no tensor with a score for each pair of a query and a key is allocated.

use std::io::Write;

use burn::tensor::{Device, Distribution, FloatDType, Int, IntDType, Tensor};
use stageline::nn::{AttentionHeads, causal_attention, causal_attention_within};
use stageline_workspace::own_process::ran_in_a_process_of_its_own;

use crate::{gpu_name, open};

/// Returns the output of attention and the gradient of its input as f64 numbers, computed on the input's device and in
/// the input's type. `starts` are the positions at which each position's document begins, and `upstream` is the
/// gradient of the output, whose numbers the input's type has too.
fn both(
    input: &Tensor<3>,
    heads: AttentionHeads,
    starts: Option<Tensor<2, Int>>,
    upstream: &Tensor<3>,
) -> [Vec<f64>; 2] {
    let leaf = input.clone().autodiff().require_grad();
    let output = match starts {
        Some(starts) => causal_attention_within(leaf.clone(), heads, starts),
        None => causal_attention(leaf.clone(), heads),
    };
    let gradients = (output.clone().cast(upstream.dtype()) * upstream.clone().autodiff()).sum().backward();
    [output.inner(), leaf.grad(&gradients).unwrap()].map(|tensor| {
        let data = tensor.to_device(&Device::flex()).cast(FloatDType::F64).into_data();
        data.iter::<f64>().collect()
    })
}

/// Returns random queries, keys and values of `samples` samples and a random gradient of attention's output, in f32 on
/// the host.
fn random(heads: AttentionHeads, [samples, length, size]: [usize; 3]) -> [Tensor<3>; 2] {
    [heads.query + 2 * heads.key_value, heads.query].map(|columns| {
        let shape = [samples, length, columns * size];
        Tensor::random(shape, Distribution::Uniform(-1.5, 1.5), &Device::flex())
    })
}

fn exactly(tensor: &Tensor<3>) -> Tensor<3> {
    tensor.clone().cast(FloatDType::F64)
}

/// Returns the largest magnitude of some numbers, but at least 1.
fn largest(numbers: &[f64]) -> f64 {
    numbers.iter().copied().map(f64::abs).fold(1.0, f64::max)
}

/// Asserts that attention on the device gives the output and gradient of attention in f64 on the host, within the
/// rounding errors of f32 in the exponents of the weights and in each of up to `length` terms of a sum. `shape` has the
/// number of samples, the length of a sample, and the size of a head.
fn check(device: &Device, heads: AttentionHeads, shape: [usize; 3], starts: Option<Vec<i64>>) {
    let [samples, length, _] = shape;
    let [input, upstream] = random(heads, shape);
    let starts = |device: &Device| {
        let starts = starts.as_ref().map(|starts| Tensor::<1, Int>::from_data(starts.as_slice(), device));
        starts.map(|starts| starts.reshape([1, length]).repeat_dim(0, samples))
    };
    let exact = both(&exactly(&input), heads, starts(&Device::flex()), &exactly(&upstream));
    let [on_device, upstream] = [input, upstream].map(|tensor| tensor.to_device(device));
    let found = both(&on_device, heads, starts(device), &upstream);
    for (found, exact) in found.iter().zip(&exact) {
        assert_eq!(found.len(), exact.len());
        let largest = largest(exact);
        let each = found.iter().zip(exact).map(|(found, exact)| (found - exact).abs());
        // `f64::max` drops a NaN.
        let apart = each.inspect(|apart| assert!(apart.is_finite(), "{heads:?}, {shape:?}")).fold(0.0, f64::max);
        println!("{heads:?}, {shape:?}: {:.1e} of {largest:.1}", apart / largest);
        assert!(apart < WITHIN * largest, "{heads:?}, {shape:?}: {apart} of {largest}");
    }
}

/// The largest error of attention in f32, as a share of the largest number.
const WITHIN: f64 = 2e-5;

/// Asserts that attention on the device in half precision gives the output and gradient of attention in f64 on the host
/// for the same rounded input. `spacing` is the distance from 1 to the next number of the type.
///
/// Kernels compute in f32 and round each result once. WGSL allows rounding to either of the two nearest numbers of the
/// type. So the error of an output is at most the spacing of the type's numbers near the output, plus the error of the
/// computation in f32. A gradient can have twice that error, because it is computed from the rounded output and is
/// rounded itself.
fn check_in_half_precision(device: &Device, dtype: FloatDType, spacing: f64, heads: AttentionHeads, shape: [usize; 3]) {
    let [input, upstream] = random(heads, shape).map(|tensor| tensor.cast(dtype).cast(FloatDType::F32));
    let exact = both(&exactly(&input), heads, None, &exactly(&upstream));
    let (on_device, upstream) = (input.cast(dtype).to_device(device), upstream.to_device(device));
    let found = both(&on_device, heads, None, &upstream);
    for (kind, (found, exact)) in ["output", "gradient"].into_iter().zip(found.iter().zip(&exact)) {
        assert_eq!(found.len(), exact.len());
        let largest = largest(exact);
        for (found, exact) in found.iter().zip(exact) {
            let rounding = if kind == "output" { exact.abs() } else { 2.0 * largest };
            let (apart, most) = ((found - exact).abs(), spacing * rounding + WITHIN * largest);
            assert!(apart <= most, "{kind} in {dtype:?}, {heads:?}, {shape:?}: {found} instead of {exact}");
        }
    }
}

fn heads(query: usize, key_value: usize, window: Option<usize>) -> AttentionHeads {
    AttentionHeads { query, key_value, window }
}

#[test]
fn attention_is_that_in_f64_at_every_length() {
    let device = &open("gpu")[0];
    for length in [1, 2, 31, 32, 33, 100] {
        for heads in
            [heads(3, 3, None), heads(4, 2, None), heads(3, 1, Some(20)), heads(2, 2, Some(1)), heads(2, 1, Some(500))]
        {
            check(device, heads, [2, length, 5], None);
        }
    }
    check(device, heads(2, 1, None), [2, 513, 64], None);
    check(device, heads(2, 1, Some(130)), [1, 513, 64], None);
    check(device, heads(1, 1, None), [1, 2048, 8], None);
    check(device, heads(1, 1, Some(1000)), [1, 2048, 8], None);
    // A head so large that blocks have fewer rows, and one that is too large for the FlashAttention kernels.
    check(device, heads(2, 2, None), [2, 70, 200], None);
    check(device, heads(1, 1, None), [2, 40, 300], None);
}

/// Tests large heads, for which the blocks of many GPUs have 16 or 8 rows instead of 32: with 32 KB of shared memory, 16
/// rows from 73 to 162 elements, and 8 rows above. The lengths are no multiples of a block, and queries share keys.
#[test]
fn attention_with_large_heads_is_that_in_f64() {
    let device = &open("gpu")[0];
    for size in [80, 128, 256] {
        check(device, heads(4, 2, None), [2, 37, size], None);
        check(device, heads(4, 2, Some(19)), [1, 50, size], None);
        check(device, heads(4, 2, Some(30)), [2, 50, size], Some(documents(50, 21)));
    }
}

#[test]
fn attention_in_half_precision_is_that_in_f64_rounded() {
    let device = &open("gpu")[0];
    for (dtype, spacing) in [(FloatDType::F16, 2.0_f64.powi(-10)), (FloatDType::BF16, 2.0_f64.powi(-7))] {
        if !device.supports_dtype(dtype) {
            // Written to the standard error stream itself, which the test harness does not hide.
            let _ = writeln!(std::io::stderr(), "not tested: {} does not compute in {dtype:?}", gpu_name());
            continue;
        }
        for length in [1, 33, 100] {
            for heads in [heads(4, 2, None), heads(3, 1, Some(20))] {
                check_in_half_precision(device, dtype, spacing, heads, [2, length, 5]);
            }
        }
        check_in_half_precision(device, dtype, spacing, heads(1, 1, None), [1, 600, 16]);
        check_in_half_precision(device, dtype, spacing, heads(4, 2, Some(19)), [1, 50, 128]);
    }
}

/// Returns, for every position of a sample, the position at which its document begins, if all documents have `of`
/// positions.
fn documents(length: usize, of: usize) -> Vec<i64> {
    (0..length).map(|at| (at / of * of) as i64).collect()
}

#[test]
fn attention_within_documents_is_that_in_f64() {
    let device = &open("gpu")[0];
    check(device, heads(4, 2, None), [2, 100, 8], Some(documents(100, 37)));
    check(device, heads(4, 2, Some(5)), [2, 100, 8], Some(documents(100, 3)));
    check(device, heads(1, 1, Some(700)), [1, 2048, 8], Some(documents(2048, 600)));
}

/// Tests positions of documents in an unsigned type: the results have the bits of those for signed positions.
#[test]
fn attention_takes_unsigned_positions_of_documents() {
    let device = &open("gpu")[0];
    let heads = heads(2, 1, None);
    let [input, upstream] = random(heads, [1, 40, 8]).map(|tensor| tensor.to_device(device));
    let starts = Tensor::<1, Int>::from_data(documents(40, 17).as_slice(), device).reshape([1, 40]);
    let within = |dtype: IntDType| both(&input, heads, Some(starts.clone().cast(dtype)), &upstream);
    assert_eq!(within(IntDType::U32), within(IntDType::I32));
}

#[test]
fn a_nan_stays_a_nan_and_later_positions_have_no_weight() {
    let device = &open("gpu")[0];
    let attend = |last: f32| {
        let values = [1.0, 2.0, 3.0, last, last, last];
        let input = Tensor::<1>::from_floats(values, device).reshape([1, 2, 3]);
        causal_attention(input, 1).into_data().iter::<f64>().collect::<Vec<_>>()
    };
    assert_eq!((attend(0.5)[0], attend(500.0)[0]), (3.0, 3.0));
    assert!(attend(f32::NAN)[1].is_nan());
}

/// Tests that the memory of attention grows with the length and not with its square. The scores of 8 heads over 2048
/// positions would take 134 MB, and attention and its backward together reserve less on the device. The test has a
/// process of its own, because memory that other tests have reserved could hold the scores.
#[test]
fn no_score_is_stored() {
    if ran_in_a_process_of_its_own() {
        return;
    }
    let device = &open("gpu")[0];
    let (length, heads, size) = (2048, 8, 4);
    let scores = (heads * length * length * size_of::<f32>()) as u64;
    let reserved = || device.memory_pool_usage().expect("a GPU counts its memory").bytes_reserved;
    let before = reserved();
    let input = Tensor::<3>::random([1, length, 3 * heads * size], Distribution::Default, device);
    let leaf = input.autodiff().require_grad();
    let gradients = causal_attention(leaf.clone(), heads).sum().backward();
    let gradient = leaf.grad(&gradients).unwrap().sum().into_scalar::<f64>();
    let more = reserved().saturating_sub(before);
    assert!(gradient.is_finite() && more < scores / 2, "{more} bytes more, and the scores have {scores}");
}
