//! Compiles loops over slices for several SIMD instruction sets, and runs the widest that the processor has.
//!
//! Every version performs the operations of the source in the same order, and fuses a multiplication with an addition
//! only where the source calls `mul_add`. So results have the same bits on any processor. A processor without fused
//! multiply-add (FMA) runs the default version, in which `mul_add` is a slow library call.

/// Compiles a function for several instruction sets: AVX-512, AVX2 and the target's default. A call runs the version
/// with the widest SIMD vectors that the processor supports. On aarch64 only the default is compiled, which has NEON.
///
/// The body must loop with `for`. The closure of a `for_each` or a `fold` may be compiled as a separate function,
/// without these SIMD instructions.
macro_rules! wide {
    (fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)? $body:block) => {
        fn $name($($argument: $type),*) $(-> $result)? {
            #[inline(always)]
            fn run($($argument: $type),*) $(-> $result)? $body
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
                fn avx512($($argument: $type),*) $(-> $result)? {
                    run($($argument),*)
                }
                #[target_feature(enable = "avx2,fma")]
                fn avx2($($argument: $type),*) $(-> $result)? {
                    run($($argument),*)
                }
                if $crate::kernels::cpu::wide::has_avx512() {
                    // SAFETY: the processor has the instructions that the function is compiled for.
                    return unsafe { avx512($($argument),*) };
                }
                if $crate::kernels::cpu::wide::has_avx2() {
                    // SAFETY: the processor has the instructions that the function is compiled for.
                    return unsafe { avx2($($argument),*) };
                }
            }
            run($($argument),*)
        }
    };
}

pub(super) use wide;

/// Whether the processor has FMA and the AVX-512 extensions that functions of the macro `wide!` use. Every processor
/// with AVX-512 since Skylake-X has them.
#[cfg(target_arch = "x86_64")]
pub(super) fn has_avx512() -> bool {
    versions_left_out() < 1
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("fma")
}

/// Whether the processor has AVX2 and FMA.
#[cfg(target_arch = "x86_64")]
pub(super) fn has_avx2() -> bool {
    versions_left_out() < 2 && is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")
}

/// Returns how many instruction sets functions of the macro `wide!` skip on this thread, widest first: 1 skips AVX-512,
/// and 2 skips AVX-512 and AVX2. The result is 0 except in tests.
#[cfg(all(target_arch = "x86_64", not(test)))]
fn versions_left_out() -> usize {
    0
}

#[cfg(all(target_arch = "x86_64", test))]
fn versions_left_out() -> usize {
    versions::LEFT_OUT.get()
}

/// Number of partial sums that are accumulated in parallel when a row is summed: one for each f32 lane of an AVX-512
/// register.
pub(super) const LANES: usize = 16;

/// Returns the sum of `term` over the positions of one or more rows of the same length. `term` gets the elements of all
/// rows at a position. The order of the additions does not depend on the processor.
///
/// # Panics
/// Panics if a row is shorter than the first.
#[inline(always)]
pub(super) fn sum<const N: usize>(rows: [&[f32]; N], term: impl Fn([f32; N]) -> f32) -> f32 {
    let length = rows[0].len();
    let rows = rows.map(|row| row[..length].as_chunks::<LANES>());
    let mut lanes = [0.0; LANES];
    for index in 0..length / LANES {
        let parts = rows.map(|(parts, _)| &parts[index]);
        for lane in 0..LANES {
            lanes[lane] += term(parts.map(|part| part[lane]));
        }
    }
    for at in 0..length % LANES {
        lanes[at] += term(rows.map(|(_, rest)| rest[at]));
    }
    folded(lanes, |one, other| one + other)
}

/// Combines the values of all lanes in pairs: those of the two halves, then those of the halves of the result, and so
/// on. This takes 4 dependent operations instead of 15.
#[inline(always)]
fn folded(lanes: [f32; LANES], combine: impl Fn(f32, f32) -> f32) -> f32 {
    let eight: [f32; 8] = std::array::from_fn(|lane| combine(lanes[lane], lanes[lane + 8]));
    let four: [f32; 4] = std::array::from_fn(|lane| combine(eight[lane], eight[lane + 4]));
    combine(combine(four[0], four[2]), combine(four[1], four[3]))
}

