//! A product's left matrix, divided into strips ([`Left`]).

use super::super::cores::Cores;
use super::super::view::Matrix;
use super::ahead::Runs;
use super::kernel::ROWS;
use super::panels::Panels;

/// A product's left matrix, divided into strips of [`ROWS`] rows, the rows of a register tile. The last strip may have
/// fewer.
#[derive(Clone, Copy)]
pub struct Left<'a> {
    matrix: Matrix<'a>,
    /// The strips of a transposed view: the packed panels of the matrix that it is a view of.
    packed: Option<Panels<'a>>,
}

impl<'a> Left<'a> {
    /// Divides `matrix` into strips. A transposed view is first packed into `buffer`, single-threaded or in parallel as
    /// `cores` selects, because micro-kernels read a strip faster from contiguous memory.
    pub fn of(matrix: Matrix<'a>, buffer: &'a mut Vec<f32>, cores: Cores) -> Self {
        let is_view = matrix.column_stride != 1;
        Self { matrix, packed: is_view.then(|| Panels::of(matrix.transposed(), ROWS, buffer, cores)) }
    }

    /// Returns the number of strips.
    pub fn number(self) -> usize {
        self.matrix.rows.div_ceil(ROWS)
    }

    /// Returns the strip with this zero-based index.
    pub fn strip(self, index: usize) -> Matrix<'a> {
        let rows = index * ROWS..self.matrix.rows.min((index + 1) * ROWS);
        match self.packed {
            Some(panels) => {
                let panel = Matrix::new(panels.at(index), [self.matrix.columns, ROWS], ROWS);
                panel.columns(0..rows.len()).transposed()
            }
            None => self.matrix.rows(rows),
        }
    }

    /// Returns the memory of the strip with this zero-based index, for prefetching; nothing if there is no such strip.
    pub fn memory(self, index: usize) -> Runs<'a> {
        if index >= self.number() {
            return Runs::of(self.matrix.rows(0..0));
        }
        Runs::of(match self.packed.map(|panels| panels.at(index)) {
            Some(panel) => Matrix::new(panel, [1, panel.len()], panel.len()),
            None => self.strip(index),
        })
    }
}
