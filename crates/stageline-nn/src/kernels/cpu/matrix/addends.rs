//! The addends of a matrix product ([`Addends`]).

use std::ops::Range;

/// Addends of a matrix product, added when the product is written: the existing output (accumulation), a bias, or both.
#[derive(Clone, Copy, Default)]
pub struct Addends<'a> {
    /// Whether the product is accumulated into the existing output (`output += left @ right`). If false, the product
    /// overwrites the output, which need not be initialised.
    pub output: bool,
    /// The bias, one value for each column of the product, which is added last; `None` for no bias.
    pub bias: Option<&'a [f32]>,
}

impl Addends<'_> {
    /// Restricts the bias to the product's columns `columns` (zero-based), for a kernel that computes only these.
    pub fn of_columns(self, columns: Range<usize>) -> Self {
        Self { bias: self.bias.map(|bias| &bias[columns]), ..self }
    }
}
