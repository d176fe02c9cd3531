//! The whole program of the guide (`docs/guide.md`).

#![allow(dead_code)]

use std::process::ExitCode;

use burn::module::Module;
use burn::nn::LinearConfig;
use burn::tensor::{Device, Tensor, TensorData};
use stageline::nn::Linear;
use stageline::{Batch, LossStage, Row, Stage, Weight};
use stageline_train::{Data, Program, Run};

/// Learns a sine.
#[derive(clap::Parser)]
struct Flags {
    /// Number of values between two layers
    #[arg(long, default_value_t = 64)]
    width: usize,
}

#[derive(Module, Debug)]
struct Layer { linear: Linear }

impl Stage for Layer {
    type Input = Tensor<2>;
    type Output = Tensor<2>;
    fn forward(&self, input: Tensor<2>) -> Tensor<2> { self.linear.forward(input).tanh() }
}
impl LossStage for Layer {
    type Target = Tensor<2>;
    fn loss(&self, output: Tensor<2>, target: Tensor<2>) -> Tensor<1> { (output - target).square().sum() }
    fn weight(&self, target: &Tensor<2>) -> Weight { target.dims()[0].into() }
}

struct Sine;

impl Data for Sine {
    type Input = Tensor<2>;                                        // the input of the first layer
    type Target = Tensor<2>;                                       // the target of the loss

    fn batch(&self, step: usize, samples: usize) -> anyhow::Result<Batch<Tensor<2>, Tensor<2>>> {
        let (cpu, samples_of_step) = (Device::flex(), step * samples..(step + 1) * samples);
        let angles: Vec<f32> = samples_of_step.map(|sample| 6.0 * (sample as f32 * 0.618_034).fract()).collect();
        let sines: Vec<f32> = angles.iter().map(|angle| angle.sin()).collect();
        let (angles, sines) = (TensorData::new(angles, [samples, 1]), TensorData::new(sines, [samples, 1]));
        Ok(Batch::new(Tensor::from_data(angles, &cpu), Tensor::from_data(sines, &cpu)))
    }

    fn validation(&self, samples: usize) -> anyhow::Result<Vec<Batch<Tensor<2>, Tensor<2>>>> {
        Ok(vec![self.batch(10_000, samples)?])                     // a step after those of the training
    }
}

fn main() -> ExitCode {
    Program::<Flags>::new().default_value("steps", "1000").default_value("learning_rate", "1e-3").main(train)
}

fn train(run: Run<Flags>) -> anyhow::Result<()> {
    let width = run.flags.width;
    let layer = |from, to, device: &Device| Layer { linear: LinearConfig::new(from, to).init(device).into() };
    let row = Row::new(move |d| layer(1, width, d), 4, move |_, d| layer(width, width, d), move |d| layer(width, 1, d));
    let row = row.seed(run.seed());
    let Some(mut trained) = run.train(&row, Sine)? else { return Ok(()) };
    println!("held-out samples: {:?}", trained.validation);
    let angles = Tensor::<2>::from_data([[0.5_f32], [1.5]], &Device::flex());
    println!("sines of 0.5 and 1.5: {}", trained.pipeline.infer(angles)?);
    Ok(())
}
