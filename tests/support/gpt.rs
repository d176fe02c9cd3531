//! The example's GPT on made-up text, for benches.

use burn::optim::AdamWConfig;
use burn::tensor::{Device, Int, Tensor, TensorData};
use stageline::schedule::{OneFOneB, Schedule};
use stageline::{Batch, Pipeline, StageConfig};

use crate::model::{Bytes, Logits, Shape, costs, gpt};

/// The learning rate of every stage.
pub const LEARNING_RATE: f64 = 3e-4;

/// The shape of the model and of its batches.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub shape: Shape,
    pub micro_batches: usize,
    pub micro_batch_size: usize,
}

impl Load {
    /// Returns the bytes of a batch and the next byte of each, both `[micro-batches x micro-batch size, context]`.
    pub fn text(&self) -> (Bytes, Bytes) {
        let (rows, columns) = (self.micro_batches * self.micro_batch_size, self.shape.context);
        let tensor = |shift: usize| {
            let bytes: Vec<_> =
                (0..rows * columns).map(|at| (((at + shift) * 2_654_435_761) >> 7) as i32 & 255).collect();
            Tensor::<2, Int>::from_data(TensorData::new(bytes, [rows, columns]), &Device::flex())
        };
        (tensor(0), tensor(1))
    }

    /// Returns the bytes as inputs and their next bytes as targets.
    pub fn batch(&self) -> Batch<Bytes, Bytes> {
        let (inputs, targets) = self.text();
        Batch::new(inputs, targets)
    }

    /// Builds a 1F1B pipeline of the model cut into `stages` stages of one core each.
    pub fn pipeline(&self, stages: usize) -> Pipeline<Bytes, Logits, Bytes> {
        self.scheduled(stages, &OneFOneB)
    }

    /// Builds a pipeline of `stages` stages of one core each, in this schedule.
    pub fn scheduled(&self, stages: usize, schedule: &'static (dyn Schedule + Sync)) -> Pipeline<Bytes, Logits, Bytes> {
        self.on(&vec![Device::flex(); stages], schedule)
    }

    /// Builds a pipeline with one stage on each of these devices.
    pub fn on(&self, devices: &[Device], schedule: &'static (dyn Schedule + Sync)) -> Pipeline<Bytes, Logits, Bytes> {
        let config = |device: &Device| StageConfig::new(device.clone(), AdamWConfig::new().init(), LEARNING_RATE);
        let cut = costs(self.shape).cut(devices.len()).expect("as many layers as stages");
        let builder = gpt(self.shape, 0).pipeline(&cut, devices.iter().map(config)).expect("the cut of this model");
        builder
            .schedule(schedule)
            .micro_batches(self.micro_batches)
            .cores_per_stage(1)
            .build()
            .expect("a plan that can run")
    }
}
