//! Tests of the byte-level GPT of the example `gpt`: training with every partition into stages, schedule and
//! recomputation gives the parameter hash of a training loop without Stageline.

use std::num::NonZero;

use burn::module::Module;
use burn::optim::{AdamWConfig, GradientsAccumulator, GradientsParams, ModuleOptimizer};
use burn::tensor::{Device, Int, Tensor, TensorData};
use stageline::schedule::{GPipe, Interleaved, OneFOneB, Schedule, ZbH1, ZbH2, ZbV};
use stageline::{Batch, BlockSet, LossStage, MemoryEstimate, Pipeline, Recompute, Stage, StageConfig};
use stageline_train::fingerprint;

use crate::mlp::pieces;
use crate::model::{Bytes, Gpt, Layers, Logits, Shape, costs, gpt};

const SHAPE: Shape = Shape { layers: 3, width: 32, context: 16 };
const STEPS: usize = 2;

/// The model shape and the settings of a training of the example `gpt`. The tests run it as a pipeline and as a loop
/// without Stageline.
#[derive(Clone, Copy)]
struct Training {
    shape: Shape,
    seed: u64,
    rows: usize,
    micro_batches: usize,
}

impl Training {
    const fn new(seed: u64, rows: usize, micro_batches: usize) -> Self {
        Self { shape: SHAPE, seed, rows, micro_batches }
    }

    fn row(self) -> Gpt {
        gpt(self.shape, self.seed)
    }

    fn layers(self) -> Layers {
        self.row().init(&Device::flex())
    }

    fn text(self, step: usize) -> Tensor<2, Int> {
        let Self { rows, shape: Shape { context, .. }, .. } = self;
        let bytes: Vec<i32> = (0..rows * context).map(|at| ((at * 7 + step * 31) * (at + 3) % 256) as i32).collect();
        Tensor::from_data(TensorData::new(bytes, [rows, context]), &Device::flex())
    }

    fn batches(self) -> impl Iterator<Item = Batch<Bytes, Bytes>> {
        (0..STEPS).map(move |step| Batch::new(self.text(step), self.text(step + 1)))
    }

    /// Builds a pipeline of the GPT with the given number of stages, schedule and recomputation.
    fn pipeline(
        self,
        stages: usize,
        schedule: Box<dyn Schedule>,
        recompute: Recompute,
    ) -> Pipeline<Bytes, Logits, Bytes> {
        let cut = costs(self.shape).cut(stages).unwrap();
        let config = StageConfig::new(Device::flex(), AdamWConfig::new().init(), 1e-3).recompute(recompute);
        let builder = self.row().pipeline(&cut, vec![config; stages]).unwrap();
        builder.micro_batches(self.micro_batches).schedule(schedule).build().unwrap()
    }

    /// Trains the GPT as a pipeline of `stages` stages without recomputation, and returns the hash of its parameters.
    fn cut(self, stages: usize, schedule: Box<dyn Schedule>) -> String {
        self.recomputed(stages, schedule, Recompute::Nothing)
    }

    fn recomputed(self, stages: usize, schedule: Box<dyn Schedule>, recompute: Recompute) -> String {
        self.trained(self.pipeline(stages, schedule, recompute))
    }

    /// Trains the GPT as a pipeline that makes one step after another, and returns the hash of its parameters.
    fn trained(self, mut pipeline: Pipeline<Bytes, Logits, Bytes>) -> String {
        self.batches().for_each(|batch| drop(pipeline.step(batch).unwrap()));
        fingerprint(&self.row().join(pipeline.into_modules()).unwrap()).0
    }

    /// Trains the GPT as a pipeline with overlapping steps, and returns the hash of its parameters. A step begins
    /// before all stages have finished the previous step.
    fn overlapped(self, mut pipeline: Pipeline<Bytes, Logits, Bytes>) -> String {
        pipeline.steps(self.batches()).for_each(|report| drop(report.unwrap()));
        fingerprint(&self.row().join(pipeline.into_modules()).unwrap()).0
    }

