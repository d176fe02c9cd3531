//! Tests of tied parameters, which several stages share: they train as in one autodiff graph, and all copies stay
//! equal.

use burn::module::{Module, Param};
use burn::optim::{AdamWConfig, GradientsAccumulator, GradientsParams, ModuleOptimizer};
use burn::tensor::Tensor;
use stageline::nn::Linear;
use stageline::schedule::{EagerOneFOneB, GPipe, Interleaved, LoopedBreadthFirst, OneFOneB, Schedule};
use stageline::{
    Batch, BuildError, Clip, Dropout, DynamicLossScale, LossScale, OnNonFinite, Pipeline, PipelineBuilder, Precision,
    StageConfig, Update, Verify,
};

use crate::mlp::{Error, LEARNING_RATE, Layer, Mlp, Target, bits, config, pieces};
use crate::parity::Dropped;

const WIDTH: usize = 6;
const ROWS: usize = 10;
const MAX_NORM: f64 = 0.3;

/// The linear layers of the model for tests of tied parameters. The first and the last layer are the same parameter,
/// `ends`.
struct Parts {
    ends: Linear,
    middle: Linear,
}

fn parts() -> Parts {
    let Mlp { layers, error } = Mlp::new(1, WIDTH, 21);
    Parts { ends: error.linear, middle: layers.into_iter().next().unwrap().linear }
}

fn batches() -> Vec<(Tensor<2>, Target)> {
    (0..4).map(|step| Mlp::batch(ROWS, WIDTH, true, 70 + step)).collect()
}

/// Divides the model for tests of tied parameters into 1 to 4 stages. The model has three layers, of which the first
/// and the last are tied.
pub fn cut(stages: usize, config: &StageConfig) -> PipelineBuilder<Tensor<2>, Tensor<2>, Target> {
    let Parts { ends, middle } = parts();
    let (first, middle, last) = (Layer { linear: ends.clone() }, Layer { linear: middle }, Error { linear: ends });
    let empty = Vec::<Layer>::new;
    let chain = Pipeline::builder();
    match stages {
        1 => chain.loss((vec![first, middle], last), config.clone()),
        2 => chain.stage(vec![first], config.clone()).loss((vec![middle], last), config.clone()),
        3 => chain
            .stage(vec![first], config.clone())
            .stage(vec![middle], config.clone())
            .loss((empty(), last), config.clone()),
        _ => {
            let chain = chain.stage(vec![first], config.clone()).stage(empty(), config.clone());
            chain.stage(vec![middle], config.clone()).loss((empty(), last), config.clone())
        }
    }
}

/// Trains the model for tests of tied parameters as a pipeline. Returns the bits of the first, the middle and the last
/// layer, and the gradient norm of every step.
fn trained(stages: usize, micro_batches: usize, schedule: impl Schedule + 'static) -> ([Vec<u32>; 3], Vec<f64>) {
    let builder =
        cut(stages, &config()).micro_batches(micro_batches).schedule(schedule).clip(Clip::GlobalNorm(MAX_NORM));
    let mut pipeline = builder.build().unwrap();
    let norm = |(input, target)| match pipeline.step(Batch::new(input, target)).unwrap().update {
        Update::Stepped { gradient_norm, .. } => gradient_norm,
        other => panic!("{other:?}"),
    };
    let norms = batches().into_iter().map(norm).collect();
    let mut modules = pipeline.into_modules();
    let last = stages - 1;
    let mut layers: Vec<_> = (0..last).flat_map(|stage| modules.take::<Vec<Layer>>(stage).unwrap()).collect();
    let (rest, error) = modules.take::<(Vec<Layer>, Error)>(last).unwrap();
    layers.extend(rest);
    ([bits(&layers[0]), bits(&layers[1]), bits(&error)], norms)
}

