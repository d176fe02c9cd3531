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

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests that the gradient of attention from what a client holds is the gradient on this host, with the documents
    /// of each sample: for samples whose weights are saved, and for longer ones.
    #[test]
    fn a_client_gets_the_gradient_of_this_host() {
        const SIZE: usize = 3;
        let heads = AttentionHeads { query: 4, key_value: 2, window: None };
        for length in [70, 2200] {
            let tensor = |columns: usize| {
                let numbers = (0..2 * length * columns).map(|at| (at as f32).sin()).collect::<Vec<_>>();
                Float::from_data(TensorData::new(numbers, [2, length, columns]))
            };
            let (input, gradient) = (tensor(8 * SIZE), tensor(4 * SIZE));
            // The second half of each sample is a document of its own.
            let starts = (0..2 * length).map(|at| (at % length / (length / 2) * (length / 2)) as i64);
            let starts = TensorData::new(starts.collect::<Vec<_>>(), [2, length]);
            let starts = IntTensor::<Flex>::from_data(starts);
            let (output, attended) = Flex::causal_attention(&input, heads, Some(&starts));
            let here = Flex::causal_attention_to_input(&attended, heads, &gradient);
            let [_, weights @ ..] = &Flex::sent_attention(output, attended)[..] else { panic!("there is an output") };
            assert_eq!(weights.is_empty(), length == 2200);
            let kept = [input.clone()].into_iter().chain(weights.iter().cloned()).collect();
            let there = Flex::received_attention(kept, Some(starts), heads, gradient.clone());
            assert!(numbers(&here) == numbers(&there) && numbers(&here).iter().any(|number| *number != 0.0));
        }
    }
}
