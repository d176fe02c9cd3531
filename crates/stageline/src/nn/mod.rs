//! Layers whose backward is split: the gradient of the input at once, those of the weights when the plan says.
//!
//! They have the parameters of burn's layers, from which they are made, and in a pipeline and out of it the same bits: a linear
//! layer takes inputs of more than two dimensions as rows, which makes one product of what would be one for every batch. In a plan
//! with split backwards, whatever else a stage is made of has all its gradients at once, and the second half is then shorter
//! (Qi et al., 2023, *Zero Bubble Pipeline Parallelism*, [arXiv:2401.10241](https://arxiv.org/abs/2401.10241)).
//! Their backward is split, and [`block`] and [`selective`] compute again, on the backends that this crate is built with: on CPUs,
//! and on NVIDIA GPUs, where nothing of it has run yet. What is one operation instead of many is so on both.
//!
//! Weights that a stage uses three times or more, in such layers and by themselves, are the exception to the same bits: with split
//! backwards their gradients are added up in another order.
//!
//! A layer of one's own is an operation of burn's (`Backward`, its feature `extension`) that leaves a [`Deferred`] by [`put_off`].

pub(crate) mod autograd;
pub(crate) mod forward;
pub(crate) mod kernels;
pub(crate) mod layers;
pub(crate) mod params;

