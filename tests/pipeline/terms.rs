//! Tests of a loss with several terms, each of which is summed over its own targets and divided by its own weight.

use burn::module::Module;
use burn::optim::{AdamWConfig, GradientsAccumulator, GradientsParams, ModuleOptimizer};
use burn::tensor::Tensor;
use stageline::nn::Linear;
use stageline::schedule::{EagerOneFOneB, GPipe, OneFOneB, Schedule};
use stageline::{Batch, BatchError, LossStage, LossTerm, Pipeline, Stage, StepError, StepReport, Update, Weight};

use crate::mlp::{LEARNING_RATE, Layer, Mlp, bits, config, pieces};

const WIDTH: usize = 4;
const ROWS: usize = 11;
const MICRO_BATCHES: usize = 3;
/// The factor of the second loss term in the total loss of the tests with two loss terms.
const FACTOR: f64 = 0.3;

/// A last stage for tests whose loss has two terms: half the squared error of the output in some rows, and the squared
/// size of the output in other rows.
#[derive(Module, Debug)]
struct Both {
    linear: Linear,
}

/// The targets of a loss with two terms: the wanted output `[rows, width]`, and for each term a mask `[rows, 1]` of the
/// rows that count.
type Target = (Tensor<2>, Tensor<2>, Tensor<2>);

/// Returns the sums of the two loss terms (squared error and squared size of the output) over their unmasked rows.
fn sums(output: Tensor<2>, (wanted, error_mask, size_mask): Target) -> [Tensor<1>; 2] {
    let squares = |rows: Tensor<2>| (rows.clone() * rows).sum();
    [squares((output.clone() - wanted) * error_mask) / 2.0, squares(output * size_mask) * FACTOR]
}

impl Stage for Both {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        self.linear.forward(input)
    }
}

impl LossStage for Both {
    type Target = Target;

    fn loss(&self, output: Tensor<2>, target: Target) -> Tensor<1> {
        Tensor::cat(sums(output, target).to_vec(), 0)
    }

    fn weight(&self, (_, error_mask, size_mask): &Target) -> Weight {
        [error_mask, size_mask].map(|mask| mask.clone().sum().into_scalar::<f64>()).into()
    }
}

fn batches() -> Vec<(Tensor<2>, Target)> {
    let batch = |seed| {
        let (input, (wanted, error_mask)) = Mlp::batch(ROWS, WIDTH, true, seed);
        let (_, (_, size_mask)) = Mlp::batch(ROWS, WIDTH, true, seed + 100);
        (input, (wanted, error_mask, size_mask))
    };
    (0..3).map(batch).collect()
}

fn parts() -> (Vec<Layer>, Both) {
    let Mlp { layers, error } = Mlp::new(3, WIDTH, 17);
    (layers, Both { linear: error.linear })
}

fn pipeline(stages: usize, schedule: impl Schedule + 'static) -> Pipeline<Tensor<2>, Tensor<2>, Target> {
    let (mut layers, both) = parts();
    let rest = layers.split_off(stages - 1);
    let mut chain = Pipeline::builder();
    for layer in layers {
        chain = chain.stage(vec![layer], config());
    }
    chain.loss((rest, both), config()).micro_batches(MICRO_BATCHES).schedule(schedule).build().unwrap()
}

/// Trains a model whose loss has two terms as a pipeline, and returns the bits of its parameters and the reports of the
/// steps.
fn trained(stages: usize, schedule: impl Schedule + 'static) -> (Vec<u32>, Vec<StepReport>) {
    let mut pipeline = pipeline(stages, schedule);
    let step = |(input, target)| pipeline.step(Batch::new(input, target)).unwrap();
    let reports = batches().into_iter().map(step).collect();
    let mut modules = pipeline.into_modules();
    let mut found: Vec<_> =
        (0..stages - 1).flat_map(|stage| bits(&modules.take::<Vec<Layer>>(stage).unwrap())).collect();
    found.extend(bits(&modules.take::<(Vec<Layer>, Both)>(stages - 1).unwrap()));
    (found, reports)
}

/// Trains a model whose loss has two terms in a loop without Stageline, with every term divided by its own weight.
/// Returns the parameters, and the loss terms of every step.
fn plainly() -> (Vec<f32>, Vec<[f64; 2]>) {
    #[derive(Module, Debug)]
    struct Whole {
        layers: Vec<Layer>,
        linear: Linear,
    }
    let (layers, Both { linear }) = parts();
    let mut model = Whole { layers, linear };
    let mut optimizer: ModuleOptimizer = AdamWConfig::new().init();
    let mut losses = Vec::new();
    for (input, (wanted, error_mask, size_mask)) in batches() {
        let total = |mask: &Tensor<2>| mask.clone().sum().into_scalar::<f64>();
        let weights = [total(&error_mask), total(&size_mask)];
        let (mut sum, mut loss) = (GradientsAccumulator::new(), [0.0; 2]);
        for rows in pieces(ROWS, MICRO_BATCHES) {
            let part = |tensor: &Tensor<2>| tensor.clone().slice_dim(0, rows.clone()).autodiff();
            let hidden = model.layers.iter().fold(part(&input), |hidden, layer| layer.linear.forward(hidden).tanh());
            let [first, second] =
                sums(model.linear.forward(hidden), (part(&wanted), part(&error_mask), part(&size_mask)));
            loss[0] += first.clone().into_scalar::<f64>() / weights[0];
            loss[1] += second.clone().into_scalar::<f64>() / weights[1];
            let gradients = (first / weights[0] + second / weights[1]).backward();
            sum.accumulate(&model, GradientsParams::from_grads(gradients, &model));
        }
        losses.push(loss);
        model = optimizer.step(LEARNING_RATE, model, sum.grads());
    }
    (bits(&model).into_iter().map(f32::from_bits).collect(), losses)
}