    /// Trains the GPT with gradient accumulation in a loop without Stageline, and returns the hash of its parameters.
    fn plainly(self) -> String {
        let mut model = self.layers();
        let mut optimizer: ModuleOptimizer = AdamWConfig::new().init();
        for step in 0..STEPS {
            let mut sum = GradientsAccumulator::new();
            for piece in pieces(self.rows, self.micro_batches) {
                let part = |step| self.text(step).slice_dim(0, piece.clone()).autodiff();
                let (embeddings, blocks, head) = &model;
                let hidden = blocks.iter().fold(embeddings.forward(part(step)), |hidden, block| block.forward(hidden));
                let loss = head.loss_of(hidden, part(step + 1)) / (self.rows * self.shape.context) as f64;
                sum.accumulate(&model, GradientsParams::from_grads(loss.backward(), &model));
            }
            model = optimizer.step(1e-3, model, sum.grads());
        }
        fingerprint(&model).0
    }
}

#[test]
fn the_fingerprint_does_not_depend_on_the_cut() {
    for (seed, rows, micro_batches) in [(0, 2, 1), (1, 5, 2), (9, 7, 3), (5, 11, 8)] {
        let training = Training::new(seed, rows, micro_batches);
        let plain = training.plainly();
        assert_ne!(plain, fingerprint(&training.layers()).0);
        for stages in [1, 2, 4, 5] {
            let case = format!("P={stages} M={micro_batches} rows={rows}");
            assert_eq!(training.cut(stages, Box::new(OneFOneB)), plain, "1F1B, {case}");
            assert_eq!(training.cut(stages, Box::new(GPipe)), plain, "GPipe, {case}");
            assert_eq!(training.cut(stages, Box::new(ZbH1)), plain, "ZB-H1, {case}");
            assert_eq!(training.cut(stages, Box::new(ZbH2)), plain, "ZB-H2, {case}");
        }
    }
    let training = Training::new(5, 11, 8);
    let plain = training.plainly();
    assert_eq!(training.cut(4, Box::new(ZbV)), plain, "ZB-V");
    assert_eq!(training.cut(4, Box::new(Interleaved { chunks: 2 })), plain, "interleaved");
}

#[test]
fn recomputation_gives_the_same_bits() {
    let training = Training::new(5, 11, 8);
    let plain = training.plainly();
    let two = NonZero::new(2).unwrap();
    for recompute in [
        Recompute::Selective,
        Recompute::FeedForward,
        Recompute::Blocks(1),
        Recompute::EveryNth(two),
        Recompute::Only(BlockSet::new([0]).unwrap()),
        Recompute::Segments(two),
        Recompute::SquareRoot,
        Recompute::Full,
    ] {
        let schedules: [&(dyn Schedule + Sync); 4] = [&OneFOneB, &GPipe, &ZbH1, &ZbH2];
        for (schedule, stages) in schedules.into_iter().flat_map(|schedule| [1, 2, 4].map(|stages| (schedule, stages)))
        {
            let case = format!("{recompute:?} {} P={stages}", schedule.name());
            assert_eq!(training.recomputed(stages, Box::new(schedule), recompute), plain, "{case}");
        }
        let chunks: [&(dyn Schedule + Sync); 2] = [&ZbV, &Interleaved { chunks: 2 }];
        for schedule in chunks {
            let case = format!("{recompute:?} {}", schedule.name());
            assert_eq!(training.recomputed(4, Box::new(schedule), recompute), plain, "{case}");
        }
    }
}

