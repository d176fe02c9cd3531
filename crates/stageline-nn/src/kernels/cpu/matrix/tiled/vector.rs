//! SIMD vector registers of f32 lanes ([`Vector`]).

use std::arch::x86_64::*;

/// A SIMD vector register of f32 lanes.
///
/// # Safety
/// The processor must have the register's instructions when a function is called. The addresses must be valid for the
/// elements that are loaded or stored.
pub trait Vector: Copy {
    /// Number of f32 lanes in the SIMD register.
    const LANES: usize;
    /// Number of SIMD registers in a row of the largest register tile, and therefore in a row of a packed panel.
    const IN_A_ROW: usize;

    /// Returns a register with `number` in all lanes (a broadcast).
    unsafe fn all(number: f32) -> Self;
    /// Loads consecutive elements from the address `from` into all lanes.
    unsafe fn load(from: *const f32) -> Self;
    /// Loads consecutive elements from the address `from` into the first `lanes` lanes, fewer than the register has.
    /// The other lanes become zero.
    unsafe fn load_first(from: *const f32, lanes: usize) -> Self;
    /// Stores all lanes as consecutive elements to the address `to`.
    unsafe fn store(self, to: *mut f32);
    /// Stores only the first `lanes` lanes, fewer than the register has, as consecutive elements to the address `to`.
    unsafe fn store_first(self, to: *mut f32, lanes: usize);
    /// Returns `self + other`, lane by lane.
    unsafe fn plus(self, other: Self) -> Self;
    /// Returns `self + one * other`, lane by lane, rounded once (a fused multiply-add).
    unsafe fn plus_product(self, one: Self, other: Self) -> Self;
}

/// Implements [`Vector`] for a register with the given intrinsics. `mask` is a function that returns a mask of the
/// first lanes.
macro_rules! vector {
    ($register:ty: $lanes:literal lanes, $in_a_row:literal in a row; $all:ident $load:ident $load_first:ident
     $store:ident $store_first:ident $add:ident $fma:ident $mask:ident) => {
        impl Vector for $register {
            const LANES: usize = $lanes;
            const IN_A_ROW: usize = $in_a_row;

            #[inline(always)]
            unsafe fn all(number: f32) -> Self {
                // SAFETY: the caller upholds the contract of `Vector`.
                unsafe { $all(number) }
            }

            #[inline(always)]
            unsafe fn load(from: *const f32) -> Self {
                // SAFETY: the caller upholds the contract of `Vector`.
                unsafe { $load(from) }
            }

            #[inline(always)]
            unsafe fn load_first(from: *const f32, lanes: usize) -> Self {
                // SAFETY: the caller upholds the contract of `Vector`, and the mask excludes all other elements.
                unsafe { $load_first(from, $mask(lanes)) }
            }

            #[inline(always)]
            unsafe fn store(self, to: *mut f32) {
                // SAFETY: the caller upholds the contract of `Vector`.
                unsafe { $store(to, self) }
            }

            #[inline(always)]
            unsafe fn store_first(self, to: *mut f32, lanes: usize) {
                // SAFETY: the caller upholds the contract of `Vector`, and the mask excludes all other elements.
                unsafe { $store_first(to, $mask(lanes), self) }
            }

            #[inline(always)]
            unsafe fn plus(self, other: Self) -> Self {
                // SAFETY: the caller upholds the contract of `Vector`.
                unsafe { $add(self, other) }
            }

            #[inline(always)]
            unsafe fn plus_product(self, one: Self, other: Self) -> Self {
                // SAFETY: the caller upholds the contract of `Vector`.
                unsafe { $fma(one, other, self) }
            }
        }
    };
}

vector!(__m512: 16 lanes, 4 in a row; _mm512_set1_ps _mm512_loadu_ps load_of_512
    _mm512_storeu_ps _mm512_mask_storeu_ps _mm512_add_ps _mm512_fmadd_ps mask_of_512);
vector!(__m256: 8 lanes, 2 in a row; _mm256_set1_ps _mm256_loadu_ps _mm256_maskload_ps
    _mm256_storeu_ps _mm256_maskstore_ps _mm256_add_ps _mm256_fmadd_ps mask_of_256);

/// Loads elements from the address `from` into the lanes that `mask` selects, and zeros into the other lanes.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load_of_512(from: *const f32, mask: __mmask16) -> __m512 {
    // SAFETY: the caller upholds the contract of `Vector`, so the selected elements are valid.
    unsafe { _mm512_maskz_loadu_ps(mask, from) }
}

/// Returns an AVX-512 mask that selects the first `lanes` lanes, at most 15.
#[inline(always)]
fn mask_of_512(lanes: usize) -> __mmask16 {
    (1 << lanes) - 1
}

/// Returns an AVX2 mask that selects the first `lanes` of the 8 lanes.
#[inline]
#[target_feature(enable = "avx2")]
fn mask_of_256(lanes: usize) -> __m256i {
    _mm256_cmpgt_epi32(_mm256_set1_epi32(lanes as i32), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7))
}
