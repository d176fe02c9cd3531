//! A linear layer.

use burn::module::{Content, DisplaySettings, Module, ModuleDisplay, Param};
use burn::tensor::Tensor;
use burn::tensor::module::linear;

/// `input x weight + bias`, as [burn's](burn::nn::Linear); its backward is split.
///
/// ```
/// use burn::nn::LinearConfig;
/// use burn::tensor::{Device, Tensor};
/// use stageline::nn::Linear;
///
/// let device = Device::flex();
/// let layer = Linear::from(LinearConfig::new(3, 2).init(&device));
/// assert_eq!(layer.forward(Tensor::<3>::ones([4, 5, 3], &device)).dims(), [4, 5, 2]);
/// ```
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct Linear {
    /// `[inputs, outputs]`.
    pub weight: Param<Tensor<2>>,
    /// `[outputs]`.
    pub bias: Option<Param<Tensor<1>>>,
}

impl From<burn::nn::Linear> for Linear {
    fn from(burn::nn::Linear { weight, bias, .. }: burn::nn::Linear) -> Self {
        Self { weight, bias }
    }
}

impl ModuleDisplay for Linear {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        let [inputs, outputs] = self.weight.shape().dims();
        content.add("inputs", &inputs).add("outputs", &outputs).add("bias", &self.bias.is_some()).optional()
    }
}

impl Linear {
    /// `[..., inputs]` to `[..., outputs]`.
    ///
    /// # Panics
    /// If the last dimension of the input is not that of the weights.
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let (inputs, [expected, _]) = (input.dims()[D - 1], self.weight.shape().dims());
        assert_eq!(inputs, expected, "the input has {inputs} features, and the layer takes {expected}");
        #[cfg(feature = "flex")]
        if let Some(output) = host::split(&input, &self.weight, self.bias.as_ref()) {
            return output;
        }
        linear(input, self.weight.val(), self.bias.as_ref().map(Param::val))
    }
}

