//! The kernels of GPUs (CUDA, ROCm, Vulkan, Metal and WebGPU): attention as this crate's own GPU code, and all other
//! operations composed of burn's operations, which burn fuses on these devices.

use burn::backend::ops::{FloatTensorOps, IntTensorOps, ModuleOps};
use burn::backend::tensor::{Device, FloatTensor, IntTensor};
use burn::backend::{Cube, TensorMetadata};
use burn::tensor::{DType, Int, IntDType, Shape, Tensor};

use crate::engine::Engine;
use crate::forward::fallback::{Reason, report_fallback};
use crate::kernels::Kernels;
use crate::kernels::attention_blocks::AttentionHeads;
use crate::kernels::declared::name::CAUSAL_ATTENTION;
use crate::kernels::flash::{self, FlashAttention};
use crate::kernels::fused::causal_attention::{self, Attended};
use crate::kernels::fused::layer_norm::{self, Moments};
use crate::kernels::fused::{cross_entropy, gelu, sums, swiglu, table};
use crate::kernels::products::{Products, added_up};
use crate::kernels::rotation;
use crate::kernels::variants::{GeluForm, Norm, Normalisation};

type Float = FloatTensor<Cube>;

fn shaped<const D: usize>(tensor: &Float, shape: [usize; D]) -> Tensor<D> {
    Cube::of_plain(Cube::float_reshape(tensor.clone(), Shape::new(shape)))
}

fn flat(tensor: &Float) -> Tensor<1> {
    shaped(tensor, [tensor.shape().num_elements()])
}

/// Converts the GPU backend's primitive tensor of shape `[..., width]` to a burn tensor `[rows, width]`.
fn rows(tensor: &Float) -> Tensor<2> {
    let shape = tensor.shape();
    let width = shape[shape.num_dims() - 1];
    shaped(tensor, [shape[..shape.num_dims() - 1].iter().product(), width])
}

/// Converts a burn tensor of the GPU backend to the backend's primitive tensor. Panics if the tensor is of another
/// backend.
pub(super) fn primitive<const D: usize>(tensor: Tensor<D>) -> Float {
    Cube::plain(tensor).expect("a result of this backend's tensors is of this backend")
}

/// Reshapes a burn tensor of the GPU backend to the shape of `other`, and returns the backend's primitive tensor.
fn like<const D: usize>(tensor: Tensor<D>, other: &Float) -> Float {
    Cube::float_reshape(primitive(tensor), other.shape())
}

/// Converts the GPU backend's primitive tensor to a burn tensor of the same rank, `D`.
pub(super) fn of<const D: usize>(tensor: &Float) -> Tensor<D> {
    Cube::of_plain(tensor.clone())
}

fn moments(Moments { mean, over_deviation }: &Moments<Float>) -> Moments<Tensor<2>> {
    Moments { mean: mean.as_ref().map(of), over_deviation: of(over_deviation) }
}

/// Tensors that causal attention's forward pass on a GPU saves for its backward pass. They depend on which attention
/// kernels the GPU can run.
#[derive(Clone, Debug)]
pub enum Kept {
    /// Saved by FlashAttention, which stores no attention scores; the backward pass recomputes them from these tensors.
    Logarithms {
        /// Packed input of causal attention, `[batch, length, (query heads + 2 x key-value heads) x size]`: the
        /// queries, keys and values of all heads, side by side.
        input: Float,
        /// Position where each query's document begins, `[batch, length]`, counted from 0 in the sample; all 0 if every
        /// sample is one document.
        starts: IntTensor<Cube>,
        /// Output of causal attention's forward pass, `[batch, length, query heads x size]`.
        output: Float,
        /// Natural log-sum-exp of each query's attention scores, `[batch, query heads, length]` in f32.
        logarithms: Float,
    },
    /// Saved if the heads are too large for FlashAttention: the attention weights of all queries, and other tensors.
    Weights(Attended<Float>),
}

/// Returns i32 zeros, `[batch, length]`, as the document start positions of queries if every sample is one document.
pub(super) fn first_positions(batch: usize, length: usize, device: &Device<Cube>) -> IntTensor<Cube> {
    Cube::int_zeros(Shape::new([batch, length]), device, IntDType::I32)
}

impl Products for Cube {
    fn to_bias(gradient: Float) -> Float {
        match gradient.shape().num_elements() {
            0 => Self::linear_bias_backward(gradient),
            _ => primitive(sums::of_rows(&rows(&gradient))),
        }
    }

    /// Returns the gradient of the loss with respect to an embedding's table. In half precision, and for at most 4096
    /// table rows, it is one matrix product with one-hot rows. Otherwise burn's own backward pass of an embedding
    /// computes it.
    ///
    /// The zeros and ones of the one-hot rows are exact in half precision. In f32 no matrix product is used, because a
    /// GPU may compute f32 products at a lower precision (such as TF32).
    fn to_table(table: Float, gradient: Float, indices: IntTensor<Self>) -> Float {
        const FEW: usize = 4096;
        let count = table.shape()[0];
        if count > FEW || gradient.dtype() == DType::F32 || gradient.shape().num_elements() == 0 {
            return added_up::<Self>(table, gradient, indices);
        }
        let indices = Tensor::<2, Int>::from_primitive::<Self>(indices).flatten(0, 1);
        primitive(table::added_up(rows(&gradient), indices, count))
    }
}

impl Kernels for Cube {
    type Moments = Moments<Float>;
    type Attended = Kept;

