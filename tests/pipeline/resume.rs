//! Tests of checkpoints and resuming: N steps, a checkpoint, and N more steps with another partition into stages give
//! the same bits as 2N steps. Checkpoints that do not fit are rejected.

use std::collections::BTreeSet;

use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::module::{Param, ParamGroup};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamConfig, AdamWConfig, LionConfig, ModuleOptimizer, MuonConfig, RmsPropConfig, SgdConfig};
use burn::tensor::{DType, FloatDType, Tensor};
use stageline::checkpoint::{Checkpoint, Dtype};
use stageline::schedule::{EagerOneFOneB, GPipe, Interleaved, OneFOneB, Schedule};
use stageline::{
    Batch, BuildError, Difference, DynamicLossScale, LossScale, Names, Pipeline, PipelineBuilder, Precision, Stage,
    StageConfig, Update,
};

use crate::hostile::restore;
use crate::mlp::{Layer, Mlp, Noisy, Target, bits, config, device, within_a_minute};

const WIDTH: usize = 4;
const LAYERS: usize = 5;
const STEPS: usize = 3;

/// Returns the configuration of a stage with state that a checkpoint must restore: a falling learning rate, and AdamW
/// with weight decay for all parameters except biases.
fn remembering() -> StageConfig {
    let adam = |decay| AdamWConfig::new().with_weight_decay(decay);
    let group = ParamGroup::from_any_predicates(vec!["bias"]);
    let optimizer = adam(0.1).init().with_group(group, adam(0.0).build(), None);
    let learning_rate = CosineAnnealingLrSchedulerConfig::new(0.05, 2 * STEPS).init().unwrap();
    StageConfig::new(device(), optimizer, learning_rate)
}

fn names(model: &Mlp) -> Names {
    Names::new().part("", model)
}

fn batch(step: usize) -> Batch<Tensor<2>, Target> {
    let (input, target) = Mlp::batch(12, WIDTH, true, 100 + step as u64);
    Batch::new(input, target)
}

fn builder(seed: u64, stages: usize, micro_batches: usize) -> PipelineBuilder<Tensor<2>, Tensor<2>, Target> {
    let model = Mlp::new(LAYERS, WIDTH, seed);
    let names = names(&model);
    model.split(stages, &remembering()).micro_batches(micro_batches).names(names)
}

fn train(pipeline: &mut Pipeline<Tensor<2>, Tensor<2>, Target>, steps: std::ops::Range<usize>) {
    for step in steps {
        assert_eq!(pipeline.step(batch(step)).unwrap().step, step);
    }
}

/// Restores a checkpoint into a pipeline with the given number of stages, micro-batches and schedule. Trains `STEPS`
/// more steps, and returns the bits of the model.
fn resumed(
    from: &Checkpoint,
    stages: usize,
    micro_batches: usize,
    schedule: &'static (dyn Schedule + Sync),
) -> Vec<u32> {
    // The parameters are drawn from another seed, so all of them must come from the checkpoint.
    let builder = builder(2, stages, micro_batches).schedule(schedule).restore(from.clone());
    let mut pipeline = builder.build().unwrap();
    train(&mut pipeline, STEPS..2 * STEPS);
    Mlp::join(pipeline.into_modules()).bits()
}

#[test]
fn resume_on_another_cut_and_schedule_gives_the_same_bits() {
    let mut pipeline = builder(1, 4, 4).build().unwrap();
    train(&mut pipeline, 0..STEPS);
    let middle = pipeline.checkpoint().unwrap();
    train(&mut pipeline, STEPS..2 * STEPS);
    let end = pipeline.checkpoint().unwrap();
    let whole = Mlp::join(pipeline.into_modules()).bits();

    assert_eq!((middle.progress.steps, middle.progress.optimizer_steps), (3, 3));
    assert_ne!(middle.parameters, end.parameters);
    for (stages, schedule) in [
        (1, &OneFOneB as &(dyn Schedule + Sync)),
        (2, &GPipe),
        (3, &EagerOneFOneB),
        (4, &OneFOneB), // six layers do not divide evenly by four
        (4, &Interleaved { chunks: 2 }),
    ] {
        assert_eq!(resumed(&middle, stages, 4, schedule), whole, "P={stages}, {}", schedule.name());
    }
    // With another M, gradients are added in another order, but this order is the same for every partition.
    let with_two = resumed(&middle, 1, 2, &OneFOneB);
    for stages in [2, 3] {
        assert_eq!(resumed(&middle, stages, 2, &OneFOneB), with_two, "P={stages}, M=2");
    }
}

