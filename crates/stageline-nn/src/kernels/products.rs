//! The matrix products of a linear layer and the gradient of an embedding's table. burn's operations compute them
//! unless a backend has faster ones.

use burn::backend::TensorMetadata;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::tensor::{DType, FloatDType};

use crate::engine::Engine;

/// A backend that computes linear layers' matrix products and their gradients, and the gradient of an embedding's
/// table.
pub trait Products: Engine {
    /// Returns the output of a linear layer, `input x weight + bias`, with shape `[rows, outputs]` for an input `[rows,
    /// inputs]`.
    fn product(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: Option<FloatTensor<Self>>,
    ) -> FloatTensor<Self> {
        Self::linear(input, weight, bias)
    }

    /// Returns the gradient of the loss with respect to a linear layer's input, `[rows, inputs]`. `gradient` is the
    /// gradient with respect to the layer's output, `[rows, outputs]`.
    fn to_input(weight: FloatTensor<Self>, gradient: FloatTensor<Self>) -> FloatTensor<Self> {
        Self::linear_x_backward(weight, gradient)
    }

    /// Returns the gradient of the loss with respect to a linear layer's weight, `[inputs, outputs]`. `gradient` is the
    /// gradient with respect to the layer's output, `[rows, outputs]`.
    fn to_weight(input: FloatTensor<Self>, gradient: FloatTensor<Self>) -> FloatTensor<Self> {
        Self::linear_weight_backward(input, gradient)
    }

    /// Returns `sum + to_weight(input, gradient)`, to accumulate a linear layer's weight gradient (see
    /// [`to_weight`](Self::to_weight)). `sum` is the sum of the weight's earlier gradients, if any, and is updated in
    /// place if nothing else uses its memory.
    fn added_to_weight(
        sum: Option<FloatTensor<Self>>,
        input: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        added::<Self>(sum, Self::to_weight(input, gradient))
    }

    /// Returns the gradient of the loss with respect to a linear layer's bias, `[outputs]`: the sum of `gradient` over
    /// the rows. `gradient` is the gradient with respect to the layer's output, `[rows, outputs]`.
    fn to_bias(gradient: FloatTensor<Self>) -> FloatTensor<Self> {
        Self::linear_bias_backward(gradient)
    }

    /// Returns the gradient of the loss with respect to an embedding's table, `[rows, width]`. `gradient` is the
    /// gradient with respect to the looked-up vectors, `[batch, length, width]`.
    fn to_table(table: FloatTensor<Self>, gradient: FloatTensor<Self>, indices: IntTensor<Self>) -> FloatTensor<Self> {
        added_up::<Self>(table, gradient, indices)
    }

    /// Returns `sum + to_table(table, gradient, indices)`, to accumulate an embedding's table gradient (see
    /// [`to_table`](Self::to_table)). `sum` is the sum of the table's earlier gradients, if any, and is updated in
    /// place if nothing else uses its memory.
    fn added_to_table(
        sum: Option<FloatTensor<Self>>,
        table: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        indices: IntTensor<Self>,
    ) -> FloatTensor<Self> {
        added::<Self>(sum, Self::to_table(table, gradient, indices))
    }
}

/// Returns `sum + gradient`, in the dtype of `sum`. `sum` is the sum of a parameter's earlier gradients; if it is
/// `None`, the result is `gradient`.
pub fn added<B: Engine>(sum: Option<FloatTensor<B>>, gradient: FloatTensor<B>) -> FloatTensor<B> {
    let Some(sum) = sum else { return gradient };
    let same_type = sum.dtype() == gradient.dtype();
    let gradient = if same_type { gradient } else { B::float_cast(gradient, sum.dtype().into()) };
    B::float_add(sum, gradient)
}

/// Returns the gradient of the loss with respect to an embedding's table. burn adds the gradients with respect to the
/// looked-up vectors, `gradient`, by table row. Gradients in bf16 and f16 are accumulated in f32.
///
/// In bf16 the sum for a row that is looked up a few hundred times would stop growing, because each further gradient
/// would be rounded away.
pub fn added_up<B: Engine>(table: FloatTensor<B>, gradient: FloatTensor<B>, indices: IntTensor<B>) -> FloatTensor<B> {
    let given = gradient.dtype();
    if !matches!(given, DType::BF16 | DType::F16) {
        return B::embedding_backward(table, gradient, indices);
    }
    let wide = B::float_cast(gradient, FloatDType::F32);
    B::float_cast(B::embedding_backward(table, wide, indices), given.into())
}
