//! Creates parts of layers with their initial values, for all model families.

use burn::module::Initializer;
use burn::nn::{EmbeddingConfig, LinearConfig};
use burn::tensor::{Device, Tensor};
use stageline::nn::{Embedding, Linear};

pub fn normal(std: f64) -> Initializer {
    Initializer::Normal { mean: 0.0, std }
}

/// Creates a linear layer `[inputs, outputs]`. Its weights are normal with the standard deviation `deviation`. If
/// `bias` is true, it has biases of 0; otherwise it has none.
pub fn linear([from, to]: [usize; 2], deviation: f64, bias: bool, device: &Device) -> Linear {
    let config = LinearConfig::new(from, to).with_bias(false).with_initializer(normal(deviation));
    let mut linear = Linear::from(config.init(device));
    linear.bias = bias.then(|| Initializer::Zeros.init([to], device));
    linear
}

/// Creates an embedding table `[vocabulary, width]` with normal values of the standard deviation `deviation`.
pub fn table([vocabulary, width]: [usize; 2], deviation: f64, device: &Device) -> Embedding {
    EmbeddingConfig::new(vocabulary, width).with_initializer(normal(deviation)).init(device).into()
}

/// Returns an embedding table whose row `row` has the initial values 0.
pub fn with_zero_row(mut table: Embedding, row: usize) -> Embedding {
    table.weight = table.weight.init_mapper(move |values| values.slice_fill(row..row + 1, 0.0));
    table
}

/// Reshapes activations from `[batch, length, width]` to `[batch x length, width]`.
pub fn rows(input: Tensor<3>) -> Tensor<2> {
    input.flatten(0, 1)
}