/// Returns the largest element of a row, ignoring NaNs. Returns negative infinity if the row has no other elements.
#[inline(always)]
pub(super) fn largest(row: &[f32]) -> f32 {
    let larger = |one: f32, other: f32| if other > one { other } else { one };
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (whole, rest) = row.as_chunks::<LANES>();
    for part in whole {
        for lane in 0..LANES {
            lanes[lane] = larger(lanes[lane], part[lane]);
        }
    }
    for lane in 0..rest.len() {
        lanes[lane] = larger(lanes[lane], rest[lane]);
    }
    folded(lanes, larger)
}

/// Returns the exponential of an x of at most 0, such as a score minus its row's largest score. An x below -87 is
/// replaced by -87.
#[inline(always)]
pub(super) fn exp_from_below(x: f32) -> f32 {
    // The comparison keeps NaN, which `max` would replace by -87.
    exp(if x < -87.0 { -87.0 } else { x })
}

/// Returns the logistic function 1 / (1 + exp(-x)), accurate to a few units in the last place. For an x below -87, at
/// the end of f32's range, it returns 0.
#[inline(always)]
pub(super) fn sigmoid(x: f32) -> f32 {
    let small = exp_from_below(-x.abs());
    let above = if x < 0.0 { small } else { 1.0 };
    (if x < -87.0 { 0.0 } else { above }) / (1.0 + small)
}

/// Returns the exponential of an x from -87 to 0, accurate to a few units in the last place. The algorithm is that of
/// Cephes' `expf`: a power of 2 times a polynomial of the remainder.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    /// The constant 1.5 x 2^23, which rounds: adding it to a small f32 value leaves the nearest integer in the last
    /// bits of the sum.
    const ROUND: f32 = 12_582_912.0;
    let rounded = x.mul_add(std::f32::consts::LOG2_E, ROUND);
    let power = rounded - ROUND;
    // ln 2 is subtracted in two parts; the first has few bits, so that its product with `power` is exact.
    let rest = power.mul_add(2.121_944_4e-4, power.mul_add(-0.693_359_4, x));
    let mut polynomial = 1.987_569_1e-4_f32;
    for coefficient in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 0.166_666_65, 0.5] {
        polynomial = polynomial.mul_add(rest, coefficient);
    }
    let exp_of_rest = (polynomial * rest).mul_add(rest, rest) + 1.0;
    let whole = rounded.to_bits().wrapping_sub(ROUND.to_bits());
    exp_of_rest * f32::from_bits(whole.wrapping_add(127) << 23)
}

#[cfg(test)]
pub(super) mod versions {
    //! In tests, runs a function of the macro `wide!` with each of its instruction sets and compares the results.

    use std::cell::Cell;

    thread_local! {
        /// Number of instruction sets that functions of the macro `wide!` skip on this thread, widest first: 1 skips
        /// AVX-512, and 2 skips AVX-512 and AVX2. Tests set it to compare the versions of a function.
        pub(super) static LEFT_OUT: Cell<usize> = const { Cell::new(0) };
    }

    /// Asserts that `function` returns the same bits with AVX-512, with AVX2 and with the default instruction set, as
    /// far as the processor has them. `function` must call functions of the macro `wide!` on the current thread,
    /// because the instruction set is selected for this thread only. Its numbers may be in f32 or f64.
    pub fn assert_same_bits<N: Into<f64>>(function: impl Fn() -> Vec<N>) {
        let [widest, avx2, plain] =
            with_each_version(|| function().into_iter().map(|number| number.into().to_bits()).collect::<Vec<u64>>());
        assert!(avx2 == plain, "AVX2 gives other bits than the default instruction set");
        assert!(widest == plain, "the widest vectors give other bits than the default instruction set");
    }

    /// Returns the results of `function` with AVX-512, with AVX2 and with the default instruction set, as far as the
    /// processor has them. `function` must call functions of the macro `wide!` on the current thread.
    pub fn with_each_version<T>(function: impl Fn() -> T) -> [T; 3] {
        [0, 1, 2].map(|left_out| {
            LEFT_OUT.set(left_out);
            let result = function();
            LEFT_OUT.set(0);
            result
        })
    }
}