/// Tests two optimizers: Lion, and AdamW with Muon for the weights. They train with the same bits for every partition
/// into stages, also if the training resumes with another partition.
#[test]
fn lion_and_muon_give_the_same_bits_on_every_cut() {
    let lion = || LionConfig::new().init();
    let weights = || ParamGroup::from_any_predicates(vec!["weight"]);
    let muon = || AdamWConfig::new().init().with_group(weights(), MuonConfig::new().build(), None);
    for (name, optimizer) in [("Lion", &lion as &dyn Fn() -> ModuleOptimizer), ("Muon", &muon)] {
        let build = |seed: u64, stages: usize| {
            let model = Mlp::new(LAYERS, WIDTH, seed);
            let names_of_it = names(&model);
            let config = StageConfig::new(device(), optimizer(), 0.01);
            model.split(stages, &config).micro_batches(4).names(names_of_it)
        };
        let mut whole = build(1, 1).build().unwrap();
        train(&mut whole, 0..STEPS);
        let middle = whole.checkpoint().unwrap();
        train(&mut whole, STEPS..2 * STEPS);
        let end = whole.checkpoint().unwrap();
        assert_ne!(middle.parameters, end.parameters, "{name}");
        for stages in [2, 3] {
            let mut cut = build(1, stages).build().unwrap();
            train(&mut cut, 0..2 * STEPS);
            assert!(cut.checkpoint().unwrap() == end, "{name}, P = {stages}");
            let mut resumed = build(2, stages).restore(middle.clone()).build().unwrap();
            train(&mut resumed, STEPS..2 * STEPS);
            assert!(resumed.checkpoint().unwrap() == end, "{name}, resumed at P = {stages}");
        }
    }
}

#[test]
fn a_checkpoint_has_every_tensor_under_its_name_in_the_whole_model() {
    let mut pipeline = builder(1, 3, 2).build().unwrap();
    let untrained = pipeline.checkpoint().unwrap();
    assert!(untrained.optimizer.is_empty() && untrained.progress.steps == 0);
    train(&mut pipeline, 0..1);
    let checkpoint = pipeline.checkpoint().unwrap();
    let of_layer = |layer: usize| ["bias", "weight"].map(|name| format!("layers.{layer}.linear.{name}"));
    let mut expected: BTreeSet<_> = (0..LAYERS).flat_map(of_layer).collect();
    expected.extend(["bias", "weight"].map(|name| format!("error.linear.{name}")));
    assert_eq!(checkpoint.parameters.keys().cloned().collect::<BTreeSet<_>>(), expected);
    // AdamW keeps two moments and a step count of each parameter.
    for name in &expected {
        let of_it =
            |(field, _): &(&String, _)| field.strip_prefix(name.as_str()).is_some_and(|rest| rest.starts_with('/'));
        let fields: Vec<_> = checkpoint.optimizer.iter().filter(of_it).collect();
        let like_it = |tensor: &stageline::checkpoint::Tensor| tensor.shape == checkpoint.parameters[name].shape;
        assert_eq!(fields.iter().filter(|(_, tensor)| like_it(tensor)).count(), 2, "{name}: {fields:?}");
        assert!(fields.iter().any(|(_, tensor)| tensor.shape.is_empty()), "{name}: {fields:?}");
    }
    let bytes: Vec<u8> = checkpoint.parameters["error.linear.weight"].bytes.to_vec();
    let model = Mlp::join(pipeline.into_modules());
    let values = model.error.linear.weight.val().into_data();
    let values: Vec<u8> = values.iter::<f32>().flat_map(f32::to_le_bytes).collect();
    assert_eq!(bytes, values);
}

