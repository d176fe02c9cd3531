//! Tests of checkpoints without frozen parameters ([`FrozenFrom::Model`]): they resume with the bits of a training that
//! was not interrupted, and refuse a model whose frozen parameters have changed.

use burn::module::{Module, Param};
use burn::nn::BatchNormConfig;
use burn::tensor::Tensor;
use stageline::checkpoint::Checkpoint;
use stageline::{
    AccumulatedBatchNorm, Batch, BuildError, Difference, FrozenFrom, MemoryEstimate, Names, Pipeline, PipelineBuilder,
};

use crate::mlp::{Layer, Mlp, Target, config, device};
use crate::replicas::Normed;

/// The width of the layers, whose weights are large enough to be left out, unlike their biases.
const WIDTH: usize = 96;
const LAYERS: usize = 4;

type Builder = PipelineBuilder<Tensor<2>, Tensor<2>, Target>;

/// Returns the test model, whose layers with the numbers in `frozen` are frozen.
fn model(seed: u64, frozen: &[usize]) -> Mlp {
    let Mlp { layers, error } = Mlp::new(LAYERS, WIDTH, seed);
    let freeze = |(number, layer): (usize, Layer)| if frozen.contains(&number) { layer.no_grad() } else { layer };
    Mlp { layers: layers.into_iter().enumerate().map(freeze).collect(), error }
}

fn builder(model: Mlp, stages: usize, frozen_from: FrozenFrom) -> Builder {
    let names = Names::new().part("", &model);
    model.split(stages, &config()).micro_batches(3).names(names).frozen_from(frozen_from)
}

fn train(pipeline: &mut Pipeline<Tensor<2>, Tensor<2>, Target>, steps: std::ops::Range<u64>) {
    for step in steps {
        let (input, target) = Mlp::batch(12, WIDTH, false, step);
        pipeline.step(Batch::new(input, target)).unwrap();
    }
}

/// Trains a model from scratch and returns its checkpoint after `steps` steps.
fn trained(model: Mlp, frozen_from: FrozenFrom, steps: u64) -> Checkpoint {
    let mut pipeline = builder(model, 2, frozen_from).build().unwrap();
    train(&mut pipeline, 0..steps);
    pipeline.checkpoint().unwrap()
}

fn resumed(model: Mlp, stages: usize, frozen_from: FrozenFrom, from: Checkpoint) -> Checkpoint {
    let start = from.progress.steps;
    let mut pipeline = builder(model, stages, frozen_from).restore(from).build().unwrap();
    train(&mut pipeline, start..4);
    pipeline.checkpoint().unwrap()
}

fn names<T>(tensors: &std::collections::BTreeMap<String, T>) -> Vec<&str> {
    tensors.keys().map(String::as_str).collect()
}

#[test]
fn a_checkpoint_without_frozen_parameters_resumes_with_the_same_bits() {
    let frozen = [0, 2];
    let whole = trained(model(1, &frozen), FrozenFrom::Checkpoint, 4);
    let middle = trained(model(1, &frozen), FrozenFrom::Model, 2);
    let left_out = ["layers.0.linear.weight", "layers.2.linear.weight"];
    assert_eq!(names(&middle.frozen), left_out);
    assert!(names(&middle.parameters).iter().all(|name| !left_out.contains(name)));
    for stages in 1..=3 {
        let end = resumed(model(1, &frozen), stages, FrozenFrom::Model, middle.clone());
        assert_eq!(names(&end.frozen), left_out);
        assert!(end.parameters.iter().all(|(name, tensor)| whole.parameters[name] == *tensor));
        assert_eq!((end.optimizer, end.progress), (whole.optimizer.clone(), whole.progress));
        // The same training with `FrozenFrom::Checkpoint` writes a checkpoint that contains all values.
        let all = resumed(model(1, &frozen), stages, FrozenFrom::Checkpoint, middle.clone());
        assert_eq!((names(&all.frozen), all.parameters), (Vec::new(), whole.parameters.clone()));
    }
}

#[test]
fn a_model_with_other_frozen_parameters_is_refused_with_their_names() {
    let checkpoint = trained(model(1, &[0, 3]), FrozenFrom::Model, 2);
    let other = |seed| {
        let (mut of_first, of_second) = (model(1, &[0, 3]), model(seed, &[0, 3]));
        of_first.layers[3].linear.weight = of_second.layers[3].linear.weight.clone();
        builder(of_first, 2, FrozenFrom::Model).restore(checkpoint.clone()).build().map(drop)
    };
    other(1).unwrap();
    let error = other(2).unwrap_err();
    let BuildError::Checkpoint(mismatch) = &error else { panic!("{error}") };
    assert_eq!(mismatch.differences(), [Difference::Frozen { name: "layers.3.linear.weight".to_owned() }]);
    let text = error.to_string();
    assert!(text.contains("layers.3.linear.weight is frozen, and its values in the model are not those"), "{text}");
    assert!(text.contains("build the model from the weights from which the training began"), "{text}");

    let mut unknown = checkpoint.clone();
    unknown.frozen.insert("layers.9.linear.weight".to_owned(), checkpoint.frozen["layers.3.linear.weight"].clone());
    let mut reshaped = checkpoint.clone();
    reshaped.frozen.get_mut("layers.3.linear.weight").unwrap().shape = vec![WIDTH * WIDTH];
    let mut missing = checkpoint.clone();
    missing.frozen.remove("layers.0.linear.weight").unwrap();
    for (checkpoint, expected) in [
        (unknown, "layers.9.linear.weight is not in the model"),
        (reshaped, "layers.3.linear.weight is F32 [96, 96] in the model and F32 [9216] in the checkpoint"),
        (missing, "layers.0.linear.weight is not in the checkpoint"),
    ] {
        let build = builder(model(1, &[0, 3]), 2, FrozenFrom::Model).restore(checkpoint).build();
        let text = build.map(drop).unwrap_err().to_string();
        assert!(text.contains(expected), "{text}");
    }
}

