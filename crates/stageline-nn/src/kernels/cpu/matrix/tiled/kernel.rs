//! The micro-kernels, which compute register tiles of a matrix product ([`Kernel`]).

use std::arch::x86_64::{__m256, __m512, _MM_HINT_ET0};
use std::sync::atomic::{Ordering, compiler_fence};

use super::super::addends::Addends;
use super::ahead::Ahead;
use super::cache::{LINE, prefetch};
use super::vector::Vector;

/// Number of rows of the largest register tile, the part of a product that a micro-kernel computes in one call.
pub const ROWS: usize = 6;

/// Number of left-matrix columns that a micro-kernel multiplies between two prefetches.
const STEP: usize = 8;

/// A micro-kernel: computes a tile, which is the product of some rows of the left matrix and a packed panel (some
/// columns of the right matrix). Meanwhile it prefetches data that is needed later.
///
/// # Safety
/// The processor must have the kernel's instructions, and all elements that [`Operands`] describes must be valid.
pub type Kernel = unsafe fn(Operands, &mut Ahead);

/// The operands and output of a micro-kernel, as addresses and strides. The kernel itself determines the size of the
/// register tile: its rows, and the SIMD vectors in each row.
pub struct Operands<'a> {
    /// Inner dimension of the product: the number of columns of the left matrix, and of rows of the panel.
    pub depth: usize,
    /// Address of the tile's first row in the left matrix. Its rows are contiguous, or its columns if the kernel is one
    /// for transposed views.
    pub left: *const f32,
    /// Stride of the left matrix, in f32 elements: from row to row, or from column to column in a transposed view.
    pub left_stride: usize,
    /// Address of the packed panel: a row-major copy of some columns of the right matrix, with rows as long as the
    /// largest tile's.
    pub panel: *const f32,
    /// Address of the tile's first element in the output.
    pub output: *mut f32,
    /// Row stride of the output, in f32 elements.
    pub output_stride: usize,
    /// Number of output columns in the tile. Only the last SIMD vector of a row may extend beyond them.
    pub columns: usize,
    /// Values added to the product: the existing output, a bias, or both.
    pub addends: Addends<'a>,
}

/// Computes a register tile of `output = left @ right + addends`: `ROWS` rows of `VECTORS` SIMD vectors each. `of` has
/// the addresses and strides of the tile's rows of `left`, of the packed panel (the tile's columns of `right`), and of
/// the output. Meanwhile, `ahead` prefetches data that is needed later.
#[inline(always)]
unsafe fn compute<V: Vector, const ROWS: usize, const VECTORS: usize, const TRANSPOSED: bool>(
    of: Operands,
    ahead: &mut Ahead,
) {
    // SAFETY: the caller upholds the contract of `Kernel`: the processor has the instructions, and the elements are
    // valid.
    unsafe {
        let mut sums = [[V::all(0.0); VECTORS]; ROWS];
        let steps = of.depth / STEP;
        for step in 0..steps {
            if step < ROWS {
                // Prefetches a row of the tile's output in each of the first steps, so that `write` need not wait for
                // memory.
                let row = of.output.wrapping_add(step * of.output_stride);
                for column in (0..VECTORS * V::LANES).step_by(LINE) {
                    prefetch::<_MM_HINT_ET0>(row.wrapping_add(column));
                }
            } else {
                ahead.load();
            }
            add_step::<V, ROWS, VECTORS, TRANSPOSED>(&mut sums, &Position::of::<V, TRANSPOSED>(&of, step * STEP));
        }
        for k in steps * STEP..of.depth {
            add_products::<V, ROWS, VECTORS, TRANSPOSED>(&mut sums, &Position::of::<V, TRANSPOSED>(&of, k), 0);
        }
        write(sums, &of);
    }
}

/// A position in the inner dimension of a tile's operands, from which a kernel reads columns of the left matrix and rows
/// of the panel.
struct Position {
    /// Addresses of the left matrix's first and fourth row if its rows are contiguous. An x86 instruction can add the
    /// stride 0, 1 or 2 times, so each address serves three rows. For a transposed view only the first one is used.
    left: [*const f32; 2],
    /// Stride of the left matrix, in f32 elements (see [`Operands::left_stride`]).
    left_stride: usize,
    /// Address of the panel's row.
    panel: *const f32,
}

impl Position {
    /// Returns the position of the left matrix's column `k` and the panel's row `k`.
    #[inline(always)]
    fn of<V: Vector, const TRANSPOSED: bool>(of: &Operands, k: usize) -> Self {
        let left = of.left.wrapping_add(if TRANSPOSED { k * of.left_stride } else { k });
        Self {
            left: [left, left.wrapping_add(3 * of.left_stride)],
            left_stride: of.left_stride,
            panel: of.panel.wrapping_add(k * V::IN_A_ROW * V::LANES),
        }
    }
}

/// Adds the products of [`STEP`] columns of the left matrix and rows of the panel, from the position `at`, to a tile's
/// sums.
#[inline(always)]
unsafe fn add_step<V: Vector, const ROWS: usize, const VECTORS: usize, const TRANSPOSED: bool>(
    sums: &mut [[V; VECTORS]; ROWS],
    at: &Position,
) {
    // Not a loop, which would compute addresses for each column: on Intel's processors, such instructions take the
    // units of multiplications. The fences keep the compiler from loading the numbers of later columns, for which there
    // are no registers.
    macro_rules! columns {
        ($($k:literal)*) => { $(
            // SAFETY: the caller upholds the contract of `Kernel`.
            unsafe { add_products::<V, ROWS, VECTORS, TRANSPOSED>(sums, at, $k) };
            compiler_fence(Ordering::SeqCst);
        )* };
    }
    const { assert!(STEP == 8, "a step has the columns that follow") };
    columns!(0 1 2 3 4 5 6 7);
}