#[test]
fn resume_keeps_the_state_of_every_optimizer() {
    for config in [
        config(),
        StageConfig::new(device(), SgdConfig::new().init(), 0.1),
        StageConfig::new(device(), SgdConfig::new().with_momentum(Some(MomentumConfig::new())).init(), 0.1),
        StageConfig::new(device(), AdamConfig::new().with_amsgrad(true).init(), 0.01),
        StageConfig::new(device(), burn::optim::AdaGradConfig::new().init(), 0.01),
        StageConfig::new(device(), burn::optim::RmsPropConfig::new().init(), 0.01),
        StageConfig::new(device(), burn::optim::AdafactorConfig::new().init(), 0.01),
        StageConfig::new(device(), burn::optim::LionConfig::new().init(), 0.01),
    ] {
        let build = |seed, stages| {
            let model = Mlp::new(2, WIDTH, seed);
            let names = names(&model);
            model.split(stages, &config).micro_batches(3).names(names)
        };
        let mut pipeline = build(1, 3).build().unwrap();
        train(&mut pipeline, 0..STEPS);
        let middle = pipeline.checkpoint().unwrap();
        train(&mut pipeline, STEPS..2 * STEPS);
        let mut again = build(2, 2).restore(middle).build().unwrap();
        train(&mut again, STEPS..2 * STEPS);
        assert_eq!(again.checkpoint().unwrap(), pipeline.checkpoint().unwrap());
    }
}

#[test]
fn resume_keeps_dropout_and_running_statistics() {
    let build = |seed| {
        let Mlp { mut layers, error } = Mlp::new(2, WIDTH, seed);
        let (second, first) = (Noisy::new(layers.pop().unwrap(), 1), Noisy::new(layers.pop().unwrap(), 0));
        let chain = Pipeline::builder().stage(first, config()).stage(second, config());
        chain.loss((Vec::<Layer>::new(), error), config()).micro_batches(3)
    };
    let mut pipeline = build(1).build().unwrap();
    train(&mut pipeline, 0..STEPS);
    let middle = pipeline.checkpoint().unwrap();
    train(&mut pipeline, STEPS..2 * STEPS);
    let mut again = build(2).restore(middle.clone()).build().unwrap();
    train(&mut again, STEPS..2 * STEPS);
    let (whole, parts) = (pipeline.checkpoint().unwrap(), again.checkpoint().unwrap());
    assert_eq!(whole, parts);
    // In a pipeline without `Names`, the name of a parameter begins with its stage.
    let moving = "stage0.norm.norm.running_mean";
    assert!(whole.parameters.contains_key(moving), "{:?}", whole.parameters.keys());
    assert_ne!(whole.parameters[moving], middle.parameters[moving]);
    let outputs = [pipeline, again].map(|mut pipeline| pipeline.eval(batch(0)).unwrap().loss.to_bits());
    assert_eq!(outputs[0], outputs[1]);
}

#[test]
fn resume_keeps_a_dynamic_loss_scale() {
    let scale =
        LossScale::Dynamic(DynamicLossScale { initial: 8.0, growth_interval: 2, ..DynamicLossScale::default() });
    let build = |seed| builder(seed, 2, 2).precision(Precision::F16).loss_scale(scale);
    let mut pipeline = build(1).build().unwrap();
    train(&mut pipeline, 0..STEPS);
    let middle = pipeline.checkpoint().unwrap();
    let state = middle.progress.loss_scale.unwrap();
    assert_eq!((state.scale, state.good_steps), (16.0, 1));
    train(&mut pipeline, STEPS..2 * STEPS);
    let mut again = build(2).restore(middle).build().unwrap();
    train(&mut again, STEPS..2 * STEPS);
    assert_eq!(again.checkpoint().unwrap(), pipeline.checkpoint().unwrap());
}

#[test]
fn skipped_steps_count_as_steps_and_not_as_optimizer_steps() {
    let mut pipeline = builder(1, 2, 2).build().unwrap();
    train(&mut pipeline, 0..2);
    let (input, (wanted, mask)) = Mlp::batch(12, WIDTH, true, 1);
    let report = pipeline.step(Batch::new(input, (wanted, mask * 0.0))).unwrap();
    assert_eq!(report.update, Update::NoWeight);
    let checkpoint = pipeline.checkpoint().unwrap();
    assert_eq!((checkpoint.progress.steps, checkpoint.progress.optimizer_steps), (3, 2));
    let mut again = builder(2, 2, 2).restore(checkpoint).build().unwrap();
    assert_eq!(again.step(batch(3)).unwrap().step, 3);
    pipeline.step(batch(3)).unwrap();
    assert_eq!(again.checkpoint().unwrap(), pipeline.checkpoint().unwrap());
}

