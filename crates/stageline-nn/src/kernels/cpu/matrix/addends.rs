//! The numbers that are added to a product ([`Addends`]).

use std::ops::Range;

/// The numbers that are added to a product when it is written: the previous contents of the output, a bias, or both.
#[derive(Clone, Copy, Default)]
pub struct Addends<'a> {
    /// Whether the product is added to the previous contents of the output. Otherwise it overwrites them, and the
    /// output need not be initialised.
    pub output: bool,
    /// The bias, one number for each column of the product, which is added last; `None` for no bias.
    pub bias: Option<&'a [f32]>,
}

impl Addends<'_> {
    /// Returns the addends for the columns of the product with the indices `columns` (from 0).
    pub fn of_columns(self, columns: Range<usize>) -> Self {
        Self { bias: self.bias.map(|bias| &bias[columns]), ..self }
    }
}
