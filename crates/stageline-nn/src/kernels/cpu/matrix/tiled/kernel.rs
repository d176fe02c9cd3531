//! The kernels that compute tiles in vector registers ([`Kernel`]).

use std::arch::x86_64::{__m256, __m512, _MM_HINT_ET0};

use super::super::addends::Addends;
use super::ahead::Ahead;
use super::cache::{LINE, prefetch};
use super::vector::Vector;

/// The number of rows of the largest tile. A tile is the part of a product that a kernel computes in one call.
pub const ROWS: usize = 6;

/// The number of columns of the left matrix that a kernel multiplies between two prefetches.
const STEP: usize = 8;

/// A function that computes a tile: the product of some rows of the left matrix and a panel (some columns of the right
/// matrix). Meanwhile it prefetches numbers that are needed later.
///
/// # Safety
/// The processor must have the instructions of the kernel, and all numbers that [`Operands`] describes must be valid.
pub type Kernel = unsafe fn(Operands, &mut Ahead);

/// The numbers that a kernel reads and writes to compute a tile. The kernel itself determines the tile's number of rows
/// and its number of vectors in a row.
pub struct Operands<'a> {
    /// The number of columns of the left matrix, and of rows of the panel.
    pub depth: usize,
    /// The address of the first row of the left matrix. The numbers of a row are consecutive.
    pub left: *const f32,
    /// The distance, in f32 numbers, between the beginnings of the left matrix's rows.
    pub left_stride: usize,
    /// The address of the panel: a copy of some columns of the right matrix. Its rows lie one after the other. Each row
    /// is as long as a row of the largest tile.
    pub panel: *const f32,
    /// The address of the tile's first element in the output.
    pub output: *mut f32,
    /// The distance, in f32 numbers, between the beginnings of the output's rows.
    pub output_stride: usize,
    /// The number of columns of the tile in the output. Only the last vector of a row may lie partly beyond them.
    pub columns: usize,
    /// The numbers that are added to the product: the previous output, a bias, or both.
    pub addends: Addends<'a>,
}

/// Computes a tile of `ROWS` rows, each of which has `VECTORS` vectors.
#[inline(always)]
unsafe fn compute<V: Vector, const ROWS: usize, const VECTORS: usize>(of: Operands, ahead: &mut Ahead) {
    // SAFETY: by the contract of `Kernel`, the processor has the instructions and the numbers are valid.
    unsafe {
        let mut sums = [[V::all(0.0); VECTORS]; ROWS];
        let (mut step, steps) = (0, of.depth / STEP);
        // A tile's output is loaded while its first products are computed, so that the end does not wait for it.
        while step < steps && step < ROWS {
            let row = of.output.wrapping_add(step * of.output_stride);
            for column in (0..VECTORS * V::LANES).step_by(LINE) {
                prefetch::<_MM_HINT_ET0>(row.wrapping_add(column));
            }
            add_step(&mut sums, &of, step);
            step += 1;
        }
        while step < steps && ahead.load() {
            add_step(&mut sums, &of, step);
            step += 1;
        }
        for step in step..steps {
            add_step(&mut sums, &of, step);
        }
        for k in steps * STEP..of.depth {
            add_products(&mut sums, &of, k);
        }
        write(sums, &of);
    }
}

/// Adds the products of one step to the sums of a tile. The step `step` consists of [`STEP`] columns of the left
/// matrix.
#[inline(always)]
unsafe fn add_step<V: Vector, const ROWS: usize, const VECTORS: usize>(
    sums: &mut [[V; VECTORS]; ROWS],
    of: &Operands,
    step: usize,
) {
    for k in step * STEP..(step + 1) * STEP {
        // SAFETY: by the contract of `Kernel`.
        unsafe { add_products(sums, of, k) };
    }
}

/// Adds the products of the column `k` of the left matrix and the row `k` of the panel to the sums of a tile.
#[inline(always)]
unsafe fn add_products<V: Vector, const ROWS: usize, const VECTORS: usize>(
    sums: &mut [[V; VECTORS]; ROWS],
    of: &Operands,
    k: usize,
) {
    // SAFETY: by the contract of `Kernel`.
    unsafe {
        let (mut left, panel) = (of.left.add(k), of.panel.add(k * V::IN_A_ROW * V::LANES));
        let mut of_panel = [V::all(0.0); VECTORS];
        for (vector, of_panel) in of_panel.iter_mut().enumerate() {
            *of_panel = V::load(panel.add(vector * V::LANES));
        }
        for (row, sums) in sums.iter_mut().enumerate() {
            // The addresses of three rows need two registers: the instruction adds the stride, or two strides.
            let number = V::all(*left.add(row % 3 * of.left_stride));
            if row % 3 == 2 {
                left = left.wrapping_add(3 * of.left_stride);
            }
            for (sum, of_panel) in sums.iter_mut().zip(of_panel) {
                *sum = sum.plus_product(number, of_panel);
            }
        }
    }
}

/// Writes the sums of a tile, plus the addends of `of`, to the output.
#[inline(always)]
unsafe fn write<V: Vector, const ROWS: usize, const VECTORS: usize>(mut sums: [[V; VECTORS]; ROWS], of: &Operands) {
    // SAFETY: by the contract of `Kernel`.
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

/// Computes a tile with vectors of 16 f32 numbers.
#[target_feature(enable = "avx512f")]
unsafe fn avx512<const ROWS: usize, const VECTORS: usize>(of: Operands, ahead: &mut Ahead) {
    // SAFETY: by the contract of `Kernel`.
    unsafe { compute::<__m512, ROWS, VECTORS>(of, ahead) }
}

/// Computes a tile with vectors of 8 f32 numbers.
#[target_feature(enable = "avx2,fma")]
unsafe fn avx2<const ROWS: usize, const VECTORS: usize>(of: Operands, ahead: &mut Ahead) {
    // SAFETY: by the contract of `Kernel`.
    unsafe { compute::<__m256, ROWS, VECTORS>(of, ahead) }
}

/// The kernels of an instruction set: a row for each number of vectors, and in it a kernel for each number of rows.
macro_rules! kernels {
    ($of:ident: $($vectors:literal)*) => { [$(kernels!($of, $vectors: 1 2 3 4 5 6)),*] };
    ($of:ident, $vectors:literal: $($rows:literal)*) => { [$($of::<$rows, $vectors>),*] };
}

/// The kernels with vectors of 16 f32 numbers, ordered by their number of vectors in a row and then by their number of
/// rows.
pub static AVX512: [[Kernel; ROWS]; __m512::IN_A_ROW] = kernels!(avx512: 1 2 3 4);

/// The kernels with vectors of 8 f32 numbers, ordered by their number of vectors in a row and then by their number of
/// rows.
pub static AVX2: [[Kernel; ROWS]; __m256::IN_A_ROW] = kernels!(avx2: 1 2);
