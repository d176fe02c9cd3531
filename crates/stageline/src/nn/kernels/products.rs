//! The products of a linear layer, and the sums of a table: burn's own, where there are none that are faster.

use burn::backend::TensorMetadata;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::tensor::{DType, FloatDType};

use crate::nn::autograd::engine::Engine;

/// Of matrices of rows.
pub(crate) trait Products: Engine {
    /// `[rows, inputs]` to `[rows, outputs]`.
    fn product(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: Option<FloatTensor<Self>>,
    ) -> FloatTensor<Self> {
        Self::linear(input, weight, bias)
    }

    /// The gradient of the input.
    fn to_input(weight: FloatTensor<Self>, gradient: FloatTensor<Self>) -> FloatTensor<Self> {
        Self::linear_x_backward(weight, gradient)
    }

    /// The gradient of the weight.
    fn to_weight(input: FloatTensor<Self>, gradient: FloatTensor<Self>) -> FloatTensor<Self> {
        Self::linear_weight_backward(input, gradient)
    }

    /// The gradient of the bias.
    fn to_bias(gradient: FloatTensor<Self>) -> FloatTensor<Self> {
        Self::linear_bias_backward(gradient)
    }

    /// The gradient of a table, `[rows, width]`, of which rows were taken: `[batch, length, width]`.
    fn to_table(table: FloatTensor<Self>, gradient: FloatTensor<Self>, indices: IntTensor<Self>) -> FloatTensor<Self> {
        added_up::<Self>(table, gradient, indices)
    }
}

/// Of half a precision in f32: what is added to a row a few hundred times would count for nothing from then on.
pub(crate) fn added_up<B: Engine>(
    table: FloatTensor<B>,
    gradient: FloatTensor<B>,
    indices: IntTensor<B>,
) -> FloatTensor<B> {
    let given = gradient.dtype();
    if !matches!(given, DType::BF16 | DType::F16) {
        return B::embedding_backward(table, gradient, indices);
    }
    let wide = B::float_cast(gradient, FloatDType::F32);
    B::float_cast(B::embedding_backward(table, wide, indices), given.into())
}