pub use autograd::recompute::{block, is_computed_again, selective};
pub use autograd::split_backward::{Deferred, Sum, put_off};
pub use forward::{after_step, samples};
pub use layers::{Embedding, LayerNorm, Linear, causal_attention, cross_entropy, gelu};

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use burn::module::{Module, Param};
    use burn::nn::{EmbeddingConfig, LayerNormConfig, LinearConfig};
    use burn::optim::GradientsParams;
    use burn::tensor::{Device, Distribution, FloatDType, Int, Tensor, TensorData};

    use super::*;
    use crate::nn::autograd::split_backward::{Sum, collect};

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
    fn the_parameters_of_a_layer_norm_wait_and_are_the_same_bits() {
        let device = Device::flex();
        let norm = LayerNorm::init(&LayerNormConfig::new(7), &device.clone().autodiff());
        let (gamma, beta) = (norm.gamma.id, norm.beta.as_ref().unwrap().id);
        let rows = Tensor::<3>::random([2, 70, 7], Distribution::Default, &device);
        let root = || {
            let output = norm.forward(rows.clone().autodiff().require_grad());
            (output.clone() * output.clone() * output).sum()
        };
        let whole = GradientsParams::from_grads(root().backward(), &norm);
        let root = root();
        let (gradients, deferred) = collect(std::iter::empty().collect(), || root.backward());
        assert!(norm.gamma.val().grad(&gradients).is_none() && deferred.len() == 1, "they wait");
        let mut sum = Sum::new(GradientsParams::new(), None);
        deferred.into_iter().for_each(|deferred| deferred.add_to(&mut sum));
        for id in [gamma, beta] {
            assert_eq!(bits(sum.gradients.get::<1>(id).unwrap()), bits(whole.get::<1>(id).unwrap()));
        }
        // Of one that is frozen there is nothing to wait for.
        let mut frozen = norm.clone();
        frozen.beta = frozen.beta.map(Param::no_grad);
        let root = frozen.forward(rows.autodiff()).sum();
        let (_, deferred) = collect(std::iter::empty().collect(), || root.backward());
        assert_eq!(deferred.into_iter().map(|deferred| deferred.ids).collect::<Vec<_>>(), [vec![gamma]]);
    }

    /// Its products, and the sums of its backward, beside the same in f64 one after the other.
    #[test]
    fn a_linear_layer_is_near_its_definition_in_f64() {
        const ROWS: usize = 37;
        const INPUTS: usize = 65;
        const OUTPUTS: usize = 19;
        let device = Device::flex();
        let layer = Linear::from(LinearConfig::new(INPUTS, OUTPUTS).init(&device.clone().autodiff()));
        let input = Tensor::<2>::random([ROWS, INPUTS], Distribution::Uniform(-1.0, 1.0), &device);
        let upstream = Tensor::<2>::random([ROWS, OUTPUTS], Distribution::Uniform(-1.0, 1.0), &device);
        let numbers = |tensor: Tensor<2>| tensor.into_data().iter::<f64>().collect::<Vec<_>>();
        let bias = layer.bias.as_ref().unwrap();
        let (x, w, g) = (numbers(input.clone()), numbers(layer.weight.val().inner()), numbers(upstream.clone()));
        let b: Vec<_> = bias.val().inner().into_data().iter::<f64>().collect();
        let matrix = |rows: usize, columns: usize, of: &dyn Fn(usize, usize) -> f64| {
            (0..rows * columns).map(|at| of(at / columns, at % columns)).collect::<Vec<_>>()
        };
        let output = matrix(ROWS, OUTPUTS, &|row, column| {
            b[column] + (0..INPUTS).map(|k| x[row * INPUTS + k] * w[k * OUTPUTS + column]).sum::<f64>()
        });
        let to_input = matrix(ROWS, INPUTS, &|row, column| {
            (0..OUTPUTS).map(|k| g[row * OUTPUTS + k] * w[column * OUTPUTS + k]).sum()
        });
        let to_weight = matrix(INPUTS, OUTPUTS, &|row, column| {
            (0..ROWS).map(|k| x[k * INPUTS + row] * g[k * OUTPUTS + column]).sum()
        });
        let to_bias = matrix(1, OUTPUTS, &|_, column| (0..ROWS).map(|k| g[k * OUTPUTS + column]).sum());
        let leaf = input.autodiff().require_grad();
        let found = layer.forward(leaf.clone());
        let near = |found: Vec<f64>, expected: &[f64], what: &str| {
            assert_eq!(found.len(), expected.len(), "{what}");
            let worst =
                found.iter().zip(expected).map(|(found, expected)| (found - expected).abs()).fold(0.0, f64::max);
            assert!(worst < 1e-5, "{what}: {worst}");
        };
        near(numbers(found.clone().inner()), &output, "output");
        let mut gradients = (found * upstream.autodiff()).sum().backward();
        near(numbers(leaf.grad_remove(&mut gradients).unwrap()), &to_input, "gradient of the input");
        near(numbers(layer.weight.val().grad_remove(&mut gradients).unwrap()), &to_weight, "gradient of the weight");
        let of_bias = bias.val().grad_remove(&mut gradients).unwrap();
        near(of_bias.into_data().iter::<f64>().collect(), &to_bias, "gradient of the bias");
    }

    /// What it has no input for, is the bias.
    #[test]
    fn a_linear_layer_without_features_is_its_bias() {
        let device = Device::flex();
        let bias = Tensor::<1>::from_floats([1.0, 2.0], &device).autodiff();
        let layer = Linear {
            weight: Param::from_tensor(Tensor::zeros([0, 2], &device.clone().autodiff())),
            bias: Some(Param::from_tensor(bias)),
        };
        let output = layer.forward(Tensor::<2>::zeros([3, 0], &device).autodiff());
        assert_eq!(output.inner().into_data().iter::<f32>().collect::<Vec<_>>(), [1.0, 2.0, 1.0, 2.0, 1.0, 2.0]);
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
    fn what_is_taken_of_an_embedding_often_counts_every_time_in_half_precision() {
        let device = Device::flex();
        let table = Tensor::<2>::zeros([2, 1], &device).cast(FloatDType::BF16);
        let layer = Embedding { weight: Param::from_tensor(table.autodiff().require_grad()) };
        let indices = Tensor::<2, Int>::ones([8, 125], &device).autodiff();
        let gradients = layer.forward(indices).sum().backward();
        let found = layer.weight.val().grad(&gradients).unwrap();
        // One after the other in bf16, it would be 256.
        assert_eq!(found.into_data().iter::<f32>().collect::<Vec<_>>(), [0.0, 1000.0]);
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
