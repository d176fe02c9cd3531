//! Computes the matrix products of a linear layer and the gradient of an embedding's table on the CPU.

use burn::backend::ops::ModuleOps;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Flex, TensorMetadata};
use burn::tensor::DType;

use super::matrix::Matrix;
use super::numbers::{integers, is_own, numbers, of_numbers};
use super::wide::wide;
use crate::kernels::products::{Products, added, added_up};

/// Computes the matrix products of linear layers on the CPU. This crate's code multiplies contiguous, non-empty f32
/// matrices, because burn 0.22 would first fill the output with zeros. burn multiplies all other tensors.
impl Products for Flex {
    fn product(
        input: FloatTensor<Flex>,
        weight: FloatTensor<Flex>,
        bias: Option<FloatTensor<Flex>>,
    ) -> FloatTensor<Flex> {
        let [Some(rows), Some(columns)] = [&input, &weight].map(matrix) else {
            return Flex::linear(input, weight, bias);
        };
        let output = match bias {
            Some(bias) => rows.times_plus(columns, numbers(&bias.to_contiguous())),
            None => rows.times(columns),
        };
        of_numbers(output, [rows.shape()[0], columns.shape()[1]])
    }

    fn to_input(weight: FloatTensor<Flex>, gradient: FloatTensor<Flex>) -> FloatTensor<Flex> {
        match [&weight, &gradient].map(matrix) {
            [Some(weight), Some(gradient)] => tensor(gradient, weight.transposed()),
            _ => Flex::linear_x_backward(weight, gradient),
        }
    }

    fn to_weight(input: FloatTensor<Flex>, gradient: FloatTensor<Flex>) -> FloatTensor<Flex> {
        match [&input, &gradient].map(matrix) {
            [Some(input), Some(gradient)] => tensor(input.transposed(), gradient),
            _ => Flex::linear_weight_backward(input, gradient),
        }
    }

    fn added_to_weight(
        sum: Option<FloatTensor<Flex>>,
        input: FloatTensor<Flex>,
        gradient: FloatTensor<Flex>,
    ) -> FloatTensor<Flex> {
        let Some(mut sum) = sum else { return Flex::to_weight(input, gradient) };
        if let [Some(input), Some(gradient)] = [&input, &gradient].map(matrix)
            && is_own(&sum)
            && input.transposed().add_times_to(gradient, sum.storage_mut())
        {
            return sum;
        }
        added::<Flex>(Some(sum), Flex::to_weight(input, gradient))
    }

    fn to_bias(gradient: FloatTensor<Flex>) -> FloatTensor<Flex> {
        let Some(_) = matrix(&gradient) else { return Flex::linear_bias_backward(gradient) };
        let mut sums = vec![0.0; gradient.shape()[1]];
        add_rows(&mut sums, numbers(&gradient));
        let columns = sums.len();
        of_numbers(sums, [columns])
    }

    /// Returns the gradient of the loss with respect to an embedding's table. For a large table, `vec!` gets memory
    /// that the operating system has already zeroed, where burn 0.22 would write zeros to the whole table. With a large
    /// vocabulary, most of it stays zero.
    fn to_table(table: FloatTensor<Flex>, gradient: FloatTensor<Flex>, indices: IntTensor<Flex>) -> FloatTensor<Flex> {
        if gradient.dtype() != DType::F32 {
            return added_up::<Flex>(table, gradient, indices);
        }
        let (shape, gradient) = (table.shape(), gradient.to_contiguous());
        let width = shape[1];
        let looked_up = indices.shape().num_elements() * width;
        assert_eq!(gradient.shape().num_elements(), looked_up, "each index must have a gradient of the table's width");
        let mut sums = vec![0.0; shape.num_elements()];
        for (index, row) in integers::<2>(&indices).into_iter().zip(numbers(&gradient).chunks_exact(width.max(1))) {
            let index = usize::try_from(index).expect("the forward has rejected negative indices");
            add_rows(&mut sums[index * width..][..width], row);
        }
        of_numbers(sums, shape)
    }

