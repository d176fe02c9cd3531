//! The inputs of this crate's tests: numbers that look random and are the same in every run.

use std::cell::Cell;
use std::ops::Range;

use burn::tensor::{Device, Tensor, TensorData};

thread_local! {
    /// The number of elements that the test on this thread has drawn.
    static DRAWN: Cell<u64> = const { Cell::new(0) };
}

/// Returns a tensor with uniformly distributed elements in `range`. Every call on a thread continues the same sequence.
///
/// `Tensor::random` would use burn's generator, which all tests of a process share, so that a failure could not be
/// reproduced.
pub fn uniform<const D: usize>(shape: [usize; D], range: Range<f64>, device: &Device) -> Tensor<D> {
    let (count, first) = (shape.iter().product::<usize>() as u64, DRAWN.get());
    DRAWN.set(first + count);
    let number = |index: u64| (range.start + (range.end - range.start) * fraction(index)) as f32;
    Tensor::from_data(TensorData::new((first..first + count).map(number).collect(), shape), device)
}

/// Returns a number from 0 to 1 that looks random, from the finaliser of
/// [SplitMix64](https://doi.org/10.1145/2714064.2660195).
fn fraction(index: u64) -> f64 {
    let mut bits = (index + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((bits ^ (bits >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
}
