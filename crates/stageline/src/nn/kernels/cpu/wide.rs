//! Loops over numbers, compiled for the vector instructions that the processor has.
//!
//! The operations are those of the source, in its order (none is fused), so the bits are the same on any processor.

/// Compiles a function for AVX-512, for AVX2 and for the baseline of the target, and calls the widest that the
/// processor has.
///
/// On aarch64 the baseline has NEON.
macro_rules! wide {
    (fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)? $body:block) => {
        fn $name($($argument: $type),*) $(-> $result)? {
            #[inline(always)]
            fn run($($argument: $type),*) $(-> $result)? $body
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw")]
                fn avx512($($argument: $type),*) $(-> $result)? {
                    run($($argument),*)
                }
                #[target_feature(enable = "avx2")]
                fn avx2($($argument: $type),*) $(-> $result)? {
                    run($($argument),*)
                }
                if $crate::nn::kernels::cpu::wide::has_avx512() {
                    // SAFETY: the processor has what the function is compiled for.
                    return unsafe { avx512($($argument),*) };
                }
                if is_x86_feature_detected!("avx2") {
                    // SAFETY: the processor has what the function is compiled for.
                    return unsafe { avx2($($argument),*) };
                }
            }
            run($($argument),*)
        }
    };
}

pub(super) use wide;

/// Whether the processor has the parts of AVX-512 for which `wide!` compiles: those of every processor since Skylake-X.
#[cfg(target_arch = "x86_64")]
pub(super) fn has_avx512() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512bw")
}

/// As many sums run beside each other.
const LANES: usize = 16;

/// The sum over a row, in an order that does not depend on the processor.
#[inline(always)]
pub(super) fn sum(row: &[f32], of: impl Fn(usize, f32) -> f32) -> f32 {
    let mut lanes = [0.0; LANES];
    let whole = row.len() / LANES * LANES;
    for start in (0..whole).step_by(LANES) {
        let part: &[f32; LANES] = row[start..start + LANES].try_into().expect("as many as lanes");
        for lane in 0..LANES {
            lanes[lane] += of(start + lane, part[lane]);
        }
    }
    for at in whole..row.len() {
        lanes[at - whole] += of(at, row[at]);
    }
    lanes.iter().sum()
}

/// Of a number that is at most 0, such as one from which the largest of its row is taken; below -87 that of -87.
#[inline(always)]
pub(super) fn exp_from_below(x: f32) -> f32 {
    // NaN stays NaN, as it does not by `max`.
    exp(if x < -87.0 { -87.0 } else { x })
}

/// Of numbers from -87 to 0: a power of 2, and a polynomial for the rest (Cephes' `expf`), within a few units in the
/// last place.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    /// Adding it rounds to a whole number, which is then in the last bits.
    const ROUND: f32 = 12_582_912.0;
    let rounded = x * std::f32::consts::LOG2_E + ROUND;
    let power = rounded - ROUND;
    // ln 2 in two parts, of which the first has few bits.
    let rest = x - power * 0.693_359_4 + power * 2.121_944_4e-4;
    let mut polynomial = 1.987_569_1e-4;
    for coefficient in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 0.166_666_65, 0.5] {
        polynomial = polynomial * rest + coefficient;
    }
    let of_rest = polynomial * rest * rest + rest + 1.0;
    let whole = rounded.to_bits().wrapping_sub(ROUND.to_bits());
    of_rest * f32::from_bits(whole.wrapping_add(127) << 23)
}
