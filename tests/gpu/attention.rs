//! Tests of attention on an asynchronous device: its outputs and gradients are those of attention in f64, in f32 and in
//! half precision, and no tensor with a score for each pair of a query and a key is allocated.

use std::io::Write;

use burn::tensor::{Device, Distribution, FloatDType, Int, IntDType, Tensor, TensorData};
use stageline::nn::{AttentionHeads, causal_attention, causal_attention_within};
use stageline_workspace::own_process::ran_in_a_process_of_its_own;

use crate::attention_scales::{Attention, row_scales};
use crate::{gpu_name, open};

/// Returns the output of attention and the gradient of its input, as f64 numbers. Both are computed on the input's
/// device and in its type. `starts` has the position at which the document of each position begins. `upstream` is the
/// gradient of the output; its numbers must be exact in the input's type.
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

/// Returns random queries, keys and values, and a random gradient of attention's output, in f32 on the host. The
/// numbers are uniform from -1.5 to 1.5.
fn random(heads: AttentionHeads, [samples, length, size]: [usize; 3]) -> [Tensor<3>; 2] {
    let mut state = (samples * length * size) as u64;
    let mut number = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 40) as f32 / (1 << 24) as f32 - 0.5) * 3.0
    };
    [heads.query + 2 * heads.key_value, heads.query].map(|columns| {
        let shape = [samples, length, columns * size];
        // burn's own generator is that of the whole process, in which other tests draw the parameters of their models.
        let numbers: Vec<f32> = (0..shape.iter().product()).map(|_| number()).collect();
        Tensor::from_data(TensorData::new(numbers, shape), &Device::flex())
    })
}

fn exactly(tensor: &Tensor<3>) -> Tensor<3> {
    tensor.clone().cast(FloatDType::F64)
}

fn numbers(tensor: &Tensor<3>) -> Vec<f64> {
    tensor.clone().into_data().iter::<f64>().collect()
}

/// Asserts that attention on the device gives the same output and gradient as attention in f64 on the host, up to
/// rounding. The error of each row (one head at one position) is compared with the scale of that row. So small rows
/// must be as exact as large ones. `shape` has the number of samples, the length of a sample, and the size of a head.
fn check(device: &Device, heads: AttentionHeads, shape: [usize; 3], starts: Option<Vec<i64>>) {
    let (size, within) = (shape[2], within(shape[2]));
    let [input, upstream] = random(heads, shape);
    let tensor = |device: &Device| positions(&starts, shape, device);
    let exact = both(&exactly(&input), heads, tensor(&Device::flex()), &exactly(&upstream));
    let (input_numbers, upstream_numbers) = (numbers(&exactly(&input)), numbers(&exactly(&upstream)));
    let (of_input, starts) = (input_numbers.as_slice(), starts.as_deref());
    let scales = row_scales(&Attention { input: of_input, upstream: &upstream_numbers, heads, shape, starts });
    let [on_device, upstream] = [input, upstream].map(|tensor| tensor.to_device(device));
    let found = both(&on_device, heads, tensor(device), &upstream);
    for (kind, ((found, exact), scales)) in
        ["output", "gradient"].into_iter().zip(found.iter().zip(&exact).zip(&scales))
    {
        assert_eq!((found.len(), found.len()), (exact.len(), size * scales.len()));
        let mut worst = 0.0_f64;
        for (at, (found, exact)) in found.iter().zip(exact).enumerate() {
            let row = at / size;
            let (apart, scale) = ((found - exact).abs(), scales[row]);
            // A NaN is not within the bound.
            assert!(apart <= within * scale, "{kind}, {heads:?}, {shape:?}, row {row}: {found} instead of {exact}");
            worst = worst.max(apart / scale);
        }
        println!("{kind}, {heads:?}, {shape:?}: {worst:.1e} of a row's scale");
    }
}

/// The largest allowed error of an attention result in f32, relative to the sum of the magnitudes of its terms. Each
/// term has rounding errors of about 10 times 2^-24. A sum of n terms in blocks adds about 2^-24 times the square root
/// of n. For 2048 terms, both together are 3e-6.
const WITHIN: f64 = 2e-5;