/// Restores a checkpoint that the pipeline must reject, and returns the reported differences between the checkpoint and
/// the model.
fn refused(from: Checkpoint, builder: PipelineBuilder<Tensor<2>, Tensor<2>, Target>) -> Vec<Difference> {
    match builder.restore(from).build() {
        Err(BuildError::Checkpoint(mismatch)) => mismatch.differences().to_vec(),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it was taken"),
    }
}

#[test]
fn a_checkpoint_of_another_model_is_refused_with_the_differences() {
    let mut pipeline = builder(1, 2, 2).build().unwrap();
    train(&mut pipeline, 0..1);
    let checkpoint = pipeline.checkpoint().unwrap();

    let deeper = Mlp::new(LAYERS + 1, WIDTH, 1);
    let names_of_it = names(&deeper);
    let missing = refused(checkpoint.clone(), deeper.split(2, &remembering()).names(names_of_it));
    let layer = |name: &str| Difference::NotInCheckpoint { name: format!("layers.5.linear.{name}") };
    assert_eq!(missing, [layer("bias"), layer("weight")]);

    let wider = Mlp::new(LAYERS, WIDTH + 1, 1);
    let names_of_it = names(&wider);
    let error = wider.split(2, &remembering()).names(names_of_it).restore(checkpoint.clone()).build().map(drop);
    assert_eq!(
        error.unwrap_err().to_string().lines().take(3).collect::<Vec<_>>(),
        [
            "the checkpoint is of another model; build the one that it was made of, or take another checkpoint:",
            "  error.linear.bias is F32 [5] in the model and F32 [4] in the checkpoint",
            "  error.linear.weight is F32 [5, 5] in the model and F32 [4, 4] in the checkpoint",
        ]
    );

    let mut shorter = checkpoint.clone();
    shorter.parameters.remove("error.linear.bias");
    assert!(
        refused(shorter, builder(1, 2, 2)).contains(&Difference::NotInCheckpoint { name: "error.linear.bias".into() })
    );
    let mut longer = checkpoint.clone();
    longer.parameters.insert("other".into(), checkpoint.parameters["error.linear.bias"].clone());
    assert_eq!(refused(longer, builder(1, 2, 2)), [Difference::NotInModel { name: "other".into() }]);
    let mut typed = checkpoint.clone();
    typed.parameters.get_mut("error.linear.bias").unwrap().dtype = Dtype::I32;
    assert!(matches!(refused(typed, builder(1, 2, 2))[..], [Difference::Kind { .. }]));
}

/// Tests a checkpoint of a pipeline without `Names` (parameter names that do not depend on the partition into stages).
/// It can be resumed with the same partition only, and the error message says to set `Names`.
#[test]
fn a_checkpoint_without_names_on_another_cut_points_to_names() {
    let build = |stages| Mlp::new(LAYERS, WIDTH, 1).split(stages, &remembering()).micro_batches(2);
    let mut pipeline = build(2).build().unwrap();
    train(&mut pipeline, 0..1);
    let checkpoint = pipeline.checkpoint().unwrap();
    build(2).restore(checkpoint.clone()).build().unwrap();
    let error = build(3).restore(checkpoint).build().map(drop).unwrap_err().to_string();
    assert!(error.contains("fit only the cut") && error.contains("`PipelineBuilder::names`"), "{error}");
}

#[test]
fn the_state_of_another_optimizer_is_refused() {
    let mut pipeline = builder(1, 2, 2).build().unwrap();
    train(&mut pipeline, 0..1);
    let checkpoint = pipeline.checkpoint().unwrap();
    let model = Mlp::new(LAYERS, WIDTH, 1);
    let names_of_it = names(&model);
    let momentum = SgdConfig::new().with_momentum(Some(MomentumConfig::new())).init();
    let other = model.split(2, &StageConfig::new(device(), momentum, 0.1)).names(names_of_it);
    let differences = refused(checkpoint, other);
    assert!(differences.iter().all(|difference| matches!(difference, Difference::OtherOptimizer { .. })));
    assert!(differences.len() > LAYERS, "{differences:?}");
}

