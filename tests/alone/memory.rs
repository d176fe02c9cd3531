//! What steps hold is what was estimated before the first of them.

use burn::optim::{AdamWConfig, ModuleOptimizer, SgdConfig};
use burn::tensor::{Device, Int, Tensor, TensorData};
use stageline::schedule::{GPipe, Interleaved, OneFOneB, Schedule, ZbH1, ZbH2, ZbV};
use stageline::{Batch, Pipeline, Precision, Recompute, StageConfig, WorkerMemory};

use crate::TURN;
use crate::cut::{self, Bytes};
use crate::model::{Layers, Shape};

const CONTEXT: usize = 64;

struct Configuration {
    layers: usize,
    stages: usize,
    micro_batches: usize,
    rows: usize,
    schedule: &'static (dyn Schedule + Sync),
    optimizer: fn() -> ModuleOptimizer,
    precision: Precision,
    recompute: Recompute,
}

impl Configuration {
    fn pipeline(&self) -> Pipeline<Bytes, Bytes> {
        let shape = Shape { layers: self.layers, width: 64, context: CONTEXT };
        let layers = Layers::init(shape, 3, &Device::flex().autodiff());
        let cuts = cut::cut(shape, self.stages).unwrap();
        let config = StageConfig::new(Device::flex(), (self.optimizer)(), 1e-3).recompute(self.recompute);
        let builder = cut::split(layers, &cuts, vec![config; self.stages]).precision(self.precision);
        builder.micro_batches(self.micro_batches).schedule(self.schedule).cores_per_stage(1).build().unwrap()
    }

    /// In the third step.
    fn measure(&self, pipeline: &mut Pipeline<Bytes, Bytes>) -> Vec<WorkerMemory> {
        (0..2).for_each(|step| drop(pipeline.step(self.batch(step)).unwrap()));
        pipeline.step(self.batch(2)).unwrap().recording.memory().unwrap()
    }

