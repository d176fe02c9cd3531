//! Look-ups in tables (such as embeddings) as matrix products with one-hot rows of zeros and ones, and the gradient of
//! a table.

use burn::tensor::{Int, IntDType, Tensor};

use super::as_given;

/// Returns a one-hot row for each index, `[indices, count]`, with 1 in the column of the index and 0 elsewhere. The row
/// of an index outside `0..count` has only zeros.
pub(crate) fn is_at(indices: Tensor<1, Int>, count: usize) -> Tensor<2> {
    let places = Tensor::<1, Int>::arange(0..count as i64, &indices.device()).unsqueeze::<2>();
    // A comparison on a GPU reads both operands in the dtype of one of them, so the dtypes must match.
    let indices = indices.cast(IntDType::from(places.dtype())).unsqueeze_dim(1);
    places.equal(indices).float()
}

/// Returns the gradient of the loss with respect to a lookup table, such as an embedding's, `[rows, width]`. This
/// gradient is the sum, by table row, of `gradient`: the gradients with respect to the looked-up vectors, `[indices,
/// width]`. `rows` is the number of rows of the table.
///
/// The sums are computed as one matrix product with the one-hot rows of the indices, which a GPU accumulates in f32 and
/// in parallel. Additions of one vector after the other would have to wait for each other.
pub(crate) fn added_up(gradient: Tensor<2>, indices: Tensor<1, Int>, rows: usize) -> Tensor<2> {
    as_given(is_at(indices, rows), &gradient).swap_dims(0, 1).matmul(gradient)
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use burn::tensor::{DType, Device, TensorData};

    use super::super::checks::{exactly, in_all, near, random};
    use super::*;

    #[test]
    fn gradients_are_summed_by_table_row() {
        let gradient = random([700, 6]);
        let indices: Vec<_> = (0..700_i64).map(|at| at * at % 5).collect();
        let mut expected = vec![0.0; 5 * 6];
        for (value, at) in exactly(&gradient).into_data().iter::<f64>().zip(0..) {
            expected[indices[at / 6] as usize * 6 + at % 6] += value;
        }
        let expected = Tensor::<2>::from_data(TensorData::new(expected, [5, 6]), (&Device::flex(), DType::F64));
        let indices = Tensor::<1, Int>::from_data(TensorData::new(indices, [700]), &Device::flex());
        in_all(&gradient, |gradient, bound| near(added_up(gradient, indices.clone(), 5), &expected, bound));
    }
}