#[test]
fn optimizer_states_of_another_name_type_or_shape_are_refused() {
    let build = |optimizer: ModuleOptimizer| {
        let model = Mlp::new(LAYERS, WIDTH, 1);
        let names_of_it = names(&model);
        model.split(2, &StageConfig::new(device(), optimizer, 0.01)).micro_batches(2).names(names_of_it)
    };
    let kept = |optimizer| {
        let mut pipeline = build(optimizer).build().unwrap();
        train(&mut pipeline, 0..1);
        pipeline.checkpoint().unwrap()
    };
    let adam = kept(AdamWConfig::new().init());
    let of = |name: &str| format!("error.linear.weight/{name}");
    let changed = |change: &dyn Fn(&mut Checkpoint)| {
        let mut checkpoint = adam.clone();
        change(&mut checkpoint);
        refused(checkpoint, build(AdamWConfig::new().init()))
    };
    let (moment, rank) = (of("momentum.moment_1"), of("__rank"));
    for change in [
        &(|checkpoint: &mut Checkpoint| drop(checkpoint.optimizer.remove(&moment))) as &dyn Fn(&mut Checkpoint),
        &|checkpoint| checkpoint.optimizer.get_mut(&moment).unwrap().shape = vec![1, 16],
        &|checkpoint| checkpoint.optimizer.get_mut(&moment).unwrap().dtype = Dtype::I32,
        &|checkpoint| checkpoint.optimizer.get_mut(&moment).unwrap().dtype = Dtype::F8_E4M3,
        &|checkpoint| checkpoint.optimizer.get_mut(&rank).unwrap().bytes = 99u64.to_le_bytes().to_vec().into(),
        &|checkpoint| checkpoint.optimizer.get_mut(&rank).unwrap().bytes = 1u64.to_le_bytes().to_vec().into(),
        &|checkpoint| checkpoint.optimizer.get_mut(&rank).unwrap().dtype = Dtype::F64,
        // The checkpoint has no optimizer state at all, although there were optimizer steps.
        &|checkpoint| checkpoint.optimizer.clear(),
    ] {
        let differences = changed(change);
        assert!(!differences.is_empty());
    }
    // An optimizer that keeps less or more state than the one in the checkpoint cannot resume from it.
    let plain = || SgdConfig::new().init();
    assert!(!refused(kept(plain()), build(AdamWConfig::new().init())).is_empty());
    assert!(!refused(adam.clone(), build(plain())).is_empty());
    let amsgrad = || AdamConfig::new().with_amsgrad(true).init();
    assert!(!refused(kept(AdamConfig::new().init()), build(amsgrad())).is_empty());
    build(AdamWConfig::new().init()).restore(adam).build().unwrap();
}

#[test]
fn tensors_with_bytes_missing_are_refused() {
    let mut pipeline = builder(1, 2, 2).build().unwrap();
    train(&mut pipeline, 0..1);
    let mut checkpoint = pipeline.checkpoint().unwrap();
    let (name, tensor) = checkpoint.parameters.iter_mut().next().unwrap();
    let (name, expected) = (name.clone(), tensor.bytes.len());
    tensor.bytes = tensor.bytes.slice(..expected - 4);
    let differences = refused(checkpoint, builder(1, 2, 2));
    assert_eq!(differences, [Difference::Bytes { name, found: expected - 4, expected: Some(expected) }]);
    // A tensor of the optimizer state whose number of bytes does not fit its shape is refused as well.
    let mut checkpoint = pipeline.checkpoint().unwrap();
    let (name, tensor) = checkpoint.optimizer.iter_mut().find(|(_, tensor)| tensor.bytes.len() > 8).unwrap();
    let (name, found) = (name.clone(), tensor.bytes.len());
    tensor.shape.push(usize::MAX);
    let differences = refused(checkpoint, builder(1, 2, 2));
    assert_eq!(differences, [Difference::Bytes { name, found, expected: None }]);
}