/// Adds the products of the left matrix's column and the panel's row that come `k` after the position `at` to a tile's
/// sums.
#[inline(always)]
unsafe fn add_products<V: Vector, const ROWS: usize, const VECTORS: usize, const TRANSPOSED: bool>(
    sums: &mut [[V; VECTORS]; ROWS],
    at: &Position,
    k: usize,
) {
    // SAFETY: the caller upholds the contract of `Kernel`.
    unsafe {
        let mut of_panel = [V::all(0.0); VECTORS];
        for (vector, of_panel) in of_panel.iter_mut().enumerate() {
            *of_panel = V::load(at.panel.add((k * V::IN_A_ROW + vector) * V::LANES));
        }
        for (row, sums) in sums.iter_mut().enumerate() {
            let number = V::all(*if TRANSPOSED {
                at.left[0].add(k * at.left_stride + row)
            } else {
                at.left[row / 3].add(row % 3 * at.left_stride).add(k)
            });
            for (sum, of_panel) in sums.iter_mut().zip(of_panel) {
                *sum = sum.plus_product(number, of_panel);
            }
        }
    }
}

/// Adds the addends (existing output, bias) to a tile's sums, and writes the result to the output. `of` describes the
/// output and the addends.
#[inline(always)]
unsafe fn write<V: Vector, const ROWS: usize, const VECTORS: usize>(mut sums: [[V; VECTORS]; ROWS], of: &Operands) {
    // SAFETY: the caller upholds the contract of `Kernel`.
    unsafe {
        let lanes = of.columns - (VECTORS - 1) * V::LANES;
        let is_part = |vector: usize| vector + 1 == VECTORS && lanes < V::LANES;
        let load = |from: *const f32, vector: usize| {
            let from = from.add(vector * V::LANES);
            if is_part(vector) { V::load_first(from, lanes) } else { V::load(from) }
        };
        if of.addends.output {
            for (row, sums) in sums.iter_mut().enumerate() {
                for (vector, sum) in sums.iter_mut().enumerate() {
                    *sum = load(of.output.add(row * of.output_stride), vector).plus(*sum);
                }
            }
        }
        if let Some(bias) = of.addends.bias {
            for sums in &mut sums {
                for (vector, sum) in sums.iter_mut().enumerate() {
                    *sum = sum.plus(load(bias.as_ptr(), vector));
                }
            }
        }
        for (row, sums) in sums.iter().enumerate() {
            for (vector, sum) in sums.iter().enumerate() {
                let to = of.output.add(row * of.output_stride + vector * V::LANES);
                if is_part(vector) { sum.store_first(to, lanes) } else { sum.store(to) }
            }
        }
    }
}

/// Computes a register tile with AVX-512 vectors of 16 f32 lanes.
#[target_feature(enable = "avx512f")]
unsafe fn avx512<const ROWS: usize, const VECTORS: usize, const TRANSPOSED: bool>(of: Operands, ahead: &mut Ahead) {
    // SAFETY: the caller upholds the contract of `Kernel`.
    unsafe { compute::<__m512, ROWS, VECTORS, TRANSPOSED>(of, ahead) }
}

/// Computes a register tile with AVX2 vectors of 8 f32 lanes.
#[target_feature(enable = "avx2,fma")]
unsafe fn avx2<const ROWS: usize, const VECTORS: usize, const TRANSPOSED: bool>(of: Operands, ahead: &mut Ahead) {
    // SAFETY: the caller upholds the contract of `Kernel`.
    unsafe { compute::<__m256, ROWS, VECTORS, TRANSPOSED>(of, ahead) }
}

/// Micro-kernels of an instruction set, indexed by the number of vectors in a row of the tile minus 1, and then by the
/// number of rows minus 1.
pub type Kernels<const VECTORS: usize> = [[Kernel; ROWS]; VECTORS];

/// Builds the table of an instruction set's micro-kernels, for left matrices with contiguous rows, or for transposed
/// views.
macro_rules! kernels {
    ($of:ident, $transposed:literal: $($vectors:literal)*) => {
        [$(kernels!($of, $transposed, $vectors: 1 2 3 4 5 6)),*]
    };
    ($of:ident, $transposed:literal, $vectors:literal: $($rows:literal)*) => {
        [$($of::<$rows, $vectors, $transposed>),*]
    };
}

/// The AVX-512 kernels (vectors of 16 f32 lanes).
pub static AVX512: Kernels<{ __m512::IN_A_ROW }> = kernels!(avx512, false: 1 2 3 4);

/// The AVX-512 kernels for left matrices that are transposed views.
pub static AVX512_TRANSPOSED: Kernels<{ __m512::IN_A_ROW }> = kernels!(avx512, true: 1 2 3 4);

/// The AVX2 kernels (vectors of 8 f32 lanes).
pub static AVX2: Kernels<{ __m256::IN_A_ROW }> = kernels!(avx2, false: 1 2);

/// The AVX2 kernels for left matrices that are transposed views.
pub static AVX2_TRANSPOSED: Kernels<{ __m256::IN_A_ROW }> = kernels!(avx2, true: 1 2);
