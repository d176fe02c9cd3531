//! The numbers that are added to a product ([`Addends`]).

use std::ops::Range;

/// The numbers that are added to a product when it is written.
#[derive(Clone, Copy, Default)]
pub struct Addends<'a> {
    /// Whether the numbers of the output are added. Otherwise the output need not be initialised.
    pub output: bool,
    /// A number for each column, which is added last.
    pub bias: Option<&'a [f32]>,
}

impl Addends<'_> {
    /// Returns the numbers that are added to these columns of the product.
    pub fn of_columns(self, columns: Range<usize>) -> Self {
        Self { bias: self.bias.map(|bias| &bias[columns]), ..self }
    }
}
