//! Layers whose backward is split: the gradient of the input at once, those of the weights when the plan says.
//!
//! They have the parameters of burn's layers, from which they are made, and in a pipeline and out of it the same bits: a linear
//! layer takes inputs of more than two dimensions as rows, where burn 0.22 multiplies them batch by batch. In a plan
//! with split backwards, whatever else a stage is made of has all its gradients at once, and the second half is then shorter
//! (Qi et al., 2023, *Zero Bubble Pipeline Parallelism*, [arXiv:2401.10241](https://arxiv.org/abs/2401.10241)).
//! On devices other than the host they are burn's own, whose backward is whole.
//!
//! Weights that a stage uses three times or more, in such layers and by themselves, are the exception to the same bits: with split
//! backwards their gradients are added up in another order.
//!
//! A layer of one's own is an operation of burn's (`Backward`, its feature `extension`) that leaves a [`Deferred`] by [`put_off`].

mod causal_attention;
mod cross_entropy;
mod embedding;
mod gelu;
mod layer_norm;
mod linear;
#[cfg(feature = "flex")]
mod matrix;
#[cfg(feature = "flex")]
mod operation;
mod products;
#[cfg(feature = "flex")]
mod wide;

pub use causal_attention::causal_attention;
pub use cross_entropy::cross_entropy;
pub use embedding::Embedding;
pub use gelu::gelu;
pub use layer_norm::LayerNorm;
pub use linear::Linear;

pub use crate::deferred::{Deferred, Sum, put_off};
pub use crate::recompute::{block, is_computed_again, selective};

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use burn::module::{Module, Param};
    use burn::nn::{EmbeddingConfig, LinearConfig};
    use burn::optim::GradientsParams;
    use burn::tensor::{Device, Distribution, Int, Tensor, TensorData};

    use super::*;
    use crate::deferred::{Sum, collect};

    fn bits<const D: usize>(tensor: Tensor<D>) -> Vec<u32> {
        tensor.into_data().iter::<f32>().map(f32::to_bits).collect()
    }

    /// Output, gradient of the input, and gradients of the weights.
    fn linear<const D: usize>(
        run: impl Fn(Tensor<D>) -> Tensor<D>,
        (weight, bias): (&Param<Tensor<2>>, Option<&Param<Tensor<1>>>),
        input: &Tensor<D>,
        halves: bool,
    ) -> [Vec<u32>; 4] {
        let input = input.clone().autodiff().require_grad();
        let output = run(input.clone());
        let root = (output.clone() * output.clone()).sum();
        let (mut gradients, deferred) = match halves {
            true => collect(std::iter::empty().collect(), || root.backward()),
            false => (root.backward(), Vec::new()),
        };
        assert_eq!(deferred.len(), usize::from(halves));
        let to_input = input.grad_remove(&mut gradients).unwrap();
        let mut sum = Sum::new(GradientsParams::new(), None);
        if halves {
            assert!(weight.val().grad(&gradients).is_none(), "it waits");
            deferred.into_iter().for_each(|deferred| deferred.add_to(&mut sum));
        } else {
            sum.add(weight.id, weight.val().grad_remove(&mut gradients).unwrap());
            if let Some(bias) = bias {
                sum.add(bias.id, bias.val().grad_remove(&mut gradients).unwrap());
            }
        }
        let bias = bias.map_or_else(Vec::new, |bias| bits(sum.gradients.remove::<1>(bias.id).unwrap()));
        [bits(output.inner()), bits(to_input), bits(sum.gradients.remove::<2>(weight.id).unwrap()), bias]
    }

    #[test]
    fn a_linear_layer_is_that_of_burn_to_the_bit_whole_and_in_halves() {
        let device = Device::flex();
        for bias in [false, true] {
            let theirs = LinearConfig::new(5, 3).with_bias(bias).init(&device.clone().autodiff());
            let ours = Linear::from(theirs.clone());
            let parameters = (&ours.weight, ours.bias.as_ref());
            let rows = Tensor::<2>::random([7, 5], Distribution::Default, &device);
            let expected = linear(|input| theirs.forward(input), parameters, &rows, false);
            assert_eq!(linear(|input| ours.forward(input), parameters, &rows, false), expected);
            assert_eq!(linear(|input| ours.forward(input), parameters, &rows, true), expected);
            let batch = Tensor::<3>::random([2, 7, 5], Distribution::Default, &device);
            let by_rows = |input: Tensor<3>| theirs.forward::<2>(input.flatten(0, 1)).reshape([2, 7, 3]);
            let expected = linear(by_rows, parameters, &batch, false);
            assert_eq!(linear(|input| ours.forward(input), parameters, &batch, false), expected);
            assert_eq!(linear(|input| ours.forward(input), parameters, &batch, true), expected);
        }
    }

    #[test]
    fn an_embedding_is_that_of_burn_to_the_bit_whole_and_in_halves() {
        let device = Device::flex();
        let theirs = EmbeddingConfig::new(6, 4).init(&device.clone().autodiff());
        let ours = Embedding::from(theirs.clone());
        let indices = Tensor::<2, Int>::from_data(TensorData::from([[0, 3, 3], [5, 3, 0]]), &device).autodiff();
        let square = |output: Tensor<3>| (output.clone() * output).sum();
        let id = ours.weight.id;
        let expected = theirs.weight.val().grad(&square(theirs.forward(indices.clone())).backward()).unwrap();
        let whole = ours.weight.val().grad(&square(ours.forward(indices.clone())).backward()).unwrap();
        assert_eq!(bits(whole), bits(expected.clone()));
        let root = square(ours.forward(indices));
        let (gradients, deferred) = collect(std::iter::empty().collect(), || root.backward());
        assert!(ours.weight.val().grad(&gradients).is_none(), "it waits");
        let mut sum = Sum::new(GradientsParams::new(), None);
        deferred.into_iter().for_each(|deferred| deferred.add_to(&mut sum));
        assert_eq!(bits(sum.gradients.remove::<2>(id).unwrap()), bits(expected));
    }

    #[test]
    fn with_burns_own_checkpointing_layers_are_burns() {
        let device = Device::flex().autodiff().gradient_checkpointing();
        let layer = Linear::from(LinearConfig::new(5, 3).init(&device));
        let root = layer.forward(Tensor::<2>::ones([2, 5], &device).require_grad()).sum();
        let (gradients, deferred) = collect(std::iter::empty().collect(), || root.backward());
        assert!(deferred.is_empty() && layer.weight.val().grad(&gradients).is_some());
    }

    #[test]
    fn what_is_exempt_or_frozen_does_not_wait() {
        let device = Device::flex().autodiff();
        let layer = Linear::from(LinearConfig::new(5, 3).init(&device));
        let run = |layer: &Linear| {
            let input = Tensor::<2>::ones([2, 5], &device).require_grad();
            let root = layer.forward(input).sum();
            collect([layer.weight.id].into_iter().collect(), || root.backward())
        };
        let (gradients, deferred) = run(&layer);
        assert!(deferred.is_empty() && layer.weight.val().grad(&gradients).is_some());
        let (gradients, deferred) = run(&layer.clone().no_grad());
        assert!(deferred.is_empty() && layer.weight.val().grad(&gradients).is_none());
    }
}
