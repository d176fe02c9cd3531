//! The program of the README, which also runs.

use burn::tensor::{Device, Int, Tensor};
use burn::{module::Module, nn::LinearConfig, optim::AdamWConfig};
use stageline::{Batch, LossStage, Row, Stage, StageConfig, Weight, nn::Linear};

#[derive(Module, Debug)]
struct Layer { linear: Linear }

impl Stage for Layer {
    type Input = Tensor<2>;
    type Output = Tensor<2>;
    fn forward(&self, input: Tensor<2>) -> Tensor<2> { self.linear.forward(input).tanh() }
}
impl LossStage for Layer {
    type Target = Tensor<2>;
    // The sum of the squared errors of a micro-batch, never their mean; and the number of its targets.
    fn loss(&self, output: Tensor<2>, target: Tensor<2>) -> Tensor<1> { (output - target).square().sum() }
    fn weight(&self, target: &Tensor<2>) -> Weight { target.dims()[0].into() }
}

fn main() -> anyhow::Result<()> {
    let cpu = Device::flex(); // burn's device for CPUs; three stages share its cores
    let layer = |from, to, device: &Device| Layer { linear: LinearConfig::new(from, to).init(device).into() };
    // The first layer, 6 blocks (`_` is the index of a block), and the last layer.
    let row = Row::new(move |d| layer(1, 32, d), 6, move |_, d| layer(32, 32, d), move |d| layer(32, 1, d));
    // Three stages of about equal FLOPs and parameters. Layers that report no FLOPs are timed by `row.measure(input, &cpu)`.
    let cut = row.count(Tensor::zeros([1, 1], &cpu)).cut(3)?;
    println!("the layers with which the stages begin: {cut}");
    let configs = || (0..3).map(|_| StageConfig::new(cpu.clone(), AdamWConfig::new().init(), 1e-2)); // learning rate 0.01
    // 1F1B, unless `.schedule(…)` is called.
    let mut pipeline = row.pipeline(&cut, configs())?.micro_batches(8).build()?;
    let x = Tensor::<1, Int>::arange(-32..32, &cpu).float().reshape([64, 1]) / 32;
    for step in 0..=200 {
        let report = pipeline.step(Batch::new(x.clone(), x.clone().square()))?;
        println!("step {step}: loss {:.5}, bubble {:.0}%", report.loss, 100.0 * report.bubble());
    }
    println!("the largest output is {:.2}", pipeline.infer(x)?.max().into_scalar::<f32>());
    Ok(())
}

#[test]
fn the_program_of_the_readme_runs() {
    main().unwrap();
}
