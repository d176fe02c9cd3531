//! Sends what a server's CPU kernels save for their backward pass as tensors, to which a client on another host holds
//! handles, and converts these tensors back.

use burn::backend::tensor::{Device, FloatTensor, IntTensor};
use burn::backend::{Flex, TensorMetadata};
use burn::tensor::TensorData;

use super::ServedKernels;
use super::serve::Served;
use crate::kernels::Kernels;
use crate::kernels::attention_blocks::{AttentionHeads, weights_of_a_head};
use crate::kernels::cpu::causal_attention;
use crate::kernels::cpu::numbers::numbers;
use crate::kernels::variants::Norm;

type Float = FloatTensor<Flex>;

impl Served for Flex {
    fn kernels(_: &Device<Self>) -> ServedKernels {
        ServedKernels::Cpu
    }

    fn sent_moments(moments: Float) -> Float {
        moments
    }

    fn received_moments(moments: Float, _: Norm) -> Float {
        moments
    }

    /// Converts the results of causal attention's forward pass to the tensors that the server returns to a client:
    /// attention's output and, if the backward pass does not compute them again, one vector with the attention weights
    /// of all query heads of all samples.
    fn sent_attention(output: Float, attended: <Self as Kernels>::Attended) -> Vec<Float> {
        let weights = attended.weights.concat();
        let size = weights.len();
        let weights = (size > 0).then(|| Float::from_data(TensorData::new(weights, [size])));
        [output].into_iter().chain(weights).collect()
    }

    fn received_attention(
        kept: Vec<Float>,
        starts: Option<IntTensor<Self>>,
        heads: AttentionHeads,
        gradient: Float,
    ) -> Float {
        let [input, weights @ ..] = &kept[..] else { unreachable!("a client holds the input") };
        let input = input.to_contiguous();
        let (shape, weights) = (input.shape(), weights.first().map_or(&[][..], numbers));
        let of_a_head = weights_of_a_head(shape[1], heads);
        let heads_of_batch = 0..shape[0] * heads.query;
        let weights: Vec<_> = heads_of_batch.map(|head| &weights[head * of_a_head..][..of_a_head]).collect();
        causal_attention::to_input(&input, heads, starts.as_ref(), &weights, &gradient.to_contiguous())
    }
}