    /// Adds a micro-batch's table gradient to `sum`, updating only the rows that were looked up, which are a small part
    /// of a large vocabulary. Each row's gradients are summed before they are added, for the same bits as adding the
    /// result of [`to_table`](Products::to_table).
    fn added_to_table(
        sum: Option<FloatTensor<Flex>>,
        table: FloatTensor<Flex>,
        gradient: FloatTensor<Flex>,
        indices: IntTensor<Flex>,
    ) -> FloatTensor<Flex> {
        let mut sum = match sum {
            Some(sum) if gradient.dtype() == DType::F32 && matrix(&sum).is_some() && is_own(&sum) => sum,
            sum => return added::<Flex>(sum, Flex::to_table(table, gradient, indices)),
        };
        let (width, gradient) = (table.shape()[1], gradient.to_contiguous());
        let (gradients, indices) = (numbers(&gradient), integers::<2>(&indices));
        assert_eq!(gradients.len(), indices.len() * width, "each index must have a gradient of the table's width");
        let mut order: Vec<_> = (0..indices.len()).collect();
        order.sort_by_key(|&at| indices[at]);
        let (sums, mut of_index) = (sum.storage_mut::<f32>(), vec![0.0; width]);
        for same in order.chunk_by(|&one, &other| indices[one] == indices[other]) {
            of_index.fill(0.0);
            same.iter().for_each(|at| add_rows(&mut of_index, &gradients[at * width..][..width]));
            let index = usize::try_from(indices[same[0]]).expect("the forward has rejected negative indices");
            add_rows(&mut sums[index * width..][..width], &of_index);
        }
        sum
    }
}

/// Views a CPU tensor `[rows, columns]` as a matrix; `None` if the tensor is not in f32, not contiguous or empty.
fn matrix(tensor: &FloatTensor<Flex>) -> Option<Matrix<'_>> {
    let shape = tensor.shape();
    let plain = tensor.dtype() == DType::F32 && shape.num_elements() > 0 && tensor.is_contiguous();
    plain.then(|| Matrix::new(numbers(tensor), [shape[0], shape[1]], shape[1]))
}

/// Returns `left @ right` as a CPU tensor `[rows of left, columns of right]`.
fn tensor(left: Matrix, right: Matrix) -> FloatTensor<Flex> {
    of_numbers(left.times(right), [left.shape()[0], right.shape()[1]])
}

wide! {
    // Adds every row in `rows` to `sums`, element by element. The rows are as long as `sums`.
    fn add_rows(sums: &mut [f32], rows: &[f32]) {
        for row in rows.chunks_exact(sums.len()) {
            for (sum, number) in sums.iter_mut().zip(row) {
                *sum += number;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, Int, Tensor};

    use super::*;
    use crate::test_numbers::uniform;

    /// Tests the gradient of an embedding's table, for indices that occur several times and rows that no index names,
    /// against burn's.
    #[test]
    fn the_gradient_of_a_table_has_the_bits_of_burn() {
        let device = Device::flex();
        let random = |shape: [usize; 2]| uniform(shape, 0.0..1.0, &device);
        let float = |tensor: Tensor<2>| tensor.try_into_primitive::<Flex>().unwrap();
        let indices = Tensor::<2, Int>::from_data([[4, 0, 4, 2], [4, 2, 4, 4]], &device);
        let [table, gradient] = [random([6, 19]), random([8, 19])];
        let gradient = float(gradient).reshape([2, 4, 19].into());
        let indices = indices.try_into_primitive::<Flex>().unwrap();
        let found = Flex::to_table(float(table.clone()), gradient.clone(), indices.clone());
        let expected = Flex::embedding_backward(float(table), gradient, indices);
        assert_eq!(found.shape(), expected.shape());
        let bits = |tensor: &FloatTensor<Flex>| numbers(tensor).iter().map(|sum| sum.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&found), bits(&expected));
        assert!(numbers(&found)[..19].iter().all(|sum| *sum != 0.0) && numbers(&found)[19..38] == [0.0; 19]);
    }
}