/// Tests that parameters that were trained before they were frozen stay in checkpoints, because the model has them with
/// other values.
#[test]
fn parameters_that_were_trained_before_they_were_frozen_stay_in_checkpoints() {
    let first = trained(model(1, &[0]), FrozenFrom::Model, 2);
    assert!(first.optimizer.keys().any(|name| name.starts_with("layers.1.")), "it had an optimizer state");
    let second = resumed(model(1, &[0, 1]), 3, FrozenFrom::Model, first.clone());
    assert_eq!(names(&second.frozen), ["layers.0.linear.weight"]);
    let name = "layers.1.linear.weight";
    assert_eq!(second.parameters[name], first.parameters[name]);
    assert!(!second.optimizer.keys().any(|name| name.starts_with("layers.1.")), "a frozen parameter has no state");
    let third = builder(model(1, &[0, 1]), 2, FrozenFrom::Model).restore(second.clone()).build().unwrap().checkpoint();
    assert_eq!(third.unwrap().parameters, second.parameters);
}

#[test]
fn an_estimate_of_the_memory_counts_what_checkpoints_hold() {
    let copies = |frozen_from| {
        let mut pipeline = builder(model(1, &[0, 2]), 2, frozen_from).build().unwrap();
        let (input, target) = Mlp::batch(12, WIDTH, false, 0);
        let estimate = pipeline.estimate_memory(Batch::new(input, target)).unwrap().unwrap();
        let other = |estimate: &MemoryEstimate| estimate.workers().iter().map(|worker| worker.other).sum::<u64>();
        other(&estimate.with_checkpoints()) - other(&estimate)
    };
    let frozen = 2 * WIDTH * WIDTH * size_of::<f32>();
    assert_eq!(copies(FrozenFrom::Checkpoint) - copies(FrozenFrom::Model), frozen as u64);
}

/// Tests that running statistics, which change and are not trained, are in checkpoints.
#[test]
fn the_statistics_of_a_batch_norm_stay_in_checkpoints() {
    let build = |frozen_from| {
        let Mlp { mut layers, error } = model(1, &[0]);
        let norm = AccumulatedBatchNorm::from(BatchNormConfig::new(WIDTH).init(&device().autodiff()));
        let normed = Normed { layer: layers.remove(0), norm };
        Pipeline::builder().loss((normed, error), config()).micro_batches(3).frozen_from(frozen_from)
    };
    let mut pipelines = [FrozenFrom::Checkpoint, FrozenFrom::Model].map(|source| build(source).build().unwrap());
    let checkpoints = pipelines.each_mut().map(|pipeline| {
        train(pipeline, 0..2);
        pipeline.checkpoint().unwrap()
    });
    let [whole, part] = &checkpoints;
    assert_eq!(names(&part.frozen), ["stage0.0.layer.linear.weight"]);
    let statistics = names(&part.parameters).into_iter().filter(|name| name.contains("running"));
    assert_eq!(statistics.map(|name| assert_eq!(part.parameters[name], whole.parameters[name])).count(), 2);
    let mut resumed = build(FrozenFrom::Model).restore(part.clone()).build().unwrap();
    train(&mut resumed, 2..4);
    train(&mut pipelines[0], 2..4);
    let (found, expected) = (resumed.checkpoint().unwrap(), pipelines[0].checkpoint().unwrap());
    assert!(found.parameters.iter().all(|(name, tensor)| expected.parameters[name] == *tensor));
}

/// Tests a frozen tensor that two stages share: a resume compares its values in both stages with the checkpoint.
#[test]
fn a_shared_frozen_tensor_is_compared_in_each_stage() {
    let build = |other: bool| {
        let Mlp { mut layers, error } = model(1, &[0, 1]);
        layers[1].linear.weight = layers[0].linear.weight.clone();
        if other {
            let values = layers[1].linear.weight.val() * 2.0;
            let id = layers[0].linear.weight.id;
            layers[1].linear.weight = Param::initialized(id, values.no_grad());
        }
        let second = layers.split_off(1);
        let chain = Pipeline::builder().stage(layers, config()).loss((second, error), config());
        chain.micro_batches(3).frozen_from(FrozenFrom::Model)
    };
    let mut pipeline = build(false).build().unwrap();
    train(&mut pipeline, 0..1);
    let checkpoint = pipeline.checkpoint().unwrap();
    assert_eq!(names(&checkpoint.frozen), ["stage0.0.linear.weight"]);
    build(false).restore(checkpoint.clone()).build().unwrap();
    let error = build(true).restore(checkpoint).build().map(drop).unwrap_err();
    let BuildError::Checkpoint(mismatch) = &error else { panic!("{error}") };
    assert_eq!(mismatch.differences(), [Difference::Frozen { name: "stage0.0.linear.weight".to_owned() }]);
}