#[cfg(feature = "flex")]
mod host {
    use burn::backend::TensorMetadata;
    use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::NoCheckpointing};
    use burn::backend::autodiff::grads::Gradients;
    use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
    use burn::backend::ops::{FloatTensorOps, ModuleOps};
    use burn::backend::tensor::FloatTensor;
    use burn::backend::{Autodiff, Flex};
    use burn::module::{Param, ParamId};
    use burn::tensor::{DType, Shape, Tensor, TensorData};

    use super::super::matrix::Matrix;
    use super::super::operation::numbers;
    use super::super::wide::wide;
    use crate::deferred::{Deferred, put_off};

    #[derive(Debug)]
    struct SplitLinear;

    /// What the backward needs.
    #[derive(Clone, Debug)]
    struct State {
        input: FloatTensor<Flex>,
        weight: FloatTensor<Flex>,
        weight_id: ParamId,
        bias_id: Option<ParamId>,
        /// Of the input.
        shape: Shape,
    }

    /// A tensor `[rows, columns]` that has numbers in f32, and is contiguous.
    fn matrix(tensor: &FloatTensor<Flex>) -> Option<Matrix<'_>> {
        let shape = tensor.shape();
        let plain = tensor.dtype() == DType::F32 && shape.num_elements() > 0 && tensor.is_contiguous();
        plain.then(|| Matrix::new(numbers(tensor), [shape[0], shape[1]], shape[1]))
    }

    /// burn's product, without the zeros that burn 0.22 writes before it.
    fn tensor(left: Matrix, right: Matrix) -> FloatTensor<Flex> {
        FloatTensor::<Flex>::from_data(TensorData::new(left.times(right), [left.shape()[0], right.shape()[1]]))
    }

    fn output(
        input: FloatTensor<Flex>,
        weight: FloatTensor<Flex>,
        bias: Option<FloatTensor<Flex>>,
    ) -> FloatTensor<Flex> {
        let [Some(rows), Some(columns)] = [&input, &weight].map(matrix) else {
            return Flex::linear(input, weight, bias);
        };
        let mut output = rows.times(columns);
        if let Some(bias) = bias {
            let (bias, columns) = (bias.to_contiguous(), columns.shape()[1]);
            assert_eq!(bias.shape().num_elements(), columns, "there is a bias for each output");
            add_to_rows(&mut output, numbers(&bias));
        }
        FloatTensor::<Flex>::from_data(TensorData::new(output, [rows.shape()[0], columns.shape()[1]]))
    }

    fn to_input(weight: FloatTensor<Flex>, gradient: FloatTensor<Flex>) -> FloatTensor<Flex> {
        match [&weight, &gradient].map(matrix) {
            [Some(weight), Some(gradient)] => tensor(gradient, weight.transposed()),
            _ => Flex::linear_x_backward(weight, gradient),
        }
    }

    wide! {
        fn add_to_rows(rows: &mut [f32], bias: &[f32]) {
            for row in rows.chunks_exact_mut(bias.len()) {
                row.iter_mut().zip(bias).for_each(|(number, bias)| *number += bias);
            }
        }
    }

    wide! {
        fn add_rows(sums: &mut [f32], rows: &[f32]) {
            for row in rows.chunks_exact(sums.len()) {
                sums.iter_mut().zip(row).for_each(|(sum, number)| *sum += number);
            }
        }
    }

    /// As a matrix of rows: one product is faster than one for every batch.
    fn rows(tensor: FloatTensor<Flex>) -> FloatTensor<Flex> {
        let shape = tensor.shape();
        let columns = shape[shape.num_dims() - 1];
        Flex::float_reshape(tensor, Shape::new([shape.num_elements() / columns.max(1), columns]))
    }

    impl<const N: usize> Backward<Flex, N> for SplitLinear {
        type State = State;

        fn backward(self, ops: Ops<State, N>, gradients: &mut Gradients, _: &mut Checkpointer) {
            let gradient = rows(gradients.consume::<Flex>(&ops.node));
            let State { input, weight, weight_id, bias_id, shape } = ops.state;
            let mut parents = ops.parents.into_iter();
            if let Some(node) = parents.next().flatten() {
                let to_input = to_input(weight, gradient.clone());
                gradients.register::<Flex>(node.id, Flex::float_reshape(to_input, shape));
            }
            let [of_weight, of_bias] = [parents.next().flatten(), parents.next().flatten()];
            let ids: Vec<_> = of_weight.as_ref().map(|_| weight_id).into_iter().chain(bias_id).collect();
            if ids.is_empty() {
                return;
            }
            let of_weights = OfWeights { input, gradient };
            let later = of_weights.clone();
            let weight_id = of_weight.as_ref().map(|_| weight_id);
            let later = Deferred::new(ids, move |sum| {
                if let Some(id) = weight_id {
                    sum.add(id, later.weight());
                }
                if let Some(id) = bias_id {
                    sum.add(id, later.bias());
                }
            });
            if put_off(later).is_err() {
                if let Some(node) = of_weight {
                    gradients.register::<Flex>(node.id, of_weights.weight_primitive());
                }
                if let Some(node) = of_bias {
                    gradients.register::<Flex>(node.id, of_weights.bias_primitive());
                }
            }
        }
    }

    /// Of which the gradients of the weights are made.
    #[derive(Clone)]
    struct OfWeights {
        input: FloatTensor<Flex>,
        gradient: FloatTensor<Flex>,
    }

    impl OfWeights {
        fn weight_primitive(&self) -> FloatTensor<Flex> {
            match [&self.input, &self.gradient].map(matrix) {
                [Some(input), Some(gradient)] => tensor(input.transposed(), gradient),
                _ => Flex::linear_weight_backward(self.input.clone(), self.gradient.clone()),
            }
        }

        fn bias_primitive(&self) -> FloatTensor<Flex> {
            let Some(_) = matrix(&self.gradient) else { return Flex::linear_bias_backward(self.gradient.clone()) };
            let mut sums = vec![0.0; self.gradient.shape()[1]];
            add_rows(&mut sums, numbers(&self.gradient));
            let columns = sums.len();
            FloatTensor::<Flex>::from_data(TensorData::new(sums, [columns]))
        }

        fn weight(&self) -> Tensor<2> {
            Tensor::from_primitive::<Flex>(self.weight_primitive())
        }

        fn bias(&self) -> Tensor<1> {
            Tensor::from_primitive::<Flex>(self.bias_primitive())
        }
    }

    /// `None` where these are no tensors of flex, or of a graph with burn's own checkpointing.
    pub(super) fn split<const D: usize>(
        input: &Tensor<D>,
        weight: &Param<Tensor<2>>,
        bias: Option<&Param<Tensor<1>>>,
    ) -> Option<Tensor<D>> {
        let (input, input_node) = input.clone().try_into_primitive::<Autodiff<Flex>>().ok()?.into_parts();
        let (values, weight_node) = weight.val().try_into_primitive::<Autodiff<Flex>>().ok()?.into_parts();
        let shape = input.shape();
        let input = rows(input);
        let mut output_shape = shape.clone();
        output_shape[D - 1] = values.shape()[1];
        let state = State {
            input: input.clone(),
            weight: values.clone(),
            weight_id: weight.id,
            bias_id: bias.filter(|bias| bias.val().is_require_grad()).map(|bias| bias.id),
            shape,
        };
        let output_of = |bias| Flex::float_reshape(output(input, values, bias), output_shape);
        let output = match bias {
            None => {
                let output = output_of(None);
                match SplitLinear.prepare::<NoCheckpointing>([input_node, weight_node]).compute_bound().stateful() {
                    OpsKind::Tracked(prepared) => prepared.finish(state, output),
                    OpsKind::UnTracked(prepared) => prepared.finish(output),
                }
            }
            Some(bias) => {
                let (bias, bias_node) = bias.val().try_into_primitive::<Autodiff<Flex>>().ok()?.into_parts();
                let output = output_of(Some(bias));
                let nodes = [input_node, weight_node, bias_node];
                match SplitLinear.prepare::<NoCheckpointing>(nodes).compute_bound().stateful() {
                    OpsKind::Tracked(prepared) => prepared.finish(state, output),
                    OpsKind::UnTracked(prepared) => prepared.finish(output),
                }
            }
        };
        Some(Tensor::from_primitive::<Autodiff<Flex>>(output))
    }
}
