//! A stage that computes nothing, so that a test or bench shows only the pipeline's own cost and behaviour.

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use stageline::{LossStage, Stage, Weight};

/// A stage without parameters or tensors, with a loss of 1 and a loss weight of 1 per micro-batch.
#[derive(Module, Debug, Default)]
pub struct Empty {
    #[module(skip)]
    nothing: usize,
}

impl Stage for Empty {
    type Input = ();
    type Output = ();

    fn forward(&self, (): ()) {}
}

impl LossStage for Empty {
    type Target = ();

    fn loss(&self, (): (), (): ()) -> Tensor<1> {
        Tensor::ones([1], &Device::flex())
    }

    fn weight(&self, (): &()) -> Weight {
        1.0.into()
    }
}
