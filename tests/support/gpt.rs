//! The byte-level GPT of the example `gpt` on generated text, for benches.

use burn::optim::AdamWConfig;
use burn::tensor::{Device, Int, Tensor, TensorData};
use stageline::schedule::{OneFOneB, Schedule};
use stageline::{Batch, Pipeline, PipelineBuilder, StageConfig};

use crate::model::{Bytes, Logits, Shape, costs, gpt};

/// The learning rate of every stage of the GPT in the benches.
pub const LEARNING_RATE: f64 = 3e-4;

/// The work of a bench: the shape of the GPT, the number of micro-batches in a step, and their size.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub shape: Shape,
    pub micro_batches: usize,
    pub micro_batch_size: usize,
}

impl Load {
    /// Returns generated text for a bench: the input bytes of a batch, and the byte that follows each of them. Both
    /// tensors have the shape `[micro-batches x micro-batch size, context]`.
    pub fn text(&self) -> (Bytes, Bytes) {
        let (rows, columns) = (self.micro_batches * self.micro_batch_size, self.shape.context);
        let tensor = |shift: usize| {
            let bytes: Vec<_> =
                (0..rows * columns).map(|at| (((at + shift) * 2_654_435_761) >> 7) as i32 & 255).collect();
            Tensor::<2, Int>::from_data(TensorData::new(bytes, [rows, columns]), &Device::flex())
        };
        (tensor(0), tensor(1))
    }

    /// Returns a batch of generated text, whose inputs are bytes and whose targets are the bytes that follow.
    pub fn batch(&self) -> Batch<Bytes, Bytes> {
        let (inputs, targets) = self.text();
        Batch::new(inputs, targets)
    }

    /// Builds a 1F1B pipeline of the GPT on the CPU, with `stages` stages of one core each.
    pub fn pipeline(&self, stages: usize) -> Pipeline<Bytes, Logits, Bytes> {
        self.scheduled(stages, &OneFOneB)
    }

    /// Builds a pipeline of the GPT on the CPU, with `stages` stages of one core each, under the given schedule.
    pub fn scheduled(&self, stages: usize, schedule: &'static (dyn Schedule + Sync)) -> Pipeline<Bytes, Logits, Bytes> {
        self.on(&vec![Device::flex(); stages], schedule)
    }

    /// Builds a pipeline of the GPT with one stage on each of the given devices, under the given schedule.
    pub fn on(&self, devices: &[Device], schedule: &'static (dyn Schedule + Sync)) -> Pipeline<Bytes, Logits, Bytes> {
        self.builder(devices, schedule).build().expect("a plan that can run")
    }

    /// Returns the builder of a pipeline of the GPT with one stage on each of the given devices, under the given
    /// schedule. A bench adds settings of its own.
    pub fn builder(
        &self,
        devices: &[Device],
        schedule: &'static (dyn Schedule + Sync),
    ) -> PipelineBuilder<Bytes, Logits, Bytes> {
        let config = |device: &Device| StageConfig::new(device.clone(), AdamWConfig::new().init(), LEARNING_RATE);
        let cut = costs(self.shape).cut(devices.len()).expect("as many layers as stages");
        let builder = gpt(self.shape, 0).pipeline(&cut, devices.iter().map(config)).expect("the cut of this model");
        builder.schedule(schedule).micro_batches(self.micro_batches).cores_per_stage(1)
    }
}