/// Tests that checkpoints with impossible optimizer states are rejected. AdamW's step counts must be between 1 and the
/// number of optimizer steps. Its second moments are means of squares, so they must not be negative.
#[test]
fn optimizer_states_with_impossible_values_are_refused() {
    let mut pipeline = builder(1, 2, 2).build().unwrap();
    train(&mut pipeline, 0..3);
    let sound = pipeline.checkpoint().unwrap();
    let changed = |field: &str, bytes: &[u8]| {
        let mut checkpoint = sound.clone();
        let name = format!("error.linear.bias/momentum.{field}");
        let tensor = checkpoint.optimizer.get_mut(&name).unwrap();
        let rest = tensor.bytes[bytes.len()..].to_vec();
        tensor.bytes = [bytes, &rest].concat().into();
        (name, checkpoint)
    };
    for (field, bytes) in [
        ("time", 0_u64.to_le_bytes().to_vec()),
        ("time", 4_u64.to_le_bytes().to_vec()),
        ("time", u64::MAX.to_le_bytes().to_vec()),
        ("moment_1", f32::NAN.to_le_bytes().to_vec()),
        ("moment_1", f32::INFINITY.to_le_bytes().to_vec()),
        ("moment_2", (-1e-9_f32).to_le_bytes().to_vec()),
    ] {
        let (of, checkpoint) = changed(field, &bytes);
        let differences = refused(checkpoint, builder(1, 2, 2));
        let is_it = |difference: &Difference| matches!(difference, Difference::Value { name, .. } if *name == of);
        assert!(differences.len() == 1 && differences.iter().all(is_it), "{field} {bytes:?}: {differences:?}");
    }
    for (field, bytes) in [("time", 1_u64.to_le_bytes().to_vec()), ("moment_1", (-1.0_f32).to_le_bytes().to_vec())] {
        builder(1, 2, 2).restore(changed(field, &bytes).1).build().unwrap();
    }
}

/// Changes the first number in one field of the optimizer state of the last layer's bias in a checkpoint. Returns the
/// changed checkpoint and the name of that field.
fn with_first_number(checkpoint: &Checkpoint, field: &str, number: f32) -> (String, Checkpoint) {
    let mut changed = checkpoint.clone();
    let name = format!("error.linear.bias/{field}");
    let tensor = changed.optimizer.get_mut(&name).unwrap();
    tensor.bytes = [&number.to_le_bytes()[..], &tensor.bytes[4..]].concat().into();
    (name, changed)
}

/// Tests that checkpoints are rejected if fields of an optimizer state contradict each other: AMSGrad keeps the largest
/// second moment, and the square of a mean is at most the mean of the squares.
#[test]
fn optimizer_states_that_contradict_each_other_are_refused() {
    let build = |optimizer: ModuleOptimizer| {
        let model = Mlp::new(LAYERS, WIDTH, 1);
        let names_of_it = names(&model);
        model.split(2, &StageConfig::new(device(), optimizer, 0.01)).micro_batches(2).names(names_of_it)
    };
    for (optimizer, larger, smaller) in [
        (AdamConfig::new().with_amsgrad(true).init(), "momentum.max_moment_2", "momentum.moment_2"),
        (RmsPropConfig::new().with_centered(true).init(), "square_avg.square_avg", "centered.grad_avg"),
    ] {
        let mut pipeline = build(optimizer.clone()).build().unwrap();
        train(&mut pipeline, 0..3);
        let sound = pipeline.checkpoint().unwrap();
        build(optimizer.clone()).restore(sound.clone()).build().unwrap();
        let (name, lower) = with_first_number(&sound, larger, 0.0);
        for (changed, number) in [(lower, "0"), (with_first_number(&sound, smaller, 1e9).1, "")] {
            let differences = refused(changed, build(optimizer.clone()));
            let is_it = |difference: &Difference| matches!(difference, Difference::Value { name: of, found, .. } if *of == name && found.starts_with(number));
            assert!(differences.len() == 1 && differences.iter().all(is_it), "{differences:?}");
        }
    }
}