#[test]
fn every_term_is_divided_by_its_own_weight() {
    let (plain, losses) = plainly();
    let (found, reports) = trained(1, OneFOneB);
    for (report, expected) in reports.iter().zip(losses) {
        for (LossTerm { loss, .. }, expected) in report.terms.iter().zip(expected) {
            assert!((loss - expected).abs() < 1e-6, "{loss} against {expected}");
        }
        assert_eq!(report.loss, report.terms[0].loss + report.terms[1].loss);
        assert_eq!(report.weight(), report.terms[0].weight);
        assert_ne!(report.terms[0].weight, report.terms[1].weight);
    }
    for (found, plain) in found.iter().map(|bits| f32::from_bits(*bits)).zip(plain) {
        assert!((found - plain).abs() < 1e-6, "{found} against {plain}");
    }
}

#[test]
fn the_cut_changes_no_bit_of_a_loss_with_two_terms() {
    let (reference, _) = trained(1, OneFOneB);
    for stages in [2, 4] {
        assert!(trained(stages, OneFOneB).0 == reference && trained(stages, GPipe).0 == reference, "P={stages}");
        assert!(trained(stages, EagerOneFOneB).0 == reference, "P={stages}");
    }
}

/// Tests loss terms whose weight is 0: if one of two terms has no weight, the other term is the whole loss; if neither
/// has any, the step is skipped.
#[test]
fn a_term_without_weight_counts_nothing() {
    let (input, (wanted, error_mask, _)) = batches().remove(0);
    let none = error_mask.zeros_like();
    let mut both = pipeline(2, OneFOneB);
    let report = both.step(Batch::new(input.clone(), (wanted.clone(), error_mask.clone(), none.clone()))).unwrap();
    assert_eq!(report.terms[1], LossTerm { loss: 0.0, weight: 0.0 });
    assert_eq!(report.loss, report.terms[0].loss);
    assert!(matches!(report.update, Update::Stepped { gradient_norm, .. } if gradient_norm > 0.0));
    assert_eq!(both.step(Batch::new(input, (wanted, none.clone(), none))).unwrap().update, Update::NoWeight);
}

/// A last stage for tests of errors. The number of its loss terms depends on the targets, which is an error.
#[derive(Module, Debug)]
struct Fickle {
    linear: Linear,
}

impl Stage for Fickle {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        self.linear.forward(input)
    }
}

impl LossStage for Fickle {
    type Target = Tensor<2>;

    fn loss(&self, output: Tensor<2>, wanted: Tensor<2>) -> Tensor<1> {
        (output - wanted).sum()
    }

    fn weight(&self, wanted: &Tensor<2>) -> Weight {
        if wanted.clone().sum().into_scalar::<f64>() > 2.0 { [1.0, 1.0].into() } else { 1.0.into() }
    }
}

#[test]
fn a_number_of_terms_that_changes_is_refused() {
    let linear = Mlp::new(0, 1, 1).error.linear;
    let mut pipeline = Pipeline::builder().loss(Fickle { linear }, config()).micro_batches(2).build().unwrap();
    let column = |values: [f32; 2]| Tensor::<1>::from_floats(values, &crate::mlp::device()).reshape([2, 1]);
    let error = pipeline.step(Batch::new(column([1.0, 1.0]), column([1.0, 3.0]))).unwrap_err();
    assert!(matches!(error, StepError::Batch(BatchError::Terms { micro_batch: 1, found: 2, terms: 1 })), "{error}");
}

/// A last stage whose second loss term is switched off by a weight of 0, although its sum is not 0.
#[derive(Module, Debug)]
struct SecondOff {
    linear: Linear,
}

impl Stage for SecondOff {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        self.linear.forward(input)
    }
}

impl LossStage for SecondOff {
    type Target = Target;

    fn loss(&self, output: Tensor<2>, target: Target) -> Tensor<1> {
        Tensor::cat(sums(output, target).to_vec(), 0)
    }

    fn weight(&self, (_, error_mask, _): &Target) -> Weight {
        [error_mask.clone().sum().into_scalar::<f64>(), 0.0].into()
    }
}

#[test]
fn a_term_of_weight_0_is_reported_as_it_is_trained_on() {
    let (_, Both { linear }) = parts();
    let chain = Pipeline::builder().loss(SecondOff { linear }, config());
    let mut pipeline = chain.micro_batches(MICRO_BATCHES).build().unwrap();
    let (input, target) = batches().remove(0);
    let report = pipeline.step(Batch::new(input, target)).unwrap();
    assert_eq!((report.terms[1].loss, report.loss), (0.0, report.terms[0].loss));
    assert!(report.loss.is_finite() && report.loss > 0.0, "{}", report.loss);
}
