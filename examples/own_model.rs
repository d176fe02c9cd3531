//! Trains a user-defined model, which tells the points of two spirals apart, with its accuracy as a metric. Run it with
//! `--config examples/own_model.toml --report page.html --checkpoint kept`, and then with `--resume kept`.

use std::process::ExitCode;

use anyhow::Result;
use burn::module::Module;
use burn::nn::LinearConfig;
use burn::tensor::{Device, Int, Tensor, TensorData, activation::relu};
use stageline::nn::{Linear, cross_entropy};
use stageline::{Batch, CountingAllocator, LossStage, Row, Stage, Weight};
use stageline_train::{Data, NoFlags, Program};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new(); // it counts memory for estimates and the log

/// A linear layer. If its input and output widths are equal, it has a ReLU and a residual connection.
#[derive(Module, Debug)]
struct Layer {
    linear: Linear,
}

impl Stage for Layer {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        let output = self.linear.forward(input.clone());
        if output.dims() == input.dims() { input + relu(output) } else { output }
    }
}

impl LossStage for Layer {
    type Target = Tensor<1, Int>;
    const METRICS: &'static [&'static str] = &["accuracy"];

    fn loss(&self, logits: Tensor<2>, class: Tensor<1, Int>) -> Tensor<1> {
        cross_entropy(logits, class)
    }

    fn weight(&self, class: &Tensor<1, Int>) -> Weight {
        class.dims()[0].into()
    }

    fn metrics(&self, logits: Tensor<2>, class: Tensor<1, Int>) -> Tensor<1> {
        logits.argmax(1).squeeze_dim::<1>(1).equal(class).float().sum()
    }
}

/// The training data: points on two spirals. A point's target is the index of its spiral, 0 or 1.
struct Spirals;

impl Data for Spirals {
    type Input = Tensor<2>;
    type Target = Tensor<1, Int>;

    fn batch(&self, step: usize, samples: usize) -> Result<Batch<Tensor<2>, Tensor<1, Int>>> {
        let (cpu, ids) = (Device::flex(), step * samples..(step + 1) * samples);
        let point = |id: usize| {
            let (angle, sign) = (7.0 * (id as f64 * 0.618_034).fract() as f32, 1.0 - 2.0 * (id % 2) as f32);
            [sign * angle * angle.cos(), sign * angle * angle.sin()]
        };
        let classes = TensorData::new(ids.clone().map(|id| (id % 2) as i32).collect(), [samples]);
        let points = Tensor::from_data(TensorData::new(ids.flat_map(point).collect(), [samples, 2]), &cpu);
        Ok(Batch::new(points, Tensor::from_data(classes, &cpu)))
    }

    fn validation(&self, samples: usize) -> Result<Vec<Batch<Tensor<2>, Tensor<1, Int>>>> {
        // No training run has this many steps, so training never uses these points.
        (1 << 32..).take(1024_usize.div_ceil(samples)).map(|step| self.batch(step, samples)).collect()
    }
}

fn main() -> ExitCode {
    let layer = |from, to, device: &Device| Layer { linear: LinearConfig::new(from, to).init(device).into() };
    let row = Row::new(move |d| layer(2, 64, d), 4, move |_, d| layer(64, 64, d), move |d| layer(64, 2, d));
    Program::<NoFlags>::new().main(|run| {
        let row = row.seed(run.seed());
        run.train(&row, Spirals).map(drop)
    })
}
