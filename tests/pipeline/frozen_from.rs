//! Tests of checkpoints without frozen parameters ([`FrozenFrom::Model`]): they resume with the bits of a training that
//! was not interrupted, and refuse a model whose frozen parameters have changed.

use burn::module::Module;
use burn::nn::BatchNormConfig;
use burn::tensor::Tensor;
use stageline::checkpoint::Checkpoint;
use stageline::{
    AccumulatedBatchNorm, Batch, BuildError, Difference, FrozenFrom, MemoryEstimate, Names, Pipeline, PipelineBuilder,
};

use crate::mlp::{Layer, Mlp, Target, config, device};
use crate::replicas::Normed;

const WIDTH: usize = 4;
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
    let left_out = ["layers.0.linear.bias", "layers.0.linear.weight", "layers.2.linear.bias", "layers.2.linear.weight"];
    assert_eq!(names(&middle.frozen), left_out);
    assert!(names(&middle.parameters).iter().all(|name| !left_out.contains(name)));
    for stages in 1..=3 {
        let end = resumed(model(1, &frozen), stages, FrozenFrom::Model, middle.clone());
        assert_eq!(names(&end.frozen), left_out);
        assert!(end.parameters.iter().all(|(name, tensor)| whole.parameters[name] == *tensor));
        assert_eq!((end.optimizer, end.progress), (whole.optimizer.clone(), whole.progress));
        // A checkpoint of the same training that holds all values.
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
    missing.frozen.remove("layers.0.linear.bias").unwrap();
    for (checkpoint, expected) in [
        (unknown, "layers.9.linear.weight is not in the model"),
        (reshaped, "layers.3.linear.weight is F32 [4, 4] in the model and F32 [16] in the checkpoint"),
        (missing, "layers.0.linear.bias is not in the checkpoint"),
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
    let mut first = trained(model(1, &[0]), FrozenFrom::Model, 2);
    first.optimizer.retain(|name, _| !name.starts_with("layers.1.")); // a frozen parameter has no state
    let second = resumed(model(1, &[0, 1]), 3, FrozenFrom::Model, first.clone());
    assert_eq!(names(&second.frozen), ["layers.0.linear.bias", "layers.0.linear.weight"]);
    let name = "layers.1.linear.weight";
    assert_eq!(second.parameters[name], first.parameters[name]);
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
    let frozen = 2 * (WIDTH * WIDTH + WIDTH) * size_of::<f32>();
    assert_eq!(copies(FrozenFrom::Checkpoint) - copies(FrozenFrom::Model), frozen as u64);
}

#[test]
fn a_batch_norm_is_refused() {
    let Mlp { mut layers, error } = model(1, &[]);
    let norm = AccumulatedBatchNorm::from(BatchNormConfig::new(WIDTH).init(&device().autodiff()));
    let normed = Normed { layer: layers.remove(0), norm };
    let build = Pipeline::builder().loss((normed, error), config()).frozen_from(FrozenFrom::Model).build();
    let error = build.map(drop).unwrap_err();
    assert!(matches!(&error, BuildError::BatchNormFrozenFrom { stage: 0, path } if path == "0.norm.norm"), "{error}");
}