/// Returns the largest allowed error of an attention result in f32 with heads of `size` elements, relative to the sum
/// of the magnitudes of its terms. Heads of more than 256 elements have no kernel of ours. They are computed by burn's
/// products, for which NVIDIA's tensor cores round the factors to TF32, with 10 bits after the point.
fn within(size: usize) -> f64 {
    let is_tf32 = size > 256 && gpu_name().starts_with("cuda");
    if is_tf32 { 3e-3 } else { WITHIN }
}

/// Asserts that attention in half precision on the device gives the same output and gradient as attention in f64 on the
/// host, up to rounding. Both get the same input, rounded to the half-precision type. `spacing` is the distance from 1
/// to the next number of the type.
///
/// Kernels add in f32. On tensor cores, weights and gradients of scores are rounded before they are multiplied, and all
/// results are rounded once. WGSL allows rounding to either of the two nearest numbers. So the error of an output is at
/// most the spacing of numbers near the sum of its terms' magnitudes, plus the error of the computation in f32. A
/// gradient can have twice that error, because it is also computed from the rounded output.
fn check_in_half_precision(
    device: &Device,
    half: (FloatDType, f64),
    heads: AttentionHeads,
    shape: [usize; 3],
    starts: Option<Vec<i64>>,
) {
    check_with_gradients(device, half, heads, shape, starts, 1.0);
}

/// Asserts the same as [`check_in_half_precision`], but with output gradients that are `times` as large.
fn check_with_gradients(
    device: &Device,
    (dtype, spacing): (FloatDType, f64),
    heads: AttentionHeads,
    shape: [usize; 3],
    starts: Option<Vec<i64>>,
    times: f64,
) {
    let [input, upstream] = random(heads, shape);
    let [input, upstream] = [input, upstream * times].map(|tensor| tensor.cast(dtype).cast(FloatDType::F32));
    let exact = both(&exactly(&input), heads, positions(&starts, shape, &Device::flex()), &exactly(&upstream));
    let (input_numbers, upstream_numbers) = (numbers(&exactly(&input)), numbers(&exactly(&upstream)));
    let (of_input, of_starts) = (input_numbers.as_slice(), starts.as_deref());
    let scales =
        row_scales(&Attention { input: of_input, upstream: &upstream_numbers, heads, shape, starts: of_starts });
    let (on_device, upstream) = (input.cast(dtype).to_device(device), upstream.to_device(device));
    let found = both(&on_device, heads, positions(&starts, shape, device), &upstream);
    for (of, (kind, allowed)) in [("output", 1.0), ("gradient", 2.0)].into_iter().enumerate() {
        let (found, exact, scales) = (&found[of], &exact[of], &scales[of]);
        assert_eq!(found.len(), exact.len());
        let mut worst = 0.0_f64;
        for (at, (found, exact)) in found.iter().zip(exact).enumerate() {
            let row = at / shape[2];
            let (apart, most) = ((found - exact).abs(), (allowed * spacing + WITHIN) * scales[row] + SMALLEST / 2.0);
            assert!(apart <= most, "{kind} in {dtype:?}, {heads:?}, {shape:?}, row {row}: {found} instead of {exact}");
            worst = worst.max(apart / (spacing * scales[row]));
        }
        println!("{kind} in {dtype:?}, {heads:?}, {shape:?}: {worst:.2} spacings of a row's scale");
    }
}

/// Returns, for every position of every sample, the position at which its document begins.
fn positions(starts: &Option<Vec<i64>>, [samples, length, _]: [usize; 3], device: &Device) -> Option<Tensor<2, Int>> {
    let starts = starts.as_ref().map(|starts| Tensor::<1, Int>::from_data(starts.as_slice(), device));
    starts.map(|starts| starts.reshape([1, length]).repeat_dim(0, samples))
}

/// The smallest number above 0 in f16. Rounding to f16 has an error of up to half of it.
const SMALLEST: f64 = 1.0 / (1 << 24) as f64;

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
    // The first head is so large that blocks have fewer rows. The second is too large for the FlashAttention kernels.
    check(device, heads(2, 2, None), [2, 70, 200], None);
    check(device, heads(1, 1, None), [2, 40, 300], None);
}

