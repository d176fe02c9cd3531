//! The size of a cache line, and prefetching.

use std::arch::x86_64::_mm_prefetch;

/// The number of f32 elements in a cache line.
pub const LINE: usize = 16;

/// Prefetches the cache line that contains the address `number`, which may lie outside any allocated memory. `HINT` is
/// one of the constants `_MM_HINT_…`, which select the cache level.
#[inline(always)]
pub fn prefetch<const HINT: i32>(number: *const f32) {
    // SAFETY: a prefetch changes nothing, whatever its address.
    unsafe { _mm_prefetch::<HINT>(number.cast()) };
}
