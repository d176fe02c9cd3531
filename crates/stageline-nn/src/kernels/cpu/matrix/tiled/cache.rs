//! A core's cache: the size of its lines, and loading them before they are used.

use std::arch::x86_64::_mm_prefetch;

/// The number of f32 numbers in a cache line.
pub const LINE: usize = 16;

/// Asks the processor to load the cache line of a number, which may lie outside any memory in use. `HINT` is one of the
/// constants `_MM_HINT_…`, which name the cache.
#[inline(always)]
pub fn prefetch<const HINT: i32>(number: *const f32) {
    // SAFETY: a prefetch changes nothing, whatever its address.
    unsafe { _mm_prefetch::<HINT>(number.cast()) };
}
