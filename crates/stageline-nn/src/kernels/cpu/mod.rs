//! The kernels for this host's CPU, in f32, with SIMD instructions and on all cores of the current rayon pool.
//!
//! Inputs are tensors of burn's flex backend; a kernel copies those that are not contiguous. Results must not depend on
//! the number of cores; only matrix products may depend on the processor's SIMD instructions.
//!
//! - `causal_attention`, `cross_entropy`, `gelu`, `layer_norm`, `rotary`, `swiglu`: layers' operations and their
//!   gradients.
//! - `squares`: the sum of the squares of a tensor's elements.
//! - `products`: the matrix products of a linear layer, and the gradient of an embedding's table.
//! - `adamw`: a fused AdamW step.
//! - `overwritten`: outputs that begin with the values of a tensor, in place or in a copy (`Overwritten`).
//! - `matrix`: views of f32 slices as matrices (`Matrix`, `MatrixMut`), and their products.
//! - `memory`: memory that stays allocated between training steps.
//! - `huge_pages`: the memory of matrices in huge pages.
//! - `numbers`: conversions from CPU tensors to slices, and back.
//! - `wide`: loops compiled for several SIMD instruction sets, and the functions that such loops use.

pub mod adamw;
pub mod causal_attention;
mod cross_entropy;
mod gelu;
pub mod huge_pages;
mod layer_norm;
mod matrix;
pub mod memory;
pub mod numbers;
mod overwritten;
pub mod products;
mod rotary;
mod squares;
mod swiglu;
mod wide;

use std::sync::Arc;

use burn::backend::Flex;
use burn::backend::tensor::{Device, FloatTensor, IntTensor};
use burn::tensor::DType;

use crate::forward::fallback::Reason;
use crate::kernels::Kernels;
use crate::kernels::attention_blocks::AttentionHeads;
use crate::kernels::variants::{GeluForm, Norm, Normalisation};

/// The values that the backward pass of causal attention needs.
#[derive(Clone, Debug)]
pub struct Attended {
    /// Attention's input, contiguous.
    input: FloatTensor<Flex>,
    /// Position where each query's document begins, `[batch, length]`, counted from 0 in the sample; `None` for samples
    /// of one document.
    starts: Option<IntTensor<Flex>>,
    /// The attention weights of each query head of each sample, as [`causal_attention::attended`] returned them.
    pub(super) weights: Arc<Vec<Vec<f32>>>,
}

impl Kernels for Flex {
    /// Two values per input row for the backward pass of a normalisation, `[rows, 2]`. The first is the row's mean (0
    /// for RMS normalisation). The second is the reciprocal of the row's standard deviation or root mean square.
    type Moments = FloatTensor<Flex>;
    type Attended = Attended;

    fn obstacle(_: &Device<Flex>, dtype: DType) -> Option<Reason> {
        (dtype != DType::F32).then_some(Reason::Type(dtype))
    }

    fn largest_head(_: &Device<Flex>) -> Option<usize> {
        None
    }

    fn gelu_of(input: &FloatTensor<Flex>, form: GeluForm) -> FloatTensor<Flex> {
        gelu::values(&input.to_contiguous(), form)
    }

    fn gelu_to_input(input: &FloatTensor<Flex>, gradient: FloatTensor<Flex>, form: GeluForm) -> FloatTensor<Flex> {
        gelu::to_input(&input.to_contiguous(), gradient, form)
    }

    fn swiglu(gate: &FloatTensor<Flex>, up: &FloatTensor<Flex>) -> FloatTensor<Flex> {
        swiglu::values(&gate.to_contiguous(), &up.to_contiguous())
    }

    fn swiglu_to_inputs(
        gate: FloatTensor<Flex>,
        up: FloatTensor<Flex>,
        gradient: &FloatTensor<Flex>,
    ) -> [FloatTensor<Flex>; 2] {
        swiglu::to_inputs(gate, up, &gradient.to_contiguous())
    }

    fn joined(parts: [&FloatTensor<Flex>; 3], angles: [&FloatTensor<Flex>; 2]) -> FloatTensor<Flex> {
        rotary::joined(&parts.map(|part| part.to_contiguous()), &angles.map(|angles| angles.to_contiguous()))
    }

    fn join_to_parts(
        gradient: &FloatTensor<Flex>,
        columns: [usize; 3],
        angles: [&FloatTensor<Flex>; 2],
    ) -> [FloatTensor<Flex>; 3] {
        rotary::to_parts(&gradient.to_contiguous(), columns, &angles.map(|angles| angles.to_contiguous()))
    }

    fn normalised(
        input: &FloatTensor<Flex>,
        gamma: &FloatTensor<Flex>,
        beta: Option<&FloatTensor<Flex>>,
        norm: Normalisation,
    ) -> (FloatTensor<Flex>, FloatTensor<Flex>) {
        layer_norm::normalised(&input.to_contiguous(), &gamma.to_contiguous(), beta, norm)
    }

    fn normalised_to_input(
        input: &FloatTensor<Flex>,
        gamma: &FloatTensor<Flex>,
        moments: &FloatTensor<Flex>,
        gradient: FloatTensor<Flex>,
        norm: Norm,
    ) -> FloatTensor<Flex> {
        layer_norm::gradient_of_input(&input.to_contiguous(), &gamma.to_contiguous(), moments, gradient, norm)
    }

    fn normalised_to_parameters(
        input: &FloatTensor<Flex>,
        moments: &FloatTensor<Flex>,
        gradient: &FloatTensor<Flex>,
    ) -> [FloatTensor<Flex>; 2] {
        layer_norm::gradients_of_parameters(&input.to_contiguous(), moments, &gradient.to_contiguous())
    }

    fn causal_attention(
        input: &FloatTensor<Flex>,
        heads: AttentionHeads,
        starts: Option<&IntTensor<Flex>>,
    ) -> (FloatTensor<Flex>, Self::Attended) {
        let input = input.to_contiguous();
        let (output, weights) = causal_attention::attended(&input, heads, starts);
        (output, Attended { input, starts: starts.cloned(), weights: Arc::new(weights) })
    }

    fn causal_attention_to_input(
        Attended { input, starts, weights }: &Attended,
        heads: AttentionHeads,
        gradient: &FloatTensor<Flex>,
    ) -> FloatTensor<Flex> {
        causal_attention::to_input(input, heads, starts.as_ref(), weights, &gradient.to_contiguous())
    }

    /// Returns the cross-entropy of logits, summed over the rows. Also returns two values per row, `[rows, 2]`: the
    /// largest logit, and 1 / (sum over the classes of exp(logit - largest logit)).
    fn cross_entropy(logits: &FloatTensor<Flex>, targets: &IntTensor<Flex>) -> [FloatTensor<Flex>; 2] {
        cross_entropy::summed(&logits.to_contiguous(), targets)
    }

    fn cross_entropy_to_logits(
        logits: FloatTensor<Flex>,
        targets: &IntTensor<Flex>,
        scales: &FloatTensor<Flex>,
        gradient: &FloatTensor<Flex>,
    ) -> FloatTensor<Flex> {
        cross_entropy::gradient_of_logits(logits, targets, scales, &gradient.to_contiguous())
    }

    fn sum_of_squares(tensor: &FloatTensor<Flex>) -> FloatTensor<Flex> {
        squares::sum_of_squares(tensor)
    }
}
