//! The example's model: the same fingerprint wherever it is cut, and that of a plain loop.

use burn::module::Module;
use burn::optim::{AdamWConfig, GradientsAccumulator, GradientsParams, ModuleOptimizer};
use burn::tensor::{Device, Int, Tensor, TensorData};
use stageline::schedule::{GPipe, Interleaved, OneFOneB, Schedule, ZbH1, ZbH2, ZbV};
use stageline::{Batch, LossStage, Recompute, Stage, StageConfig};

use crate::cut;
use crate::fingerprint::fingerprint;
use crate::mlp::pieces;
use crate::model::{Block, Embeddings, Head, Layers, Shape};

const SHAPE: Shape = Shape { layers: 3, width: 32, context: 16 };
const STEPS: usize = 2;

fn text(step: usize, rows: usize) -> Tensor<2, Int> {
    let bytes: Vec<i32> = (0..rows * SHAPE.context).map(|at| ((at * 7 + step * 31) * (at + 3) % 256) as i32).collect();
    Tensor::from_data(TensorData::new(bytes, [rows, SHAPE.context]), &Device::flex())
}

fn train_cut(seed: u64, rows: usize, stages: usize, micro_batches: usize, schedule: Box<dyn Schedule>) -> String {
    train_again(seed, rows, (stages, micro_batches), schedule, Recompute::Nothing)
}

/// With some of it computed again.
fn train_again(
    seed: u64,
    rows: usize,
    (stages, micro_batches): (usize, usize),
    schedule: Box<dyn Schedule>,
    recompute: Recompute,
) -> String {
    let layers = Layers::init(SHAPE, seed, &Device::flex().autodiff());
    let cuts = cut::cut(SHAPE, stages).unwrap();
    let config = StageConfig::new(Device::flex(), AdamWConfig::new().init(), 1e-3).recompute(recompute);
    let builder = cut::split(layers, &cuts, vec![config; stages]);
    let mut pipeline = builder.micro_batches(micro_batches).schedule(schedule).build().unwrap();
    for step in 0..STEPS {
        pipeline.step(Batch::new(text(step, rows), text(step + 1, rows))).unwrap();
    }
    fingerprint(&cut::join(pipeline.into_modules()).unwrap()).0
}

/// Accumulation without the library.
fn train_plainly(seed: u64, rows: usize, micro_batches: usize) -> String {
    type Whole = (Embeddings, (Vec<Block>, Head));
    let Layers { embeddings, blocks, head } = Layers::init(SHAPE, seed, &Device::flex().autodiff());
    let mut model: Whole = (embeddings, (blocks, head));
    let mut optimizer: ModuleOptimizer = AdamWConfig::new().init();
    for step in 0..STEPS {
        let mut sum = GradientsAccumulator::new();
        for piece in pieces(rows, micro_batches) {
            let part = |step| text(step, rows).slice_dim(0, piece.clone()).autodiff();
            let (embeddings, (blocks, head)) = &model;
            let hidden = blocks.iter().fold(embeddings.forward(part(step)), |hidden, block| block.forward(hidden));
            let loss = head.loss(hidden, part(step + 1)) / (rows * SHAPE.context) as f64;
            sum.accumulate(&model, GradientsParams::from_grads(loss.backward(), &model));
        }
        model = optimizer.step(1e-3, model, sum.grads());
    }
    let (embeddings, (blocks, head)) = model;
    fingerprint(&Layers { embeddings, blocks, head }).0
}

