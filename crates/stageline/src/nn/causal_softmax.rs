//! What a position attends to of those before it.

use burn::tensor::activation::softmax;
use burn::tensor::{Bool, Tensor};

/// The softmax over the last dimension of scores `[batch, heads, queries, keys]` times `scale`, each query's over the keys that
/// do not come after it.
///
/// As burn's softmax of scores whose upper triangle is filled with minus infinity; in f32 on the host it is one operation, which
/// leaves the other half out.
pub fn causal_softmax(scores: Tensor<4>, scale: f64) -> Tensor<4> {
    #[cfg(feature = "flex")]
    if let Some(weights) = host::causal_softmax(&scores, scale as f32) {
        return weights;
    }
    let [_, _, queries, keys] = scores.dims();
    let future = Tensor::<2, Bool>::tril_mask([queries, keys], 0, &scores.device()).unsqueeze();
    softmax((scores * scale).mask_fill(future, f32::NEG_INFINITY), 3)
}

#[cfg(feature = "flex")]
mod host {
    use burn::backend::TensorMetadata;
    use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::NoCheckpointing};
    use burn::backend::autodiff::grads::Gradients;
    use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
    use burn::backend::tensor::FloatTensor;
    use burn::backend::{Autodiff, Flex};
    use burn::tensor::{DType, Tensor, TensorData};
    use rayon::prelude::*;

    use super::super::wide::{exp, sum, wide};

    const IN_F32: &str = "it is contiguous, and in f32";

    #[derive(Debug)]
    struct CausalSoftmax;

    impl Backward<Flex, 1> for CausalSoftmax {
        /// The weights, and the scale.
        type State = (FloatTensor<Flex>, f32);

        fn backward(self, ops: Ops<Self::State, 1>, gradients: &mut Gradients, _: &mut Checkpointer) {
            let gradient = gradients.consume::<Flex>(&ops.node);
            let (weights, scale) = ops.state;
            let [Some(parent)] = ops.parents else { return };
            let [queries, keys] = last(&weights);
            let gradient = gradient.to_contiguous();
            let mut output = gradient.as_slice::<f32>().expect(IN_F32).to_vec();
            let weights = weights.as_slice::<f32>().expect(IN_F32);
            let heads = output.par_chunks_mut((queries * keys).max(1)).zip(weights.par_chunks((queries * keys).max(1)));
            heads.for_each(|(gradients, weights)| to_scores(gradients, weights, keys, scale));
            let output = FloatTensor::<Flex>::from_data(TensorData::new(output, gradient.shape()));
            gradients.register::<Flex>(parent.id, output);
        }
    }

    fn last(tensor: &FloatTensor<Flex>) -> [usize; 2] {
        let shape = tensor.shape();
        [shape[2], shape[3]]
    }

    /// `None` where it is not in f32 on the host.
    pub(super) fn causal_softmax(scores: &Tensor<4>, scale: f32) -> Option<Tensor<4>> {
        if scores.dtype() != DType::F32 {
            return None;
        }
        if !scores.device().is_autodiff() {
            let scores = scores.clone().try_into_primitive::<Flex>().ok()?;
            return Some(Tensor::from_primitive::<Flex>(weights(&scores, scale)));
        }
        let (scores, node) = scores.clone().try_into_primitive::<Autodiff<Flex>>().ok()?.into_parts();
        let output = weights(&scores, scale);
        let output = match CausalSoftmax.prepare::<NoCheckpointing>([node]).compute_bound().stateful() {
            OpsKind::Tracked(prepared) => prepared.finish((output.clone(), scale), output),
            OpsKind::UnTracked(prepared) => prepared.finish(output),
        };
        Some(Tensor::from_primitive::<Autodiff<Flex>>(output))
    }

    fn weights(scores: &FloatTensor<Flex>, scale: f32) -> FloatTensor<Flex> {
        let [queries, keys] = last(scores);
        let scores = scores.to_contiguous();
        let mut output = scores.as_slice::<f32>().expect(IN_F32).to_vec();
        output.par_chunks_mut((queries * keys).max(1)).for_each(|head| to_weights(head, keys, scale));
        FloatTensor::<Flex>::from_data(TensorData::new(output, scores.shape()))
    }

    wide! {
        fn to_weights(head: &mut [f32], keys: usize, scale: f32) {
            for (query, row) in head.chunks_exact_mut(keys).enumerate() {
                let (past, future) = row.split_at_mut((query + 1).min(keys));
                future.fill(0.0);
                let most = past.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                past.iter_mut().for_each(|score| {
                    let exponent = (*score - most) * scale;
                    // NaN stays NaN, as it does not by `max`.
                    *score = exp(if exponent < -87.0 { -87.0 } else { exponent });
                });
                let share = 1.0 / sum(past, |_, weight| weight);
                past.iter_mut().for_each(|weight| *weight *= share);
            }
        }
    }

    wide! {
        fn to_scores(head: &mut [f32], weights: &[f32], keys: usize, scale: f32) {
            for (query, (gradients, weights)) in head.chunks_exact_mut(keys).zip(weights.chunks_exact(keys)).enumerate() {
                let (past, future) = gradients.split_at_mut((query + 1).min(keys));
                future.fill(0.0);
                let weights = &weights[..past.len()];
                let mean = sum(past, |at, gradient| gradient * weights[at]);
                past.iter_mut().zip(weights).for_each(|(gradient, weight)| *gradient = scale * weight * (*gradient - mean));
            }
        }
    }
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use super::*;
    use burn::tensor::{Device, Distribution};

    /// In f64, by the definition.
    fn exact(scores: &[f32], scale: f64) -> Vec<f64> {
        let most = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let each: Vec<_> = scores.iter().map(|score| (f64::from(score - most) * scale).exp()).collect();
        let sum: f64 = each.iter().sum();
        each.into_iter().map(|weight| weight / sum).collect()
    }

    #[test]
    fn weights_and_gradients_are_those_of_f64() {
        const KEYS: usize = 37;
        let device = Device::flex();
        let scores = Tensor::<4>::random([2, 3, KEYS, KEYS], Distribution::Normal(0.0, 4.0), &device);
        let upstream = Tensor::<4>::random([2, 3, KEYS, KEYS], Distribution::Default, &device);
        let leaf = scores.clone().autodiff().require_grad();
        let weights = causal_softmax(leaf.clone(), 0.3);
        let gradients = (weights.clone() * upstream.clone().autodiff()).sum().backward();
        let numbers = |tensor: Tensor<4>| tensor.into_data().iter::<f32>().collect::<Vec<_>>();
        let untracked = numbers(causal_softmax(scores.clone(), 0.3));
        let (weights, gradient) = (numbers(weights.inner()), numbers(leaf.grad(&gradients).unwrap()));
        assert_eq!(weights, untracked, "the same kernel, with a graph or without");
        let (scores, upstream) = (numbers(scores), numbers(upstream));
        let mut worst = (0.0_f64, 0.0_f64);
        for (row, at) in (0..scores.len()).step_by(KEYS).enumerate() {
            let past = row % KEYS + 1;
            let exact = exact(&scores[at..at + past], 0.3);
            let mean: f64 = exact.iter().zip(&upstream[at..]).map(|(weight, up)| weight * f64::from(*up)).sum();
            for key in 0..KEYS {
                let weight = exact.get(key).copied().unwrap_or(0.0);
                let expected = 0.3 * weight * (f64::from(upstream[at + key]) - mean);
                worst.0 = worst.0.max((f64::from(weights[at + key]) - weight).abs());
                worst.1 = worst.1.max((f64::from(gradient[at + key]) - expected).abs());
            }
        }
        println!("weights are off by {:.1e}, gradients by {:.1e}", worst.0, worst.1);
        assert!(worst.0 < 5e-7 && worst.1 < 5e-7, "{worst:?}");
    }

    #[test]
    fn what_is_not_finite_is_seen() {
        let device = Device::flex();
        let of = |number: f32| {
            let scores = Tensor::<4>::from_floats([[[[0.0, 9.0], [number, 1.0]]]], &device);
            causal_softmax(scores, 1.0).into_data().iter::<f32>().collect::<Vec<_>>()
        };
        let weights = of(f32::NAN);
        assert!(weights[..2] == [1.0, 0.0] && weights[2].is_nan() && weights[3].is_nan());
        assert_eq!(of(f32::NEG_INFINITY)[2..], [exp_of_least(), 1.0]);
    }

    /// The least weight, in place of 0.
    fn exp_of_least() -> f32 {
        super::super::wide::exp(-87.0)
    }
}
