//! Tests that an operation which a GPU's kernels do not compute is named with its layer and the reason.

use burn::module::Module;
use burn::nn::LinearConfig;
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Tensor};
use stageline::nn::{Linear, causal_attention};
use stageline::schedule::OneFOneB;
use stageline::{Batch, Pipeline, Stage, StageConfig};
use stageline_workspace::mlp::Mlp;

use crate::counters::{keep_warnings, warnings};
use crate::open;

const WIDTH: usize = 8;

/// A layer for tests with causal attention of one head, whose rows are the positions of one sample.
#[derive(Module, Debug)]
struct Attending {
    query_key_value: Linear,
    output: Linear,
}

impl Attending {
    fn new(size: usize) -> Self {
        let device = Device::flex().autodiff();
        let linear = |from, to| LinearConfig::new(from, to).init(&device).into();
        Self { query_key_value: linear(WIDTH, 3 * size), output: linear(size, WIDTH) }
    }
}

impl Stage for Attending {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        let [length, _] = input.dims();
        let input = self.query_key_value.forward(input).unsqueeze::<3>();
        let attended = causal_attention(input, 1);
        let size = attended.dims()[2];
        self.output.forward(attended.reshape([length, size]))
    }
}

/// Trains one step of a layer, attention with a head of `size` elements and a layer with the loss, all in one stage, and
/// returns the loss.
fn trained(device: &Device, size: usize) -> f64 {
    let Mlp { mut layers, error } = Mlp::new(1, WIDTH, 3);
    let config = StageConfig::new(device.clone(), AdamWConfig::new().init(), 0.01);
    // The parameters of attention must not depend on the device.
    let attending = stageline::seeded(&Device::flex().autodiff(), 5, || Attending::new(size));
    let chain = Pipeline::builder().loss((layers.pop().unwrap(), attending, error), config);
    let mut pipeline = chain.schedule(OneFOneB).micro_batches(2).build().unwrap();
    let (input, target) = Mlp::batch(32, WIDTH, false, 4);
    pipeline.step(Batch::new(input, target)).unwrap().loss
}

#[test]
fn attention_with_large_heads_is_named_with_its_layer() {
    keep_warnings();
    let device = open("gpu").remove(0);
    let largest = "the most for which this device stores none";
    trained(&device, 64);
    assert!(!warnings().contains(largest), "{}", warnings());
    let found = trained(&device, 264);
    let said = warnings();
    let expected = "causal attention in layer `1` of stage 0 stores its scores, whose memory grows with the square of the length: \
                    heads of 264 elements are larger than ";
    assert!(said.contains(expected) && said.contains(largest), "{said}");
    let expected = trained(&Device::flex(), 264);
    assert!((found - expected).abs() < 1e-4, "{found}, on the CPU {expected}");
}
