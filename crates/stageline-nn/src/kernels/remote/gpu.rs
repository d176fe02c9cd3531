//! Sends what a server's GPU kernels save for their backward pass as tensors, to which a client on another host holds
//! handles, and converts these tensors back.

use burn::backend::tensor::{Device, FloatTensor, IntTensor};
use burn::backend::{Cube, TensorMetadata};
use burn::tensor::Tensor;

use super::ServedKernels;
use super::serve::Served;
use crate::kernels::Kernels;
use crate::kernels::attention_blocks::AttentionHeads;
use crate::kernels::flash;
use crate::kernels::fused::causal_attention::Attended;
use crate::kernels::fused::layer_norm::Moments;
use crate::kernels::gpu::{Kept, first_positions, of, primitive};
use crate::kernels::variants::Norm;

type Float = FloatTensor<Cube>;

impl Served for Cube {
    fn kernels(device: &Device<Self>) -> ServedKernels {
        ServedKernels::Gpu { largest_head: flash::largest_head(device) }
    }

    fn sent_moments(Moments { mean, over_deviation }: Moments<Float>) -> Float {
        let over_deviation = of::<2>(&over_deviation);
        let mean = mean.map_or_else(|| over_deviation.zeros_like(), |mean| of(&mean));
        primitive(Tensor::cat(vec![mean, over_deviation], 1))
    }

    fn received_moments(moments: Float, norm: Norm) -> Moments<Float> {
        let column = |index: usize| primitive(of::<2>(&moments).slice_dim(1, index..index + 1));
        Moments { mean: (norm == Norm::Layer).then(|| column(0)), over_deviation: column(1) }
    }

    /// Converts the results of causal attention's forward pass to the tensors that the server returns to a client:
    /// attention's output, and what the backward pass needs:
    ///
    /// - after FlashAttention, the log-sum-exp of each query's scores
    /// - for larger heads, the queries, keys and values of all heads; the unnormalised attention weights; and the
    ///   reciprocal of each query's sum of weights
    fn sent_attention(output: Float, kept: Kept) -> Vec<Float> {
        match kept {
            Kept::Logarithms { logarithms, .. } => vec![output, logarithms],
            Kept::Weights(Attended { parts, weights, shares, .. }) => vec![output, parts, weights, shares],
        }
    }

    /// Runs causal attention's backward pass on the server, and returns the gradient with respect to attention's input.
    /// `gradient` is the gradient with respect to the output. `kept` are the saved tensors:
    ///
    /// - after FlashAttention, attention's input, its output and the log-sum-exp of each query's scores
    /// - for larger heads, attention's output and the three other tensors that
    ///   [`sent_attention`](Served::sent_attention) returned
    fn received_attention(
        kept: Vec<Float>,
        starts: Option<IntTensor<Self>>,
        heads: AttentionHeads,
        gradient: Float,
    ) -> Float {
        let kept = match <[Float; 3]>::try_from(kept) {
            Ok([input, output, logarithms]) => {
                let shape = input.shape();
                let starts = starts.unwrap_or_else(|| first_positions(shape[0], shape[1], &input.device()));
                Kept::Logarithms { input, starts, output, logarithms }
            }
            Err(kept) => {
                let [output, parts, weights, shares] =
                    <[Float; 4]>::try_from(kept).expect("a client holds what the forward of attention kept");
                Kept::Weights(Attended { parts, weights, shares, output })
            }
        };
        Self::causal_attention_to_input(&kept, heads, &gradient)
    }
}