/// Tests a GPT with several heads, and with more positions than the attention kernel processes as one block. Training
/// gives the same bits as a loop without Stageline, also with recomputation and with overlapping steps.
#[test]
fn a_wider_and_longer_model_has_the_bits_of_a_plain_loop() {
    let shape = Shape { layers: 2, width: 192, context: 80 };
    assert_eq!(shape.heads(), 3);
    let training = Training { shape, seed: 2, rows: 5, micro_batches: 4 };
    let plain = training.plainly();
    let schedules: [(&(dyn Schedule + Sync), usize); 5] =
        [(&OneFOneB, 3), (&ZbH1, 2), (&ZbH2, 2), (&ZbV, 4), (&Interleaved { chunks: 2 }, 4)];
    for (schedule, stages) in schedules {
        let pipeline = |recompute| training.pipeline(stages, Box::new(schedule), recompute);
        let case = schedule.name();
        assert_eq!(training.trained(pipeline(Recompute::Nothing)), plain, "{case}");
        assert_eq!(training.trained(pipeline(Recompute::Full)), plain, "{case}, full recomputation");
        assert_eq!(training.overlapped(pipeline(Recompute::Nothing)), plain, "{case}, overlapping steps");
        assert_eq!(
            training.overlapped(pipeline(Recompute::Selective)),
            plain,
            "{case}, selective recomputation, overlapping steps"
        );
        let mut pipeline = pipeline(Recompute::Nothing);
        let batch = training.batches().next().unwrap();
        let total = |estimate: &MemoryEstimate| estimate.devices().into_iter().map(|(_, bytes)| bytes).sum::<u64>();
        let needs =
            total(&pipeline.estimate_memory(batch.clone()).unwrap().expect("the tests count what is allocated"));
        pipeline.recompute_to_fit(&batch, |estimate| total(estimate) < needs * 9 / 10).unwrap();
        let chosen = pipeline.recompute().to_vec();
        assert!(chosen.iter().any(|recompute| *recompute != Recompute::Nothing), "{case}: {chosen:?}");
        assert_eq!(training.trained(pipeline), plain, "{case}, {chosen:?}");
    }
}

#[test]
fn another_seed_gives_another_fingerprint() {
    let [one, two] = [1, 2].map(|seed| Training::new(seed, 2, 1).cut(1, Box::new(OneFOneB)));
    assert_ne!(one, two);
}

#[test]
fn cuts_are_balanced_and_cover_all_blocks() {
    let shape = Shape { layers: 8, width: 64, context: 64 };
    // Layer 0 is the embeddings, and layer 9 the head.
    let ranges = |stages| costs(shape).cut(stages).unwrap().ranges(10).unwrap();
    assert_eq!(ranges(1), vec![0..10; 1]);
    assert_eq!(ranges(2), [0..5, 5..10]);
    assert_eq!(ranges(10).len(), 10);
    let message = costs(shape).cut(11).unwrap_err().to_string();
    assert_eq!(message, "10 layers cannot be cut into 11 stages; ask for 1 to 10 stages");
}

#[test]
fn layers_survive_a_split_and_a_join() {
    let row = gpt(SHAPE, 3);
    let layers = row.init(&Device::flex());
    let (before, parameters) = fingerprint(&layers);
    assert_eq!(parameters, layers.num_params());
    let config = StageConfig::new(Device::flex(), AdamWConfig::new().init(), 1e-3);
    let builder = row.pipeline(&costs(SHAPE).cut(5).unwrap(), vec![config; 5]).unwrap();
    assert_eq!(fingerprint(&row.join(builder.build().unwrap().into_modules()).unwrap()).0, before);
}

#[test]
fn every_layer_is_named_with_its_size_and_flops() {
    let (embeddings, blocks, head) = gpt(SHAPE, 3).init(&Device::flex());
    let costs = costs(SHAPE);
    let found: Vec<_> = costs.layers().iter().map(|layer| (layer.name.as_str(), layer.parameters as usize)).collect();
    let [embeddings, block, head] = [embeddings.num_params(), blocks[0].num_params(), head.num_params()];
    assert_eq!(
        found,
        [("embeddings", embeddings), ("blocks.0", block), ("blocks.1", block), ("blocks.2", block), ("head", head)]
    );
    // 24 w² + 4 c w FLOPs for each byte in a block (Chowdhery et al., 2022, appendix B), and 2 x 256 w in the head.
    let (width, context) = (SHAPE.width as f64, SHAPE.context as f64);
    let block = context * (24.0 * width * width + 4.0 * context * width);
    let flops: Vec<_> = costs.layers().iter().map(|layer| layer.flops).collect();
    assert_eq!(flops, [0.0, block, block, block, context * 2.0 * 256.0 * width]);
}
