//! The products of a linear layer: burn's own, where there are none that are faster.

use burn::backend::tensor::FloatTensor;

use crate::backends::Engine;

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
}
