//! The example's model on made-up text, to be timed.

use burn::optim::AdamWConfig;
use burn::tensor::{Device, Int, Tensor, TensorData};
use stageline::schedule::{OneFOneB, Schedule};
use stageline::{Batch, Pipeline, StageConfig};

use crate::cut::{self, Bytes};
use crate::model::{Layers, Shape};

pub const LEARNING_RATE: f64 = 3e-4;

/// The shape of the batches.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub shape: Shape,
    pub micro_batches: usize,
    pub micro_batch_size: usize,
}

impl Load {
    /// Bytes and their successors, `[micro-batches x micro-batch size, context]` each.
    pub fn text(&self) -> (Bytes, Bytes) {
        let (rows, columns) = (self.micro_batches * self.micro_batch_size, self.shape.context);
        let tensor = |shift: usize| {
            let bytes: Vec<_> =
                (0..rows * columns).map(|at| (((at + shift) * 2_654_435_761) >> 7) as i32 & 255).collect();
            Tensor::<2, Int>::from_data(TensorData::new(bytes, [rows, columns]), &Device::flex())
        };
        (tensor(0), tensor(1))
    }

    /// The same as a batch.
    pub fn batch(&self) -> Batch<Bytes, Bytes> {
        let (inputs, targets) = self.text();
        Batch::new(inputs, targets)
    }

    pub fn layers(&self) -> Layers {
        Layers::init(self.shape, 0, &Device::flex().autodiff())
    }

    /// The model cut into `stages` stages, one core each.
    pub fn pipeline(&self, stages: usize) -> Pipeline<Bytes, Bytes> {
        self.scheduled(stages, &OneFOneB)
    }

    /// The same in another schedule.
    pub fn scheduled(&self, stages: usize, schedule: &'static (dyn Schedule + Sync)) -> Pipeline<Bytes, Bytes> {
        self.on(&vec![Device::flex(); stages], schedule)
    }

    /// A stage on each of these devices.
    pub fn on(&self, devices: &[Device], schedule: &'static (dyn Schedule + Sync)) -> Pipeline<Bytes, Bytes> {
        let config = |device: &Device| StageConfig::new(device.clone(), AdamWConfig::new().init(), LEARNING_RATE);
        let cuts = cut::cut(self.shape, devices.len()).expect("as many layers as stages");
        let builder = cut::split(self.layers(), &cuts, devices.iter().map(config).collect());
        builder
            .schedule(schedule)
            .micro_batches(self.micro_batches)
            .cores_per_stage(1)
            .build()
            .expect("a plan that can run")
    }
}