/// Trains the model for tests of tied parameters without Stageline, in one autodiff graph that uses the tied layer
/// twice. Returns the bits of the tied and the middle layer, and the gradient norm of every step.
fn plainly(micro_batches: usize) -> ([Vec<u32>; 2], Vec<f64>) {
    #[derive(Module, Debug)]
    struct Whole {
        ends: Linear,
        middle: Linear,
    }
    let Parts { ends, middle } = parts();
    let mut model = Whole { ends, middle };
    let mut optimizer: ModuleOptimizer = AdamWConfig::new().init();
    let mut norms = Vec::new();
    for (input, (wanted, mask)) in batches() {
        let total = mask.clone().sum().into_scalar::<f32>();
        let mut sum = GradientsAccumulator::new();
        for rows in pieces(ROWS, micro_batches) {
            let part = |tensor: &Tensor<2>| tensor.clone().slice_dim(0, rows.clone()).autodiff();
            let hidden = model.middle.forward(model.ends.forward(part(&input)).tanh()).tanh();
            let difference = (model.ends.forward(hidden) - part(&wanted)) * part(&mask);
            let loss = (difference.clone() * difference).sum() / 2.0;
            sum.accumulate(&model, GradientsParams::from_grads((loss / total).backward(), &model));
        }
        let (mut gradients, mut clipped, mut squares) = (sum.grads(), GradientsParams::new(), Vec::new());
        let square = |values: Vec<f64>| values.into_iter().map(|value| value * value).sum::<f64>();
        for linear in [&model.ends, &model.middle] {
            let weight = gradients.get::<2>(linear.weight.id).unwrap();
            let bias = gradients.get::<1>(linear.bias.as_ref().unwrap().id).unwrap();
            squares.push(square(weight.into_data().iter::<f64>().collect()));
            squares.push(square(bias.into_data().iter::<f64>().collect()));
        }
        let norm = squares.iter().sum::<f64>().sqrt();
        assert!(norm > MAX_NORM, "{norm} is not clipped");
        norms.push(norm);
        for linear in [&model.ends, &model.middle] {
            let (weight, bias) = (linear.weight.id, linear.bias.as_ref().unwrap().id);
            let factor = MAX_NORM / (norm + 1e-6);
            clipped.register(weight, gradients.remove::<2>(weight).unwrap() * factor);
            clipped.register(bias, gradients.remove::<1>(bias).unwrap() * factor);
        }
        model = optimizer.step(LEARNING_RATE, model, clipped);
    }
    ([bits(&model.ends), bits(&model.middle)], norms)
}

#[test]
fn tied_parameters_train_as_in_one_graph() {
    for micro_batches in [1, 3, 4] {
        let ([ends, middle], norms) = plainly(micro_batches);
        for stages in 1..=4 {
            for schedule in [&OneFOneB as &(dyn Schedule + Sync), &GPipe, &EagerOneFOneB] {
                let case = format!("P={stages} M={micro_batches} {}", schedule.name());
                let ([first, second, last], found) = trained(stages, micro_batches, schedule);
                assert!(first == last, "{case}: the copies differ");
                assert!((first, second) == (ends.clone(), middle.clone()), "{case}: other bits than the plain loop");
                // A pipeline adds the squares of the norm in another order than the plain loop.
                let is_near = |(found, norm): (&f64, &f64)| (found / norm - 1.0).abs() < 1e-14;
                let agree = found.len() == norms.len() && found.iter().zip(&norms).all(is_near);
                assert!(agree, "{case}: the tied parameter counts once in the norm: {found:?} and {norms:?}");
            }
        }
    }
}

/// Tests that tied parameters train to the same bits for every partition into stages, schedule and channel capacity.
/// They are combined with dropout, clipping and a loss scale that changes at every step, in every precision.
#[test]
fn tied_parameters_give_the_same_bits_with_other_features_combined() {
    let train = |precision, stages: usize, schedule: &'static (dyn Schedule + Sync), capacity: usize| {
        let Parts { ends, middle } = parts();
        let dropped = |linear: &Linear, layer| {
            vec![Dropped { layer: Layer { linear: linear.clone() }, dropout: Dropout::new(0.3, 1, layer) }]
        };
        let (first, second, last) = (dropped(&ends, 0), dropped(&middle, 1), Error { linear: ends });
        let chain = Pipeline::builder();
        let builder = match stages {
            1 => chain.loss((first, (second, last)), config()),
            2 => chain.stage(first, config()).loss((Vec::<Dropped>::new(), (second, last)), config()),
            _ => {
                let chain = chain.stage(first, config()).stage(second, config());
                chain.loss((Vec::<Dropped>::new(), (Vec::<Dropped>::new(), last)), config())
            }
        };
        let builder = builder.micro_batches(4).schedule(schedule).channel_capacity(capacity);
        let scale = DynamicLossScale { growth_interval: 1, ..DynamicLossScale::default() };
        let builder = builder.precision(precision).loss_scale(LossScale::Dynamic(scale));
        let mut pipeline = builder.clip(Clip::GlobalNorm(MAX_NORM)).build().unwrap();
        let step = |(input, target)| pipeline.step(Batch::new(input, target)).unwrap();
        let stepped = batches().into_iter().map(step).filter(|report| report.update.stepped()).count();
        // The scale doubles at every step, which overflows in f16 only.
        assert_eq!(stepped < 4, precision == Precision::F16, "{precision}: {stepped} of 4");
        bits(&pipeline.into_modules().take::<(Vec<Dropped>, (Vec<Dropped>, Error))>(stages - 1).unwrap().1.1)
    };
    for precision in [Precision::Full, Precision::Bf16, Precision::F16] {
        let reference = train(precision, 1, &OneFOneB, 4);
        for (stages, capacity) in (1..=3).flat_map(|stages| [1, 2, 4].map(move |capacity| (stages, capacity))) {
            for schedule in [&OneFOneB as &(dyn Schedule + Sync), &GPipe, &EagerOneFOneB] {
                let case = format!("{precision} P={stages} capacity {capacity} {}", schedule.name());
                assert!(train(precision, stages, schedule, capacity) == reference, "{case}");
            }
        }
    }
}

