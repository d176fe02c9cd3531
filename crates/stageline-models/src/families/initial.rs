//! Creates newly initialised linear layers and embedding tables, for the layers of all model families.

use burn::module::Initializer;
use burn::nn::{EmbeddingConfig, LinearConfig};
use burn::tensor::{Device, Tensor};
use stageline::nn::{Embedding, Linear};

pub fn normal(std: f64) -> Initializer {
    Initializer::Normal { mean: 0.0, std }
}

/// Creates a linear layer `[inputs, outputs]`. Its weights are normally distributed with the standard deviation
/// `deviation`. If `bias` is true, it has biases, which are 0.
pub fn linear([from, to]: [usize; 2], deviation: f64, bias: bool, device: &Device) -> Linear {
    let config = LinearConfig::new(from, to).with_bias(false).with_initializer(normal(deviation));
    let mut linear = Linear::from(config.init(device));
    linear.bias = bias.then(|| Initializer::Zeros.init([to], device));
    linear
}

/// Creates an embedding table `[vocabulary, width]` of normally distributed values with the standard deviation
/// `deviation`.
pub fn table([vocabulary, width]: [usize; 2], deviation: f64, device: &Device) -> Embedding {
    EmbeddingConfig::new(vocabulary, width).with_initializer(normal(deviation)).init(device).into()
}

/// Sets the initial values of the embedding table's row `row` to 0.
pub fn with_zero_row(mut table: Embedding, row: usize) -> Embedding {
    table.weight = table.weight.init_mapper(move |values| values.slice_fill(row..row + 1, 0.0));
    table
}

/// Reshapes activations from `[batch, length, width]` to `[batch x length, width]`.
pub fn rows(input: Tensor<3>) -> Tensor<2> {
    input.flatten(0, 1)
}
