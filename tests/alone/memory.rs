//! What steps hold is what was estimated before the first of them.

use burn::optim::{AdamWConfig, ModuleOptimizer, SgdConfig};
use burn::tensor::{Device, Int, Tensor, TensorData};
use stageline::schedule::{GPipe, Interleaved, OneFOneB, Schedule};
use stageline::{Batch, Pipeline, Precision, StageConfig};

use crate::TURN;
use crate::cut::{self, Bytes};
use crate::model::{Layers, Shape};

const SHAPE: Shape = Shape { layers: 4, width: 64, context: 64 };

struct Configuration {
    stages: usize,
    micro_batches: usize,
    rows: usize,
    schedule: &'static (dyn Schedule + Sync),
    optimizer: fn() -> ModuleOptimizer,
    precision: Precision,
}

impl Configuration {
    fn pipeline(&self) -> Pipeline<Bytes, Bytes> {
        let layers = Layers::init(SHAPE, 3, &Device::flex().autodiff());
        let cuts = cut::cut(SHAPE, self.stages).unwrap();
        let config = StageConfig::new(Device::flex(), (self.optimizer)(), 1e-3);
        let builder = cut::split(layers, &cuts, vec![config; self.stages]).precision(self.precision);
        builder.micro_batches(self.micro_batches).schedule(self.schedule).cores_per_stage(1).build().unwrap()
    }

    fn batch(&self, step: usize) -> Batch<Bytes, Bytes> {
        let rows = self.rows * self.micro_batches;
        let text = |step: usize| -> Tensor<2, Int> {
            let bytes = (0..rows * SHAPE.context).map(|at| ((at * 7 + step * 31) * (at + 3) % 256) as i32);
            Tensor::from_data(TensorData::new(bytes.collect(), [rows, SHAPE.context]), &Device::flex())
        };
        Batch::new(text(step), text(step + 1))
    }
}

fn adam() -> ModuleOptimizer {
    AdamWConfig::new().init()
}

fn sgd() -> ModuleOptimizer {
    SgdConfig::new().init()
}

const ONE_STAGE: Configuration = Configuration {
    stages: 1,
    micro_batches: 4,
    rows: 4,
    schedule: &OneFOneB,
    optimizer: adam,
    precision: Precision::Full,
};

#[test]
fn every_worker_holds_what_was_estimated_to_a_twentieth() {
    let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    for (what, configuration) in [
        ("one stage", ONE_STAGE),
        ("1f1b", Configuration { stages: 2, micro_batches: 8, ..ONE_STAGE }),
        ("gpipe", Configuration { stages: 2, micro_batches: 8, schedule: &GPipe, ..ONE_STAGE }),
        ("sgd", Configuration { stages: 3, micro_batches: 6, rows: 2, optimizer: sgd, ..ONE_STAGE }),
        ("a large optimizer", Configuration { stages: 2, micro_batches: 1, rows: 1, ..ONE_STAGE }),
        ("interleaved", Configuration { stages: 4, schedule: &Interleaved { chunks: 2 }, ..ONE_STAGE }),
        ("bf16", Configuration { stages: 2, precision: Precision::Bf16, ..ONE_STAGE }),
    ] {
        let mut pipeline = configuration.pipeline();
        let estimate = pipeline.estimate_memory(configuration.batch(0)).unwrap().unwrap();
        let reports: Vec<_> = (0..3).map(|step| pipeline.step(configuration.batch(step)).unwrap()).collect();
        let measured = reports[2].recording.memory().unwrap();
        for (estimated, measured) in estimate.workers().iter().zip(&measured) {
            let resident = estimated.other + estimated.parameters + estimated.optimizer;
            println!(
                "{what}: {} of {}, {resident} of {}; {estimated:?}",
                estimated.peak(),
                measured.peak,
                measured.resident
            );
            let ratio = estimated.peak() as f64 / measured.peak as f64;
            assert!((0.95..1.05).contains(&ratio), "{what}: {ratio}");
            let ratio = resident as f64 / measured.resident as f64;
            assert!((0.95..1.05).contains(&ratio), "{what}: {ratio} of what is resident");
        }
    }
}
