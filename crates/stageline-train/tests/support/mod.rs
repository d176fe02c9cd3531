//! A small model for this crate's tests, which the unit tests and the tests of whole trainings share.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn::module::Module;
use burn::nn::LinearConfig;
use burn::tensor::{Device, Tensor};
use stageline::nn::Linear;
use stageline::{LossStage, Row, Stage, Weight};

/// A linear layer with two inputs and two outputs that counts its forwards. Its target is a mask of zeros and ones. The
/// loss is the masked sum of the squared outputs, and the loss weight is the sum of the mask.
#[derive(Module, Debug)]
pub struct Layer {
    linear: Linear,
    #[module(skip)]
    forwards: Arc<AtomicUsize>,
}

impl Layer {
    pub fn new(device: &Device) -> Self {
        Self { linear: LinearConfig::new(2, 2).init(device).into(), forwards: Arc::default() }
    }
}

impl Stage for Layer {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        self.forwards.fetch_add(1, Ordering::Relaxed);
        self.linear.forward(input)
    }
}

impl LossStage for Layer {
    type Target = Tensor<2>;

    fn loss(&self, output: Tensor<2>, mask: Tensor<2>) -> Tensor<1> {
        (output.clone() * output * mask).sum()
    }

    fn weight(&self, mask: &Tensor<2>) -> Weight {
        mask.clone().sum().into_scalar::<f64>().into()
    }
}

pub fn row() -> Row<Layer, Layer, Layer> {
    counted_row(&Arc::default())
}

/// Returns a model of four linear layers. Each forward of a layer adds 1 to the shared counter `forwards`.
pub fn counted_row(forwards: &Arc<AtomicUsize>) -> Row<Layer, Layer, Layer> {
    let forwards = Arc::clone(forwards);
    let layer = move |device: &Device| Layer { forwards: Arc::clone(&forwards), ..Layer::new(device) };
    let block = layer.clone();
    Row::new(layer.clone(), 2, move |_, device| block(device), layer)
}
