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
    /// attention's output, and one vector with the attention weights of all query heads of all samples.
    fn sent_attention(output: Float, (_, weights): <Self as Kernels>::Attended) -> Vec<Float> {
        let weights = weights.concat();
        let size = weights.len();
        vec![output, Float::from_data(TensorData::new(weights, [size]))]
    }

    fn received_attention(
        kept: Vec<Float>,
        _: Option<IntTensor<Self>>,
        heads: AttentionHeads,
        gradient: Float,
    ) -> Float {
        let [input, weights] = <[Float; 2]>::try_from(kept).expect("a client holds the input and the weights");
        let input = input.to_contiguous();
        let weights_per_head = weights_of_a_head(input.shape()[1], heads);
        let weights: Vec<_> = numbers(&weights).chunks_exact(weights_per_head.max(1)).collect();
        causal_attention::to_input(&input, heads, &weights, &gradient.to_contiguous())
    }
}
