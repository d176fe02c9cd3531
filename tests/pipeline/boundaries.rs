//! Tests of stage boundaries: payloads of tensors of any rank and kind, in tuples, structs, `Vec`s and `Option`s, and
//! the devices and threads of stages.

use std::sync::Arc;
use std::thread;

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{GradientsAccumulator, GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::{Bool, Int, Tensor};
use parking_lot::Mutex;
use stageline::{Batch, LossStage, Pipeline, Stage, StageConfig, Weight, payload, seeded};

use crate::mlp::{Layer, Mlp, bits, device};

/// A payload for tests of stage boundaries. It has float tensors of one, two and three dimensions, of which one is
/// never used, and an integer and a bool tensor.
#[derive(Clone, Debug)]
struct Hidden {
    states: Tensor<2>,
    skip: Option<Tensor<3>>,
    scales: Vec<Tensor<1>>,
    unused: [Tensor<2>; 1],
    classes: Tensor<1, Int>,
    kept: Tensor<1, Bool>,
}

payload!(Hidden { states, skip, scales, unused, classes, kept });

#[derive(Module, Debug)]
struct Encoder {
    states: Linear,
    skip: Linear,
}

#[derive(Module, Debug)]
struct Middle {
    linear: Linear,
}

#[derive(Module, Debug)]
struct Classifier {
    linear: Linear,
}

impl Stage for Encoder {
    type Input = (Tensor<2>, Tensor<1, Int>);
    type Output = Hidden;

    fn forward(&self, (input, classes): Self::Input) -> Hidden {
        let states = self.states.forward(input.clone()).tanh();
        let skip = self.skip.forward(input.clone()).tanh();
        let scale = states.clone().mean_dim(0).flatten::<1>(0, 1);
        Hidden {
            kept: states.clone().sum_dim(1).flatten::<1>(0, 1).greater_elem(-10.0),
            unused: [states.clone() * 3.0],
            scales: vec![scale.clone(), scale * 2.0],
            skip: Some(skip.unsqueeze_dim(1)),
            states,
            classes,
        }
    }
}

impl Stage for Middle {
    type Input = Hidden;
    type Output = Hidden;

    fn forward(&self, hidden: Hidden) -> Hidden {
        let states = self.linear.forward(hidden.states).tanh() * hidden.scales[0].clone().unsqueeze();
        Hidden { states, ..hidden }
    }
}

impl Stage for Classifier {
    type Input = Hidden;
    type Output = (Tensor<2>, Tensor<1, Int>, Tensor<1, Bool>);

    fn forward(&self, hidden: Hidden) -> Self::Output {
        let states = hidden.states + hidden.skip.expect("the encoder sets it").squeeze_dim(1);
        let output = self.linear.forward(states) * hidden.scales[1].clone().unsqueeze();
        (output, hidden.classes, hidden.kept)
    }
}

impl LossStage for Classifier {
    type Target = Tensor<2>;

    fn loss(&self, (output, classes, kept): Self::Output, target: Tensor<2>) -> Tensor<1> {
        let wanted = target * classes.float().unsqueeze_dim(1);
        let error = (output - wanted) * kept.float().unsqueeze_dim(1);
        (error.clone() * error).sum()
    }

    fn weight(&self, target: &Tensor<2>) -> Weight {
        target.dims()[0].into()
    }
}

const WIDTH: usize = 6;

fn linear(seed: u64) -> Linear {
    seeded(&device(), seed, || LinearConfig::new(WIDTH, WIDTH).init(&device().autodiff()))
}

fn model() -> (Encoder, Middle, Classifier) {
    (Encoder { states: linear(1), skip: linear(2) }, Middle { linear: linear(3) }, Classifier { linear: linear(4) })
}

fn batch(rows: usize) -> (Tensor<2>, Tensor<1, Int>, Tensor<2>) {
    let (input, (target, _)) = Mlp::batch(rows, WIDTH, false, 5);
    let classes = Tensor::<1, Int>::arange(0..rows as i64, &device()) % 3;
    (input, classes, target)
}

#[test]
fn every_kind_of_leaf_gives_the_bits_of_the_uncut_model() {
    let (rows, micro_batches) = (8, 4);
    let (input, classes, target) = batch(rows);

    let mut plain = model();
    let mut sum = GradientsAccumulator::new();
    for piece in 0..micro_batches {
        let rows = piece * 2..piece * 2 + 2;
        let classes = classes.clone().slice_dim(0, rows.clone()).autodiff();
        let part = |tensor: &Tensor<2>| tensor.clone().slice_dim(0, rows.clone()).autodiff();
        let hidden = plain.1.forward(plain.0.forward((part(&input), classes)));
        let loss = plain.2.loss_of(hidden, part(&target)) / 8.0;
        sum.accumulate(&plain, GradientsParams::from_grads(loss.backward(), &plain));
    }
    let mut optimizer: ModuleOptimizer = SgdConfig::new().init();
    plain = optimizer.step(0.1, plain, sum.grads());

    let (encoder, middle, classifier) = model();
    let config = StageConfig::new(device(), SgdConfig::new().init(), 0.1);
    let chain = Pipeline::builder().stage(encoder, config.clone()).stage(middle, config.clone());
    let mut pipeline = chain.loss(classifier, config).micro_batches(micro_batches).build().unwrap();
    pipeline.step(Batch::new((input, classes), target)).unwrap();
    let mut modules = pipeline.into_modules();
    let cut = (
        modules.take::<Encoder>(0).unwrap(),
        modules.take::<Middle>(1).unwrap(),
        modules.take::<Classifier>(2).unwrap(),
    );
    assert_ne!(bits(&cut), bits(&model()));
    assert!(bits(&cut) == bits(&plain), "other bits than the uncut model");
}

/// Tests that a frozen stage passes gradients to the stage before it and keeps its parameters. A frozen first stage
/// needs no gradient at all.
#[test]
fn frozen_stages_keep_their_bits_and_the_others_train() {
    for frozen in 0..3 {
        let (encoder, middle, classifier) = model();
        let freeze = |stage: usize| stage == frozen;
        let encoder = if freeze(0) { encoder.no_grad() } else { encoder };
        let middle = if freeze(1) { middle.no_grad() } else { middle };
        let classifier = if freeze(2) { classifier.no_grad() } else { classifier };
        let before = [bits(&encoder), bits(&middle), bits(&classifier)];
        let config = StageConfig::new(device(), SgdConfig::new().init(), 0.1);
        let chain = Pipeline::builder().stage(encoder, config.clone()).stage(middle, config.clone());
        let mut pipeline = chain.loss(classifier, config).micro_batches(2).build().unwrap();
        let (input, classes, target) = batch(4);
        pipeline.step(Batch::new((input, classes), target)).unwrap();
        let mut modules = pipeline.into_modules();
        let after = [
            bits(&modules.take::<Encoder>(0).unwrap()),
            bits(&modules.take::<Middle>(1).unwrap()),
            bits(&modules.take::<Classifier>(2).unwrap()),
        ];
        for stage in 0..3 {
            assert_eq!(before[stage] == after[stage], stage == frozen, "stage {stage}, frozen {frozen}");
        }
    }
}

/// Tests that a module which was initialised on a device without autodiff can be trained. The pipeline moves the module
/// to a device with autodiff.
#[test]
fn modules_of_a_device_without_autodiff_train() {
    let linear = |seed| seeded(&device(), seed, || LinearConfig::new(4, 4).init(&device()).into());
    let layers = || vec![Layer { linear: linear(1) }, Layer { linear: linear(2) }];
    let config = StageConfig::new(device(), SgdConfig::new().init(), 0.1);
    let model = Mlp { layers: layers(), error: crate::mlp::Error { linear: linear(3) } };
    let mut pipeline = model.split(3, &config).micro_batches(2).build().unwrap();
    let (input, target) = Mlp::batch(4, 4, false, 1);
    let first = pipeline.step(Batch::new(input.clone(), target.clone())).unwrap().loss;
    assert!(pipeline.step(Batch::new(input, target)).unwrap().loss < first);
}

/// Tests that a module on a device with burn's gradient checkpointing trains: `build` switches the checkpointing off,
/// because it does not work across stage boundaries.
#[test]
fn modules_of_a_device_with_gradient_checkpointing_train() {
    let device = device().autodiff().gradient_checkpointing();
    let linear = |seed| seeded(&device, seed, || LinearConfig::new(4, 4).init(&device).into());
    let layers = vec![Layer { linear: linear(1) }, Layer { linear: linear(2) }];
    let model = Mlp { layers, error: crate::mlp::Error { linear: linear(3) } };
    let config = StageConfig::new(device.clone(), SgdConfig::new().init(), 0.1);
    let mut pipeline = model.split(3, &config).micro_batches(2).build().unwrap();
    let (input, target) = Mlp::batch(4, 4, false, 1);
    let first = pipeline.step(Batch::new(input.clone(), target.clone())).unwrap().loss;
    assert!(pipeline.step(Batch::new(input, target)).unwrap().loss < first);
}

/// A stage for tests that records the name of the thread on which it runs, and the thread's number of cores.
#[derive(Module, Debug)]
struct Witness {
    layer: Layer,
    #[module(skip)]
    seen: Arc<Mutex<Vec<(String, usize)>>>,
}

impl Stage for Witness {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        let name = thread::current().name().unwrap_or_default().to_owned();
        self.seen.lock().push((name, rayon::current_num_threads()));
        self.layer.forward(input)
    }
}

#[test]
fn a_stage_runs_on_its_own_named_thread_within_its_core_budget() {
    for cores in [1, 3] {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let Mlp { layers, error } = Mlp::new(2, 4, 9);
        let config = StageConfig::new(device(), SgdConfig::new().init(), 0.1);
        let mut chain = Pipeline::builder();
        for layer in layers {
            chain = chain.stage(Witness { layer, seen: Arc::clone(&seen) }, config.clone());
        }
        let mut pipeline = chain.loss(error, config).micro_batches(2).cores_per_stage(cores).build().unwrap();
        let (input, target) = Mlp::batch(2, 4, false, 1);
        pipeline.step(Batch::new(input, target)).unwrap();
        let mut seen = std::mem::take(&mut *seen.lock());
        seen.sort();
        let at = |stage: &str| (stage.to_owned(), cores);
        assert_eq!(seen, [at("stage-0"), at("stage-0"), at("stage-1"), at("stage-1")]);
    }
}