/// Tests that centered RMSProp resumes where the square of a small gradient is 0 in f32, but the gradient is not.
#[test]
fn squares_that_are_zero_in_f32_are_accepted() {
    let build = || {
        let model = Mlp::new(LAYERS, WIDTH, 1);
        let names_of_it = names(&model);
        let optimizer = RmsPropConfig::new().with_centered(true).init();
        model.split(2, &StageConfig::new(device(), optimizer, 0.01)).micro_batches(2).names(names_of_it)
    };
    let mut pipeline = build().build().unwrap();
    train(&mut pipeline, 0..3);
    let (_, changed) = with_first_number(&pipeline.checkpoint().unwrap(), "square_avg.square_avg", 0.0);
    build().restore(with_first_number(&changed, "centered.grad_avg", 1e-27).1).build().unwrap();
}

/// A stage for tests with a parameter in f64.
#[derive(burn::module::Module, Debug)]
struct Scaled {
    factor: Param<Tensor<2>>,
}

impl Stage for Scaled {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        (input.cast(FloatDType::F64) * self.factor.val()).cast(FloatDType::F32)
    }
}

/// Tests that a checkpoint with a parameter in f64 is refused with the types: burn restores states of optimizers in
/// f32, with which the next step would panic.
#[test]
fn states_in_another_type_than_f32_are_refused() {
    let build = || {
        let factor = Param::from_tensor(Tensor::<2>::ones([1, WIDTH], (&device(), DType::F64)));
        let config = || StageConfig::new(device(), AdamWConfig::new().init(), 0.01);
        let error = Mlp::new(1, WIDTH, 1).error;
        Pipeline::builder()
            .stage(Scaled { factor }, config())
            .loss((Vec::<Layer>::new(), error), config())
            .micro_batches(2)
    };
    let mut pipeline = build().build().unwrap();
    train(&mut pipeline, 0..2);
    let differences = refused(pipeline.checkpoint().unwrap(), build());
    let is_it = |difference: &Difference| matches!(difference, Difference::Value { found, expected, .. } if found.contains("F64") && expected.contains("F32"));
    assert!(differences.len() == 2 && differences.iter().all(is_it), "{differences:?}");
}

/// A stage for tests that does not use one of its layers, so this layer's parameters get no optimizer state.
#[derive(burn::module::Module, Debug)]
struct Spare {
    used: Layer,
    spare: Layer,
}

impl Stage for Spare {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        self.used.forward(input)
    }
}

#[test]
fn an_optimizer_state_that_is_missing_without_a_record_is_refused() {
    let build = |optimizer: ModuleOptimizer| {
        let Mlp { mut layers, error } = Mlp::new(2, WIDTH, 1);
        let spare = Spare { used: layers.pop().unwrap(), spare: layers.pop().unwrap() };
        let config = || StageConfig::new(device(), optimizer.clone(), 0.01);
        Pipeline::builder().stage(spare, config()).loss((Vec::<Layer>::new(), error), config()).micro_batches(2)
    };
    let adam = || AdamWConfig::new().init();
    let mut pipeline = build(adam()).build().unwrap();
    train(&mut pipeline, 0..2);
    let checkpoint = pipeline.checkpoint().unwrap();
    let of_spare = |name: &&String| name.starts_with("stage0.spare.");
    let names: Vec<_> = checkpoint.optimizer.keys().filter(of_spare).cloned().collect();
    assert_eq!(names, ["stage0.spare.linear.bias/stateless", "stage0.spare.linear.weight/stateless"]);
    let mut again = build(adam()).restore(checkpoint.clone()).build().unwrap();
    train(&mut again, 2..3);
    train(&mut pipeline, 2..3);
    assert!(again.checkpoint().unwrap() == pipeline.checkpoint().unwrap());
    // Without a parameter's state, or without the record that a parameter has no state, a checkpoint is refused.
    for prefix in ["stage0.used.linear.bias/", "stage0.spare.linear.bias/", "stage1.1.linear.weight/"] {
        let mut less = checkpoint.clone();
        less.optimizer.retain(|name, _| !name.starts_with(prefix));
        assert!(less.optimizer.len() < checkpoint.optimizer.len());
        let differences = refused(less, build(adam()));
        let is_of_it = |difference: &Difference| matches!(difference, Difference::OtherOptimizer { name } if name.starts_with(prefix));
        assert!(!differences.is_empty() && differences.iter().all(is_of_it), "{prefix}: {differences:?}");
    }
    // A record that a parameter has no state contradicts a state of this parameter in the same checkpoint.
    let mut both = checkpoint.clone();
    let record = both.optimizer["stage0.spare.linear.bias/stateless"].clone();
    both.optimizer.insert("stage0.used.linear.bias/stateless".to_owned(), record);
    let differences = refused(both, build(adam()));
    let is_it = |difference: &Difference| matches!(difference, Difference::Value { name, .. } if name == "stage0.used.linear.bias/stateless");
    assert!(differences.len() == 1 && differences.iter().all(is_it), "{differences:?}");
    // Before the first step no parameter has a state or a record.
    let fresh = build(adam()).build().unwrap().checkpoint().unwrap();
    assert!(fresh.optimizer.is_empty());
    build(adam()).restore(fresh).build().unwrap();
}