#[test]
fn the_fingerprint_does_not_depend_on_the_cut() {
    for (seed, rows, micro_batches) in [(0, 2, 1), (1, 5, 2), (9, 7, 3), (5, 11, 8)] {
        let plain = train_plainly(seed, rows, micro_batches);
        assert_ne!(plain, fingerprint(&Layers::init(SHAPE, seed, &Device::flex().autodiff())).0);
        for stages in [1, 2, 4, 5] {
            let case = format!("P={stages} M={micro_batches} rows={rows}");
            assert_eq!(train_cut(seed, rows, stages, micro_batches, Box::new(OneFOneB)), plain, "1F1B, {case}");
            assert_eq!(train_cut(seed, rows, stages, micro_batches, Box::new(GPipe)), plain, "GPipe, {case}");
            assert_eq!(train_cut(seed, rows, stages, micro_batches, Box::new(ZbH1)), plain, "ZB-H1, {case}");
            assert_eq!(train_cut(seed, rows, stages, micro_batches, Box::new(ZbH2)), plain, "ZB-H2, {case}");
        }
    }
    let plain = train_plainly(5, 11, 8);
    assert_eq!(train_cut(5, 11, 4, 8, Box::new(ZbV)), plain, "ZB-V");
    assert_eq!(train_cut(5, 11, 4, 8, Box::new(Interleaved { chunks: 2 })), plain, "interleaved");
}

#[test]
fn what_is_computed_again_is_the_same_bits() {
    let plain = train_plainly(5, 11, 8);
    for recompute in [Recompute::Selective, Recompute::Blocks(1), Recompute::Full] {
        let schedules: [&(dyn Schedule + Sync); 4] = [&OneFOneB, &GPipe, &ZbH1, &ZbH2];
        for (schedule, stages) in schedules.into_iter().flat_map(|schedule| [1, 2, 4].map(|stages| (schedule, stages)))
        {
            let case = format!("{recompute:?} {} P={stages}", schedule.name());
            assert_eq!(train_again(5, 11, (stages, 8), Box::new(schedule), recompute), plain, "{case}");
        }
        assert_eq!(train_again(5, 11, (4, 8), Box::new(ZbV), recompute), plain, "{recompute:?} ZB-V");
    }
}

#[test]
fn the_fingerprint_shows_every_seed() {
    assert_ne!(train_cut(1, 2, 1, 1, Box::new(OneFOneB)), train_cut(2, 2, 1, 1, Box::new(OneFOneB)));
}

#[test]
fn cuts_are_balanced_and_cover_all_blocks() {
    let shape = Shape { layers: 8, width: 64, context: 64 };
    assert_eq!(cut::cut(shape, 1).unwrap(), vec![0..8; 1]);
    assert_eq!(cut::cut(shape, 2).unwrap(), [0..4, 4..8]);
    assert_eq!(cut::cut(shape, 10).unwrap().len(), 10);
    let message = cut::cut(shape, 11).unwrap_err().to_string();
    assert_eq!(message, "10 layers cannot be cut into 11 stages; ask for 1 to 10 stages");
}

#[test]
fn layers_survive_a_split_and_a_join() {
    let layers = Layers::init(SHAPE, 3, &Device::flex().autodiff());
    let (before, parameters) = fingerprint(&layers);
    let count = layers.embeddings.num_params() + layers.blocks.num_params() + layers.head.num_params();
    assert_eq!(parameters, count);
    let config = StageConfig::new(Device::flex(), AdamWConfig::new().init(), 1e-3);
    let builder = cut::split(layers, &cut::cut(SHAPE, 5).unwrap(), vec![config; 5]);
    assert_eq!(fingerprint(&cut::join(builder.build().unwrap().into_modules()).unwrap()).0, before);
}

#[test]
fn every_layer_is_named_with_its_stage_and_size() {
    let layers = Layers::init(SHAPE, 3, &Device::flex().autodiff());
    let named = cut::layers(SHAPE, &cut::cut(SHAPE, 2).unwrap());
    let sizes = [layers.embeddings.num_params(), layers.blocks[0].num_params(), layers.head.num_params()];
    let found: Vec<_> = named.iter().map(|layer| (layer.name.as_str(), layer.parameters as usize)).collect();
    let [embeddings, block, head] = sizes;
    assert_eq!(
        found,
        [("embeddings", embeddings), ("block 0", block), ("block 1", block), ("block 2", block), ("head", head)]
    );
    assert!(named.iter().map(|layer| layer.stage).is_sorted() && named[0].stage == 0 && named[4].stage == 1);
}