    fn batch(&self, step: usize) -> Batch<Bytes, Bytes> {
        let rows = self.rows * self.micro_batches;
        let text = |step: usize| -> Tensor<2, Int> {
            let bytes = (0..rows * CONTEXT).map(|at| ((at * 7 + step * 31) * (at + 3) % 256) as i32);
            Tensor::from_data(TensorData::new(bytes.collect(), [rows, CONTEXT]), &Device::flex())
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
    layers: 4,
    stages: 1,
    micro_batches: 4,
    rows: 4,
    schedule: &OneFOneB,
    optimizer: adam,
    precision: Precision::Full,
    recompute: Recompute::Nothing,
};

#[test]
fn every_worker_holds_what_was_estimated_to_a_tenth() {
    let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    for (what, configuration) in [
        ("one stage", ONE_STAGE),
        ("1f1b", Configuration { stages: 2, micro_batches: 8, ..ONE_STAGE }),
        ("gpipe", Configuration { stages: 2, micro_batches: 8, schedule: &GPipe, ..ONE_STAGE }),
        ("sgd", Configuration { stages: 3, micro_batches: 6, rows: 2, optimizer: sgd, ..ONE_STAGE }),
        ("a large optimizer", Configuration { stages: 2, micro_batches: 1, rows: 1, ..ONE_STAGE }),
        ("interleaved", Configuration { stages: 4, schedule: &Interleaved { chunks: 2 }, ..ONE_STAGE }),
        ("bf16", Configuration { stages: 2, precision: Precision::Bf16, ..ONE_STAGE }),
        ("zb-h1", Configuration { stages: 2, micro_batches: 8, schedule: &ZbH1, ..ONE_STAGE }),
        ("zb-v", Configuration { stages: 4, schedule: &ZbV, ..ONE_STAGE }),
        ("selective", Configuration { stages: 2, recompute: Recompute::Selective, ..ONE_STAGE }),
        ("full", Configuration { stages: 2, recompute: Recompute::Full, ..ONE_STAGE }),
        ("full zb-h2", Configuration { stages: 2, schedule: &ZbH2, recompute: Recompute::Full, ..ONE_STAGE }),
    ] {
        let mut pipeline = configuration.pipeline();
        let estimate = pipeline.estimate_memory(configuration.batch(0)).unwrap().unwrap();
        let measured = configuration.measure(&mut pipeline);
        for (estimated, measured) in estimate.workers().iter().zip(&measured) {
            let resident = estimated.other + estimated.parameters + estimated.optimizer;
            println!(
                "{what}: {} of {}, {resident} of {}; {estimated:?}",
                estimated.peak(),
                measured.peak,
                measured.resident
            );
            let ratio = estimated.peak() as f64 / measured.peak as f64;
            assert!((0.9..1.1).contains(&ratio), "{what}: {ratio}");
            let ratio = resident as f64 / measured.resident as f64;
            assert!((0.9..1.1).contains(&ratio), "{what}: {ratio} of what is resident");
        }
    }
}

/// Where steps overlap, a worker that is ahead holds the step before it as well, until all agree on that.
#[test]
fn overlapping_steps_hold_what_was_estimated() {
    let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    for (what, configuration) in [
        ("1f1b", Configuration { stages: 2, micro_batches: 8, ..ONE_STAGE }),
        ("zb-h2", Configuration { stages: 2, micro_batches: 8, schedule: &ZbH2, ..ONE_STAGE }),
        ("zb-v", Configuration { stages: 4, micro_batches: 8, schedule: &ZbV, ..ONE_STAGE }),
        ("a large optimizer", Configuration { stages: 2, micro_batches: 2, rows: 1, schedule: &ZbH2, ..ONE_STAGE }),
    ] {
        let mut pipeline = configuration.pipeline();
        let estimate = pipeline.estimate_memory(configuration.batch(0)).unwrap().unwrap().of_overlapping_steps();
        let batches: Vec<_> = (0..8).map(|step| configuration.batch(step)).collect();
        let steps: Vec<_> = pipeline.steps(batches).map(|report| report.unwrap().recording.memory().unwrap()).collect();
        for (worker, estimated) in estimate.workers().iter().enumerate() {
            let measured = steps[2..].iter().map(|workers| workers[worker].peak);
            println!("{what}: {} of {:?}; {estimated:?}", estimated.peak(), measured.clone().collect::<Vec<_>>());
            let ratio = estimated.peak() as f64 / measured.max().unwrap() as f64;
            assert!((0.9..1.1).contains(&ratio), "{what}: {ratio}");
        }
    }
}

/// Of eight blocks a stage only the inputs are kept.
#[test]
fn full_recomputation_holds_less_than_half() {
    let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let peaks = |recompute| {
        let eight = Configuration { layers: 16, stages: 2, rows: 8, recompute, ..ONE_STAGE };
        eight.measure(&mut eight.pipeline()).into_iter().map(|worker| worker.peak).collect::<Vec<_>>()
    };
    let (none, selective, full) = (peaks(Recompute::Nothing), peaks(Recompute::Selective), peaks(Recompute::Full));
    println!("peaks: {none:?} with nothing computed again, {selective:?} with attention, {full:?} with all");
    for ((none, selective), full) in none.into_iter().zip(selective).zip(full) {
        assert!(2 * full < none && full < selective && selective < none, "{full}, {selective}, {none}");
    }
}

/// In 1F1B, whatever M is.
#[test]
fn the_peak_does_not_grow_with_m() {
    let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let peaks = |micro_batches| {
        let configuration = Configuration { stages: 2, micro_batches, ..ONE_STAGE };
        configuration.measure(&mut configuration.pipeline())
    };
    let (few, many) = (peaks(4), peaks(32));
    for (few, many) in few.iter().zip(&many) {
        println!("{} bytes at M = 4, {} at M = 32", few.peak, many.peak);
        assert!((many.peak as f64 / few.peak as f64 - 1.0).abs() < 0.02, "{few:?} {many:?}");
    }
}

/// The least recomputation that fits, and no more.
#[test]
fn recomputation_is_found_to_fit() {
    let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let configuration = Configuration { layers: 6, stages: 2, ..ONE_STAGE };
    let mut pipeline = configuration.pipeline();
    let total =
        |estimate: &stageline::MemoryEstimate| estimate.devices().into_iter().map(|(_, bytes)| bytes).sum::<u64>();
    let mut with = |recompute| {
        pipeline.set_recompute(recompute);
        total(&pipeline.estimate_memory(configuration.batch(0)).unwrap().unwrap())
    };
    let [none, selective, one, full] =
        [Recompute::Nothing, Recompute::Selective, Recompute::Blocks(1), Recompute::Full].map(&mut with);
    assert!(full < one && one < none && selective < none, "{none} {selective} {one} {full}");
    for (limit, expected) in [(none * 2, none), (none - 1000, selective.min(none)), (full + full / 100, full)] {
        let found = pipeline.recompute_to_fit(&configuration.batch(0), |estimate| total(estimate) <= limit);
        let found = total(&found.unwrap().unwrap());
        assert!((found as f64 / expected as f64 - 1.0).abs() < 0.02, "{found} within {limit}, expected {expected}");
    }
}