/// Tests that the stage that owns a tied parameter and a stage with a copy of it may be on the same worker.
#[test]
fn tied_stages_may_share_a_worker() {
    let ([ends, ..], _) = plainly(4);
    assert!(trained(4, 4, Interleaved { chunks: 2 }).0[2] == ends);
    assert!(trained(4, 4, LoopedBreadthFirst { chunks: 2 }).0[2] == ends);
}

/// Trains a model that uses the same layer three times, in one autodiff graph without Stageline, and returns the bits
/// of that layer.
fn three_uses_plainly(micro_batches: usize) -> Vec<u32> {
    let mut ends = parts().ends;
    let mut optimizer: ModuleOptimizer = AdamWConfig::new().init();
    for (input, (wanted, mask)) in batches() {
        let total = mask.clone().sum().into_scalar::<f32>();
        let mut sum = GradientsAccumulator::new();
        for rows in pieces(ROWS, micro_batches) {
            let part = |tensor: &Tensor<2>| tensor.clone().slice_dim(0, rows.clone()).autodiff();
            let hidden = ends.forward(ends.forward(part(&input)).tanh()).tanh();
            let difference = (ends.forward(hidden) - part(&wanted)) * part(&mask);
            let loss = (difference.clone() * difference).sum() / 2.0;
            sum.accumulate(&ends, GradientsParams::from_grads((loss / total).backward(), &ends));
        }
        ends = optimizer.step(LEARNING_RATE, ends, sum.grads());
    }
    bits(&ends)
}

/// Trains a pipeline in which all layers are one tied layer, and returns the layer's bits. `uses` has the number of
/// layers in each stage; the last stage also computes the loss.
fn train_three_uses(uses: &[usize], micro_batches: usize) -> Vec<u32> {
    let ends = parts().ends;
    let layers = |count: usize| vec![Layer { linear: ends.clone() }; count];
    let error = Error { linear: ends.clone() };
    let chain = Pipeline::builder();
    let builder = match uses {
        [last] => chain.loss((layers(*last), error), config()),
        [first, last] => chain.stage(layers(*first), config()).loss((layers(*last), error), config()),
        [first, second, last] => {
            let chain = chain.stage(layers(*first), config()).stage(layers(*second), config());
            chain.loss((layers(*last), error), config())
        }
        _ => unreachable!("at most three stages"),
    };
    let mut pipeline = builder.micro_batches(micro_batches).build().unwrap();
    for (input, target) in batches() {
        pipeline.step(Batch::new(input, target)).unwrap();
    }
    let mut modules = pipeline.into_modules();
    bits(&modules.take::<(Vec<Layer>, Error)>(uses.len() - 1).unwrap().1)
}

#[test]
fn a_layer_in_three_stages_trains_as_in_one_graph() {
    for micro_batches in [1, 3] {
        let plain = three_uses_plainly(micro_batches);
        assert!(train_three_uses(&[2], micro_batches) == plain, "one stage, M={micro_batches}");
        assert!(train_three_uses(&[1, 1, 0], micro_batches) == plain, "three stages, M={micro_batches}");
    }
}

