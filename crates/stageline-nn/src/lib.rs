//! Layers with split backward passes (input gradients apart from weight gradients), and functions that mark blocks for
//! activation recomputation.
//!
//! In a pipeline, the layers add their weight gradients one by one to the sum over the micro-batches. So only one
//! layer's gradients exist besides the sum. On CPUs a linear layer adds in place, if it computes in f32 and its input
//! has 3 to 512 rows (tokens). An embedding adds only the rows that were looked up.
//!
//! In a split backward pass, these layers compute the input gradient first, and the weight gradients when the
//! pipeline's schedule says so. A schedule can therefore fill pipeline bubbles with weight gradients (Qi et al., 2023,
//! *Zero Bubble Pipeline Parallelism*, [arXiv:2401.10241](https://arxiv.org/abs/2401.10241)). Other layers of a stage
//! compute all their gradients in the first half of a split backward pass, which leaves less work for the second half.
//!
//! - **Parameters**: [`Linear`], [`Embedding`], [`LayerNorm`] and [`RmsNorm`] have the parameters of burn's layers and
//!   are made from burn's layers or their configuration.
//! - **Bits**: a layer gives bitwise identical results inside and outside a pipeline, with two exceptions, in which a
//!   pipeline may sum a weight's gradients in a different order. First, a stage may use the weight three times or more,
//!   both in these layers and in other operations. Second, a stage may use the weight in other operations as well, but
//!   not in the first micro-batches of a step.
//! - **Backends**: split backward passes, [`block`], [`selective`] and the operations that replace several of burn's
//!   run on CPUs and on GPUs, if the crate is built with the backend. The GPU code has run on an NVIDIA H100 and on a
//!   Vulkan device in software. On GPUs causal attention stores no scores, so [`selective`] saves little memory.
//! - **Fallbacks**: burn's own operations compute what a device has no kernel for, such as bf16 on a CPU.
//!   [`finding_fallbacks`] reports these operations and the reasons ([`Reason`]) in a forward pass, and [`Operation`]
//!   before one.
//! - **Custom layers**: the `Backward` of a burn operation (burn's feature `extension`) passes its weight gradients to
//!   [`put_off`] as a [`Deferred`].
//!
//! Inputs are burn modules and tensors; outputs are tensors and deferred gradients. This crate must not know stages,
//! plans or channels.
//!
//! The crate root contains the layers and functions that models are built from. A pipeline or an optimizer calls four
//! modules: [`autograd`], [`params`], [`kernels`], and [`after_step`], which runs layers' updates, such as new running
//! statistics, after the optimizer step.
//!
//! - `layers`: the layers and the functions without parameters.
//! - `autograd`: split backward passes, recomputation, and backward passes that start from a given gradient.
//! - `kernels`: the operations of these layers, each computed by one call of a backend.
//! - `engine`: the backends of this build, and functions that record this crate's operations in their autodiff graphs.
//! - `forward`: the context of the running forward pass, kept per thread.
//! - `params`: finds, reads and replaces the parameters of a module.

pub mod autograd;
mod engine;
mod forward;
pub mod kernels;
mod layers;
pub mod params;
#[cfg(test)]
#[cfg(feature = "flex")]
mod test_numbers;