    fn obstacle(_: &Device<Cube>, dtype: DType) -> Option<Reason> {
        (!matches!(dtype, DType::F32 | DType::BF16 | DType::F16)).then_some(Reason::Type(dtype))
    }

    fn largest_head(device: &Device<Cube>) -> Option<usize> {
        Some(flash::largest_head(device))
    }

    fn gelu_of(input: &Float, form: GeluForm) -> Float {
        like(gelu::values(&rows(input), form), input)
    }

    fn gelu_to_input(input: &Float, gradient: Float, form: GeluForm) -> Float {
        like(gelu::to_input(&rows(input), rows(&gradient), form), input)
    }

    fn swiglu(gate: &Float, up: &Float) -> Float {
        like(swiglu::values(&rows(gate), &rows(up)), gate)
    }

    fn swiglu_to_inputs(gate: Float, up: Float, gradient: &Float) -> [Float; 2] {
        swiglu::to_inputs(&rows(&gate), &rows(&up), &rows(gradient)).map(|found| like(found, &gate))
    }

    fn joined(parts: [&Float; 3], angles: [&Float; 2]) -> Float {
        primitive(rotation::joined(parts.map(of), angles.map(of)))
    }

    fn join_to_parts(gradient: &Float, columns: [usize; 3], angles: [&Float; 2]) -> [Float; 3] {
        rotation::to_parts(&of(gradient), columns, angles.map(of)).map(primitive)
    }

    fn normalised(input: &Float, gamma: &Float, beta: Option<&Float>, norm: Normalisation) -> (Float, Moments<Float>) {
        let (output, Moments { mean, over_deviation }) =
            layer_norm::normalised(&rows(input), of(gamma), beta.map(of), norm);
        let moments = Moments { mean: mean.map(primitive), over_deviation: primitive(over_deviation) };
        (like(output, input), moments)
    }

    /// Returns the gradient of the loss with respect to a normalisation's input. The last argument, the kind of
    /// normalisation, is ignored, because the moments contain means only for layer normalisation.
    fn normalised_to_input(input: &Float, gamma: &Float, of_rows: &Moments<Float>, gradient: Float, _: Norm) -> Float {
        let to_input = layer_norm::to_input(&rows(input), of(gamma), moments(of_rows), rows(&gradient));
        like(to_input, input)
    }

    fn normalised_to_parameters(input: &Float, of_rows: &Moments<Float>, gradient: &Float) -> [Float; 2] {
        layer_norm::to_parameters(&rows(input), moments(of_rows), &rows(gradient)).map(primitive)
    }

    fn causal_attention(input: &Float, heads: AttentionHeads, starts: Option<&IntTensor<Cube>>) -> (Float, Kept) {
        let [batch, length, columns] = input.shape().dims();
        if flash::fits(&input.device(), columns / heads.columns()) {
            let starts = starts.cloned().unwrap_or_else(|| first_positions(batch, length, &input.device()));
            let (output, logarithms) = Self::flash_attention(input.clone(), starts.clone(), heads);
            return (output.clone(), Kept::Logarithms { input: input.clone(), starts, output, logarithms });
        }
        report_fallback(CAUSAL_ATTENTION, || Reason::LargeHead {
            size: columns / heads.columns(),
            largest: flash::largest_head(&input.device()),
        });
        let starts = starts.map(|starts| Tensor::from_primitive::<Cube>(starts.clone()));
        let (values, Attended { parts, weights, shares, output }) =
            causal_attention::attended(of(input), heads, starts);
        let [parts, weights, shares, output] = [parts, weights, shares, output].map(primitive);
        (primitive(values), Kept::Weights(Attended { parts, weights, shares, output }))
    }

    fn causal_attention_to_input(kept: &Kept, heads: AttentionHeads, gradient: &Float) -> Float {
        match kept.clone() {
            Kept::Logarithms { input, starts, output, logarithms } => {
                Self::flash_attention_to_input(input, starts, output, logarithms, gradient.clone(), heads)
            }
            Kept::Weights(Attended { parts, weights, shares, output }) => {
                let attended =
                    Attended { parts: of(&parts), weights: of(&weights), shares: of(&shares), output: of(&output) };
                primitive(causal_attention::to_input(attended, heads, of(gradient)))
            }
        }
    }

    /// Returns the cross-entropy of logits, summed over the rows to `[1]`, and the log-likelihoods of all classes,
    /// `[rows, classes]`.
    fn cross_entropy(logits: &Float, targets: &IntTensor<Cube>) -> [Float; 2] {
        let (sum, likelihoods) = cross_entropy::summed(of(logits), Tensor::from_primitive::<Cube>(targets.clone()));
        [primitive(sum), primitive(likelihoods)]
    }

    fn cross_entropy_to_logits(
        logits: Float,
        targets: &IntTensor<Cube>,
        likelihoods: &Float,
        gradient: &Float,
    ) -> Float {
        let targets = Tensor::from_primitive::<Cube>(targets.clone());
        primitive(cross_entropy::to_logits(&of(&logits), of(likelihoods), targets, of(gradient)))
    }

    /// Returns the sum of the squares of all elements of a GPU tensor: in f64, or in f32 on a GPU without f64. The
    /// order of the additions depends only on the kernels that burn's autotune chose.
    fn sum_of_squares(tensor: &Float) -> Float {
        primitive(sums::of_squares(flat(tensor)))
    }
}
