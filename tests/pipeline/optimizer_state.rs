//! Tests of the memory of optimizer states: states on the host change no bits and no checkpoint, for every optimizer,
//! and a training resumes with its states in the other memory.
//!
//! On the CPU both memories are the same, so these tests show that the setting itself changes nothing. States are moved
//! by the unit tests of `OptimizerState` and by the tests on a GPU.

use burn::module::ParamGroup;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{
    AdaGradConfig, AdafactorConfig, AdamConfig, AdamWConfig, AdanConfig, LambConfig, LionConfig, ModuleOptimizer,
    MuonConfig, Optimizer, RmsPropConfig, SgdConfig,
};
use burn::tensor::Tensor;
use stageline::checkpoint::Checkpoint;
use stageline::{Batch, Clip, Names, OptimizerState, PipelineBuilder, Precision, StageConfig};

use crate::mlp::{Mlp, Target, device};

const WIDTH: usize = 4;
const LAYERS: usize = 3;
const STEPS: u64 = 3;

type Builder = PipelineBuilder<Tensor<2>, Tensor<2>, Target>;

/// The type of a function that returns an optimizer. Its argument says in which memory the optimizer keeps its states.
/// With `None`, the function returns burn's own optimizer without this setting.
type Make = fn(Option<OptimizerState>) -> ModuleOptimizer;

fn made<O: Optimizer>(optimizer: O, memory: Option<OptimizerState>) -> ModuleOptimizer {
    match memory {
        Some(memory) => memory.of(optimizer).into(),
        None => optimizer.into(),
    }
}

fn adamw(memory: Option<OptimizerState>) -> ModuleOptimizer {
    made(AdamWConfig::new().build(), memory)
}

/// Returns an optimizer: Muon for the weights, and AdamW for the biases, because Muon takes matrices only.
fn muon(memory: Option<OptimizerState>) -> ModuleOptimizer {
    let (muon, adamw) = (made(MuonConfig::new().build(), memory), AdamWConfig::new().build());
    let biases = ParamGroup::from_any_predicates(vec!["bias"]);
    match memory {
        Some(memory) => muon.with_group(biases, memory.of(adamw), None),
        None => muon.with_group(biases, adamw, None),
    }
}

const OPTIMIZERS: [(&str, Make); 12] = [
    ("AdamW", adamw),
    ("AMSGrad", |memory| made(AdamWConfig::new().with_amsgrad(true).build(), memory)),
    ("Adam", |memory| made(AdamConfig::new().build(), memory)),
    ("Adan", |memory| made(AdanConfig::new().build(), memory)),
    ("Lamb", |memory| made(LambConfig::new().build(), memory)),
    ("Lion", |memory| made(LionConfig::new().build(), memory)),
    ("Muon", muon),
    ("Adafactor", |memory| made(AdafactorConfig::new().build(), memory)),
    ("AdaGrad", |memory| made(AdaGradConfig::new().build(), memory)),
    ("RMSProp", |memory| made(RmsPropConfig::new().with_centered(true).build(), memory)),
    ("SGD", |memory| made(SgdConfig::new().build(), memory)),
    ("SGD with momentum", |memory| made(SgdConfig::new().with_momentum(Some(MomentumConfig::new())).build(), memory)),
];

fn builder(seed: u64, stages: usize, optimizer: ModuleOptimizer) -> Builder {
    let model = Mlp::new(LAYERS, WIDTH, seed);
    let names = Names::new().part("", &model);
    model.split(stages, &StageConfig::new(device(), optimizer, 0.01)).micro_batches(2).names(names)
}

fn batch(step: u64) -> Batch<Tensor<2>, Target> {
    let (input, target) = Mlp::batch(12, WIDTH, true, 100 + step);
    Batch::new(input, target)
}

/// Trains a pipeline for the given steps, and returns the checkpoint after them.
fn trained(builder: Builder, steps: std::ops::Range<u64>) -> Checkpoint {
    let mut pipeline = builder.build().unwrap();
    steps.for_each(|step| drop(pipeline.step(batch(step)).unwrap()));
    pipeline.checkpoint().unwrap()
}

#[test]
fn states_on_the_host_change_no_bits_of_any_optimizer_and_resume_in_the_other_memory() {
    for (name, make) in OPTIMIZERS {
        let memories = [None, Some(OptimizerState::Device), Some(OptimizerState::Host)];
        let end = trained(builder(1, 3, make(None)), 0..2 * STEPS);
        for memory in memories {
            assert!(trained(builder(1, 3, make(memory)), 0..2 * STEPS) == end, "{name}, {memory:?}");
        }
        for (before, after) in [(memories[2], memories[1]), (memories[1], memories[2]), (memories[2], memories[0])] {
            let middle = trained(builder(1, 3, make(before)), 0..STEPS);
            assert_ne!(middle.parameters, end.parameters, "{name}");
            let resumed = builder(2, 2, make(after)).restore(middle);
            assert!(trained(resumed, STEPS..2 * STEPS) == end, "{name}, {before:?} and then {after:?}");
        }
    }
}

#[test]
fn states_on_the_host_change_no_bits_of_replicas_rounded_copies_and_clipped_steps() {
    type Change = fn(Builder) -> Builder;
    let changes: [(&str, Change); 4] = [
        ("two replicas", |builder| builder.replica([device(), device()])),
        ("no rollback", |builder| builder.rollback(false)),
        ("bf16", |builder| builder.precision(Precision::Bf16)),
        ("clipping", |builder| builder.clip(Clip::GlobalNorm(0.01))),
    ];
    for (name, change) in changes {
        let with = |memory| trained(change(builder(1, 2, adamw(memory))), 0..STEPS);
        assert!(with(Some(OptimizerState::Host)) == with(None), "{name}");
    }
}

#[test]
fn states_on_the_host_change_no_bits_of_overlapping_steps() {
    let mut pipeline = builder(1, 2, adamw(Some(OptimizerState::Host))).build().unwrap();
    assert!(pipeline.steps((0..STEPS).map(batch)).all(|report| report.is_ok()));
    assert!(pipeline.checkpoint().unwrap() == trained(builder(1, 2, adamw(None)), 0..STEPS));
}