pub use autograd::recompute::{BlockOutOfRange, BlockSet, Recompute, block, feed_forward, selective, sequence};
pub use autograd::sum::Sum;
pub use autograd::weight_gradients::{Deferred, put_off};
pub use forward::after_step;
pub use forward::fallback::{Fallback, Reason, finding_fallbacks};
pub use forward::flops::{counting_flops, report_flops};
pub use forward::layer_path::{failed_layer, in_layer, in_layers, try_in_layer};
pub use forward::recomputation::is_recomputation;
pub use forward::samples::Samples;
pub use kernels::attention_blocks::AttentionHeads;
pub use kernels::declared::Operation;
pub use kernels::masked_targets::MASKED;
pub use layers::batch_norm::{AccumulatedBatchNorm, FoundBatchNorm, batch_norms};
pub use layers::dropout::Dropout;
pub use layers::{
    Embedding, LayerNorm, Linear, RmsNorm, RotaryAngles, causal_attention, causal_attention_within, cross_entropy,
    gelu, gelu_tanh, join_rotated, swiglu, unmasked,
};
pub use params::seed::seeded;

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use burn::module::{Module, Param};
    use burn::nn::{EmbeddingConfig, LayerNormConfig, LinearConfig};
    use burn::optim::GradientsParams;
    use burn::tensor::{Device, FloatDType, Int, Tensor, TensorData};

    use super::*;
    use crate::autograd::weight_gradients::collect;
    use crate::test_numbers::uniform;

    fn bits<const D: usize>(tensor: Tensor<D>) -> Vec<u32> {
        tensor.into_data().iter::<f32>().map(f32::to_bits).collect()
    }

    /// Runs a linear layer forward and backward in a test. Returns the bits of its output and of the gradients of its
    /// input, weight and bias. `halves` says whether the backward is split into input and weight gradients.
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
            assert!(weight.val().grad(&gradients).is_none(), "the weight gradient must be deferred");
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
    fn linear_gives_burns_bits_with_whole_and_split_backward() {
        let device = Device::flex();
        for bias in [false, true] {
            let theirs = LinearConfig::new(5, 3).with_bias(bias).init(&device.clone().autodiff());
            let ours = Linear::from(theirs.clone());
            let parameters = (&ours.weight, ours.bias.as_ref());
            let rows = uniform([7, 5], 0.0..1.0, &device);
            let expected = linear(|input| theirs.forward(input), parameters, &rows, false);
            assert_eq!(linear(|input| ours.forward(input), parameters, &rows, false), expected);
            assert_eq!(linear(|input| ours.forward(input), parameters, &rows, true), expected);
            let batch = uniform([2, 7, 5], 0.0..1.0, &device);
            let by_rows = |input: Tensor<3>| theirs.forward::<2>(input.flatten(0, 1)).reshape([2, 7, 3]);
            let expected = linear(by_rows, parameters, &batch, false);
            assert_eq!(linear(|input| ours.forward(input), parameters, &batch, false), expected);
            assert_eq!(linear(|input| ours.forward(input), parameters, &batch, true), expected);
        }
    }

    #[test]
    fn deferred_layer_norm_gradients_have_the_bits_of_a_whole_backward() {
        let device = Device::flex();
        let norm = LayerNorm::init(&LayerNormConfig::new(7), &device.clone().autodiff());
        let (gamma, beta) = (norm.gamma.id, norm.beta.as_ref().unwrap().id);
        let rows = uniform([2, 70, 7], 0.0..1.0, &device);
        let root = || {
            let output = norm.forward(rows.clone().autodiff().require_grad());
            (output.clone() * output.clone() * output).sum()
        };
        let whole = GradientsParams::from_grads(root().backward(), &norm);
        let root = root();
        let (gradients, deferred) = collect(std::iter::empty().collect(), || root.backward());
        assert!(norm.gamma.val().grad(&gradients).is_none() && deferred.len() == 1, "both gradients must be deferred");
        let mut sum = Sum::new(GradientsParams::new(), None);
        deferred.into_iter().for_each(|deferred| deferred.add_to(&mut sum));
        for id in [gamma, beta] {
            assert_eq!(bits(sum.gradients.get::<1>(id).unwrap()), bits(whole.get::<1>(id).unwrap()));
        }
        // A frozen parameter has no gradient to defer.
        let mut frozen = norm.clone();
        frozen.beta = frozen.beta.map(Param::no_grad);
        let root = frozen.forward(rows.autodiff()).sum();
        let (_, deferred) = collect(std::iter::empty().collect(), || root.backward());
        assert_eq!(deferred.into_iter().map(|deferred| deferred.ids).collect::<Vec<_>>(), [vec![gamma]]);
    }

    #[test]
    fn linear_is_close_to_its_definition_in_f64() {
        const ROWS: usize = 37;
        const INPUTS: usize = 65;
        const OUTPUTS: usize = 19;
        let device = Device::flex();
        let layer = Linear::from(LinearConfig::new(INPUTS, OUTPUTS).init(&device.clone().autodiff()));
        let input = uniform([ROWS, INPUTS], -1.0..1.0, &device);
        let upstream = uniform([ROWS, OUTPUTS], -1.0..1.0, &device);
        let numbers = |tensor: Tensor<2>| tensor.into_data().iter::<f64>().collect::<Vec<_>>();
        let bias = layer.bias.as_ref().unwrap();
        let (x, w, g) = (numbers(input.clone()), numbers(layer.weight.val().inner()), numbers(upstream.clone()));
        let b: Vec<_> = bias.val().inner().into_data().iter::<f64>().collect();
        let matrix = |rows: usize, columns: usize, element: &dyn Fn(usize, usize) -> f64| {
            (0..rows * columns).map(|at| element(at / columns, at % columns)).collect::<Vec<_>>()
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
            let worst = found
                .iter()
                .zip(expected)
                .map(|(found, expected)| (found - expected).abs())
                .inspect(|apart| assert!(apart.is_finite()))
                .fold(0.0, f64::max);
            assert!(worst < 1e-5, "{what}: {worst}");
        };
        near(numbers(found.clone().inner()), &output, "output");
        let mut gradients = (found * upstream.autodiff()).sum().backward();
        near(numbers(leaf.grad_remove(&mut gradients).unwrap()), &to_input, "gradient of the input");
        near(numbers(layer.weight.val().grad_remove(&mut gradients).unwrap()), &to_weight, "gradient of the weight");
        let bias_gradient = bias.val().grad_remove(&mut gradients).unwrap();
        near(bias_gradient.into_data().iter::<f64>().collect(), &to_bias, "gradient of the bias");
    }

    #[test]
    fn linear_without_inputs_returns_its_bias() {
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
    fn embedding_gives_burns_bits_with_whole_and_split_backward() {
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
        assert!(ours.weight.val().grad(&gradients).is_none(), "the gradient of the table must be deferred");
        let mut sum = Sum::new(GradientsParams::new(), None);
        deferred.into_iter().for_each(|deferred| deferred.add_to(&mut sum));
        assert_eq!(bits(sum.gradients.remove::<2>(id).unwrap()), bits(expected));
    }

    #[test]
    fn embedding_sums_a_frequent_index_exactly_in_half_precision() {
        let device = Device::flex();
        let table = Tensor::<2>::zeros([2, 1], &device).cast(FloatDType::BF16);
        let layer = Embedding { weight: Param::from_tensor(table.autodiff().require_grad()) };
        let indices = Tensor::<2, Int>::ones([8, 125], &device).autodiff();
        let gradients = layer.forward(indices).sum().backward();
        let found = layer.weight.val().grad(&gradients).unwrap();
        // Adding 1000 ones one by one in bf16 would stop at 256, because 256 + 1 rounds to 256.
        assert_eq!(found.into_data().iter::<f32>().collect::<Vec<_>>(), [0.0, 1000.0]);
    }

    #[test]
    fn burns_gradient_checkpointing_disables_split_backward() {
        let device = Device::flex().autodiff().gradient_checkpointing();
        let layer = Linear::from(LinearConfig::new(5, 3).init(&device));
        let root = layer.forward(Tensor::<2>::ones([2, 5], &device).require_grad()).sum();
        let (gradients, deferred) = collect(std::iter::empty().collect(), || root.backward());
        assert!(deferred.is_empty() && layer.weight.val().grad(&gradients).is_some());
    }

    #[test]
    fn exempt_and_frozen_weights_are_not_deferred() {
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