/// Tests a stage that uses a tied layer twice. Its gradients may be added in a different order than in a loop without
/// Stageline. The trained parameters may therefore differ from those of the loop, but only in their last bits.
#[test]
fn a_stage_may_use_its_copy_twice() {
    let floats = |bits: Vec<u32>| bits.into_iter().map(f32::from_bits).collect::<Vec<_>>();
    let plain = floats(three_uses_plainly(3));
    for uses in [[1, 1], [2, 0]] {
        for (found, expected) in floats(train_three_uses(&uses, 3)).into_iter().zip(&plain) {
            assert!((found - expected).abs() < 1e-5, "{uses:?}: {found} against {expected}");
        }
    }
}

#[test]
fn copies_that_cannot_be_tied_are_refused() {
    let ends = parts().ends;
    let layer = |linear: &Linear| Layer { linear: linear.clone() };
    let error = || Error { linear: parts().middle };
    let half = Pipeline::builder().stage(layer(&ends).no_grad(), config()).stage(layer(&ends), config());
    let refused = half.loss(error(), config()).build().err().unwrap();
    assert!(matches!(refused, BuildError::HalfFrozen { stages: (1, 0) }), "{refused}");

    let mut other = ends.clone();
    other.weight = Param::initialized(
        ends.weight.id,
        Tensor::ones([WIDTH, 2 * WIDTH], &ends.weight.val().device()).require_grad(),
    );
    let misshapen = Pipeline::builder().stage(layer(&ends), config()).stage(layer(&other), config());
    let refused = misshapen.loss(error(), config()).build().err().unwrap();
    assert!(matches!(refused, BuildError::TiedShapes { stages: (0, 1) }), "{refused}");
}

/// Tests a layer that three stages share: all its copies are equal after every step, also after a skipped step.
#[test]
fn every_copy_is_the_same_after_every_step() {
    let ends = parts().ends;
    let layer = || Layer { linear: ends.clone() };
    let chain = Pipeline::builder().stage(layer(), config()).stage(layer(), config());
    let builder = chain.loss(Error { linear: ends.clone() }, config()).micro_batches(2);
    let mut pipeline = builder.on_non_finite(OnNonFinite::Skip).build().unwrap();
    for (step, (input, (wanted, mask))) in batches().into_iter().enumerate() {
        let wanted = if step == 1 { wanted * f32::MAX } else { wanted };
        let report = pipeline.step(Batch::new(input, (wanted, mask))).unwrap();
        assert_eq!(report.update.stepped(), step != 1);
    }
    let mut modules = pipeline.into_modules();
    let copies = [0, 1].map(|stage| bits(&modules.take::<Layer>(stage).unwrap()));
    let last = bits(&modules.take::<Error>(2).unwrap());
    assert!(copies[0] == copies[1] && copies[0] == last);
    assert_ne!(last, bits(&ends));
}

/// Tests that copies of a frozen parameter in several stages keep their bits. Frozen parameters are not trained, so the
/// copies are not tied.
#[test]
fn frozen_copies_keep_their_bits() {
    let frozen = || Layer { linear: parts().ends }.no_grad();
    let before = bits(&frozen());
    let chain = Pipeline::builder().stage(frozen(), config()).stage(frozen(), config());
    let mut pipeline = chain.loss(Mlp::new(0, WIDTH, 9).error, config()).micro_batches(2).build().unwrap();
    for (input, target) in batches() {
        pipeline.step(Batch::new(input, target)).unwrap();
    }
    let mut modules = pipeline.into_modules();
    assert!([0, 1].into_iter().all(|stage| bits(&modules.take::<Layer>(stage).unwrap()) == before));
}

#[test]
fn a_tied_model_has_the_parameters_of_a_plain_loop_on_one_thread() {
    let batch = |step: usize| {
        let (input, target) = batches().swap_remove(step);
        Batch::new(input, target)
    };
    for stages in 2..=4 {
        let build = || cut(stages, &config()).micro_batches(3).clip(Clip::GlobalNorm(MAX_NORM));
        let verification = Verify::new().steps(2).pipeline(build, batch, &[]).unwrap();
        assert!(verification.passes(), "P = {stages}: {verification}");
        let [configured] = &verification.parameters[..] else { panic!("{verification}") };
        assert_eq!((configured.parameters, configured.differences.len()), (4, 0), "P = {stages}: {verification}");
    }
}
