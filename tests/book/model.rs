//! The model of the code listings in `docs/book`: a line `y = w x + b` as first layer, block and last layer, with a
//! squared error as its loss.

use burn::module::Module;
use burn::nn::{Initializer, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::{Device, Tensor, TensorData};
use stageline::nn::Linear;
use stageline::{LossStage, PipelineBuilder, Row, Stage, StageConfig, Weight};

// ANCHOR: model
/// A linear layer `y = w x + b` that starts as the identity. Input and output are `[rows, 1]`.
#[derive(Module, Debug)]
pub struct Line {
    linear: Linear,
}

impl Stage for Line {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        self.linear.forward(input)
    }
}

impl LossStage for Line {
    /// The targets of the model: the wanted outputs `[rows, 1]`, and a mask `[rows, 1]`. Rows with mask 0 do not count
    /// in the loss.
    type Target = (Tensor<2>, Tensor<2>);

    /// Returns the loss of a micro-batch: the sum, not the mean, of the squared errors of the unmasked rows.
    fn loss(&self, output: Tensor<2>, (wanted, mask): Self::Target) -> Tensor<1> {
        ((output - wanted) * mask).square().sum()
    }

    /// Returns the loss weight of a micro-batch: its number of rows with mask 1.
    fn weight(&self, (_, mask): &Self::Target) -> Weight {
        mask.clone().sum().into_scalar::<f64>().into()
    }
}

impl Line {
    pub fn new() -> Self {
        line(&Device::flex().autodiff())
    }
}

/// Returns the builder of a pipeline of two stages for the listings in `docs/book`. The model applies the layer
/// [`Line`] three times, each time with its own parameters. It is trained by gradient descent with the learning rate
/// 0.01.
pub fn pipeline() -> PipelineBuilder<Tensor<2>, Tensor<2>, (Tensor<2>, Tensor<2>)> {
    let row = Row::new(line, 1, |_, device| line(device), line);
    let stage = || StageConfig::new(Device::flex(), SgdConfig::new().init(), 0.01);
    row.pipeline(&"0,2".parse().expect("a cut"), [stage(), stage()]).expect("two stages of three layers")
}

fn line(device: &Device) -> Line {
    let mut linear = LinearConfig::new(1, 1).with_initializer(Initializer::Ones).init(device);
    linear.bias = Some(Initializer::Zeros.init([1], device));
    Line { linear: linear.into() }
}

/// Returns the given numbers as a tensor with one column, `[rows, 1]`.
pub fn column<const ROWS: usize>(numbers: [f32; ROWS]) -> Tensor<2> {
    Tensor::from_data(TensorData::new(numbers.to_vec(), [ROWS, 1]), &Device::flex())
}
// ANCHOR_END: model