/// Tests that a checkpoint with impossible step counts is rejected at once. A restored learning rate schedule is
/// advanced by the checkpoint's number of steps, which would take years for a huge number.
#[test]
fn impossible_step_counts_are_refused_at_once() {
    let sound = builder(1, 2, 2).build().unwrap().checkpoint().unwrap();
    for (steps, optimizer_steps) in [(1 << 53, 1 << 53), (u64::MAX, 0), (u64::MAX, u64::MAX), (3, 4)] {
        let mut checkpoint = sound.clone();
        (checkpoint.progress.steps, checkpoint.progress.optimizer_steps) = (steps, optimizer_steps);
        let error = builder(1, 2, 2).restore(checkpoint).build().map(drop).unwrap_err();
        assert!(matches!(error, BuildError::Steps { .. }), "{error}");
    }
}

/// Tests that a checkpoint with an impossible loss scale is rejected: NaN would make every step fail, and a tiny loss
/// scale would round every gradient to 0.
#[test]
fn impossible_loss_scales_are_refused() {
    let scaled = || builder(1, 2, 2).loss_scale(LossScale::Dynamic(DynamicLossScale::default()));
    let sound = scaled().build().unwrap().checkpoint().unwrap();
    for scale in [f64::NAN, 0.0, -1.0, 0.5, 1e-300, 1e300, f64::INFINITY] {
        let mut checkpoint = sound.clone();
        checkpoint.progress.loss_scale.as_mut().unwrap().scale = scale;
        let error = scaled().restore(checkpoint.clone()).build().map(drop).unwrap_err();
        assert!(matches!(error, BuildError::RestoredLossScale { .. }), "{error}");
        // A training with a fixed loss scale does not use that of the checkpoint.
        builder(1, 2, 2).restore(checkpoint).build().unwrap();
    }
    scaled().restore(sound).build().unwrap();
}

/// Tests that restoring a manipulated checkpoint neither panics nor hangs, and that its error messages are short and
/// printable.
#[test]
fn hostile_checkpoints_neither_panic_nor_hang() {
    let mut state = 1_u64;
    let mut byte = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    let inputs: Vec<Vec<u8>> = (0..400).map(|input| (0..6 + input % 9).map(|_| byte()).collect()).collect();
    let taken = inputs.into_iter().filter(|input| {
        let input = input.clone();
        within_a_minute(move || restore(&input))
    });
    let taken = taken.count();
    assert!((10..200).contains(&taken), "{taken} of 400 were taken");
}

#[test]
fn ambiguous_and_missing_parameter_names_are_refused() {
    let Mlp { mut layers, error } = Mlp::new(2, WIDTH, 1);
    let names = Names::new().part("layer", &layers[0]).part("layer", &layers[1]);
    let (second, first) = (layers.pop().unwrap(), layers.pop().unwrap());
    let build = |names| {
        let chain = Pipeline::builder().stage(first.clone(), config()).stage(second.clone(), config());
        chain.loss(error.clone(), config()).names(names).build().map(drop).unwrap_err().to_string()
    };
    assert_eq!(
        build(names.part("error", &error)),
        "two parameters are called `layer.linear.weight`, in stages 0 and 1; give each part of the model a name of its own"
    );
    assert_eq!(
        build(Names::new().part("first", &first)),
        "parameter `linear.weight` of stage 1 has no name; give `Names` the part of the model that it is in"
    );
    assert!(!bits(&error).is_empty());
}