/// Tests attention with large heads. Many GPUs compute them in blocks of 16 or 8 rows (queries or keys) instead of 32.
/// With 32 KB of shared memory, heads of 73 to 162 elements take 16 rows, and larger heads take 8. The tested lengths
/// are no multiples of a block, and several query heads share a key head.
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
            // The message goes to the standard error stream itself, which the test harness does not hide.
            let _ = writeln!(std::io::stderr(), "not tested: {} does not compute in {dtype:?}", gpu_name());
            continue;
        }
        // NVIDIA's tensor cores compute heads of a multiple of 16 elements, in blocks of 64 queries or keys.
        for size in [5, 48] {
            for length in [1, 33, 64, 100, 150] {
                for heads in [heads(4, 2, None), heads(3, 1, Some(20)), heads(2, 2, Some(70))] {
                    check_in_half_precision(device, (dtype, spacing), heads, [2, length, size], None);
                }
            }
        }
        check_in_half_precision(device, (dtype, spacing), heads(1, 1, None), [1, 600, 16], None);
        check_in_half_precision(device, (dtype, spacing), heads(4, 2, Some(19)), [1, 50, 128], None);
        check_in_half_precision(device, (dtype, spacing), heads(4, 2, None), [1, 200, 64], Some(documents(200, 77)));
        check_in_half_precision(
            device,
            (dtype, spacing),
            heads(2, 1, Some(90)),
            [1, 200, 128],
            Some(documents(200, 130)),
        );
    }
}

/// Tests gradients of a thousandth over 1024 keys in f16. Gradients of scores are then near the smallest numbers of
/// f16.
#[test]
fn small_gradients_in_f16_are_those_in_f64_rounded() {
    let device = &open("gpu")[0];
    if !device.supports_dtype(FloatDType::F16) {
        let _ = writeln!(std::io::stderr(), "not tested: {} does not compute in f16", gpu_name());
        return;
    }
    let half = (FloatDType::F16, 2.0_f64.powi(-10));
    check_with_gradients(device, half, heads(1, 1, None), [1, 1024, 64], None, 2.0_f64.powi(-10));
}

/// Returns, for every position of a sample, the position at which its document begins. All documents have `of`
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

/// Tests that attention gives the same bits for start positions of documents as unsigned integers and as signed
/// integers.
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

/// Runs the forward and the backward of attention on the device, for one sample of `length` positions. `documents_of`
/// is the number of positions in each document; `None` if the sample is one document.
fn attend(device: &Device, heads: AttentionHeads, length: usize, documents_of: Option<usize>) {
    let columns = 4 * (heads.query + 2 * heads.key_value);
    let leaf = Tensor::<3>::random([1, length, columns], Distribution::Default, device).autodiff().require_grad();
    let output = match documents_of {
        Some(of) => {
            let starts = Tensor::<1, Int>::from_data(documents(length, of).as_slice(), device);
            causal_attention_within(leaf.clone(), heads, starts.reshape([1, length]))
        }
        None => causal_attention(leaf.clone(), heads),
    };
    let gradients = output.sum().backward();
    assert!(leaf.grad(&gradients).unwrap().sum().into_scalar::<f64>().is_finite());
}

/// Tests that the memory of attention grows with the length, and not with its square. This also holds if queries see
/// only a window or their document. The scores of 8 heads over 2048 positions would take 134 MB. The test has a process
/// of its own, because memory that other tests have reserved could hold the scores.
#[test]
fn no_score_is_stored() {
    if ran_in_a_process_of_its_own() {
        return;
    }
    let device = &open("gpu")[0];
    let length = 2048;
    let scores = (8 * length * length * size_of::<f32>()) as u64;
    let reserved = || device.memory_pool_usage().expect("a GPU counts its memory").bytes_reserved;
    let before = reserved();
    for (window, documents_of) in [(None, None), (Some(600), None), (None, Some(700)), (Some(300), Some(700))] {
        attend(device, heads(8, 8, window), length, documents_of);
        let more = reserved().saturating_sub(before);
        let about = format!("a window of {window:?} and documents of {documents_of:?} positions");
        assert!(more < scores / 2, "{more} bytes more after {about}, and the scores have {scores}");
    }
}
