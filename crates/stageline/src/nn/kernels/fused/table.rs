//! What is taken of tables.

use burn::tensor::{Int, IntDType, Tensor};

use super::as_given;

/// 1 at every index, else 0: `[indices, count]`.
pub(in crate::nn) fn is_at(indices: Tensor<1, Int>, count: usize) -> Tensor<2> {
    let places = Tensor::<1, Int>::arange(0..count as i64, &indices.device()).unsqueeze::<2>();
    // Comparisons on GPUs take both sides as the type of one.
    let indices = indices.cast(IntDType::from(places.dtype())).unsqueeze_dim(1);
    places.equal(indices).float()
}

/// What was taken by indices, `[indices, width]`, added up in a table, `[rows, width]`, by a product: in f32, and at
/// once, where one sum after the other would have a GPU wait for each.
pub(in crate::nn) fn added_up(gradient: Tensor<2>, indices: Tensor<1, Int>, rows: usize) -> Tensor<2> {
    as_given(is_at(indices, rows), &gradient).swap_dims(0, 1).matmul(gradient)
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use burn::tensor::{DType, Device, TensorData};

    use super::super::checks::{exactly, in_all, near, random};
    use super::*;

    #[test]
    fn a_table_gets_what_was_taken_of_it() {
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
