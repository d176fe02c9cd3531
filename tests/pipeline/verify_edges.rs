//! Tests of verification (the comparison of a training with one full batch on one device) where its diagnosis could be
//! wrong: small gradients, large losses, several loss terms and random numbers.

use std::sync::atomic::{AtomicU64, Ordering};

use burn::module::Module;
use burn::nn::BatchNormConfig;
use burn::optim::SgdConfig;
use burn::tensor::Tensor;
use stageline::nn::Linear;
use stageline::verify::{Cause, Trial, VerifyError, Whose};
use stageline::{
    AccumulatedBatchNorm, Batch, BoxError, DynamicLossScale, LossScale, LossStage, LossTerm, OnNonFinite,
    ParameterGradient, Pipeline, PipelineBuilder, Precision, Samples, Stage, StageConfig, Verify, Weight,
};

use crate::mlp::{Error, Layer, Mlp, Target, config, device, pieces};
use crate::verify::{MICRO_BATCHES, MlpBatch, MlpBuilder, ROWS, WIDTH, batch, held_out, model};

/// A stage for tests of verification with a residual branch whose gradients are small. The branch may have a batch
/// norm, or a deliberate fault: it gets no gradients of the last micro-batch.
#[derive(Module, Debug)]
struct Weak {
    layer: Layer,
    norm: Option<AccumulatedBatchNorm>,
    #[module(skip)]
    drops: bool,
}

impl Stage for Weak {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        let branch = self.layer.forward(input.clone()) * 5e-4;
        let branch = if let Some(norm) = &self.norm { norm.forward(branch) * 5e-4 } else { branch };
        let last = |samples: Samples| samples.first + samples.count == ROWS && samples.count < ROWS;
        let branch = if self.drops && Samples::current().is_some_and(last) { branch.detach() } else { branch };
        input + branch
    }
}

fn weak(norm: bool, drops: bool) -> MlpBuilder {
    let Mlp { mut layers, error } = model();
    let norm = norm.then(|| BatchNormConfig::new(WIDTH).init(&device().autodiff()).into());
    let middle = Weak { layer: layers.remove(1), norm, drops };
    let chain = Pipeline::builder().stage(layers, config()).stage(middle, config());
    chain.loss(error, config()).micro_batches(MICRO_BATCHES)
}

#[test]
fn faults_of_small_gradients_are_diagnosed_by_name() {
    let cause = |norm, drops| Verify::new().steps(4).pipeline(|| weak(norm, drops), batch, &held_out()).unwrap().cause;
    assert_eq!(cause(false, false), None);
    assert_eq!(cause(false, true), Some(Cause::MissingMicroBatch { stage: 1, micro_batch: MICRO_BATCHES - 1 }));
    assert_eq!(cause(true, false), Some(Cause::BatchNorm { stage: 1, path: "norm.norm".to_owned() }));
}

#[test]
fn large_losses_are_compared_relatively() {
    let large = |step: usize| {
        let (input, (wanted, mask)) = Mlp::batch(ROWS, WIDTH, true, 300 + step as u64);
        Batch::new(input, (wanted * 1000.0, mask))
    };
    let build = || model().split(3, &config()).micro_batches(MICRO_BATCHES);
    let verification = Verify::new().steps(8).pipeline(build, large, &[large(1000)]).unwrap();
    assert!(verification.passes(), "{verification}");
}

/// A pipeline that a test verifies as if it were a user's own training loop. If `nan` is set, one of its gradients is
/// NaN.
struct Own {
    pipeline: Pipeline<Tensor<2>, Tensor<2>, Target>,
    nan: bool,
}

impl Trial<Tensor<2>, Target> for Own {
    fn gradients(&mut self, batch: MlpBatch) -> Result<Vec<ParameterGradient>, BoxError> {
        let mut gradients = self.pipeline.gradients(batch)?;
        if self.nan {
            gradients[0].applied.fill(f32::NAN);
        }
        Ok(gradients)
    }

    fn step(&mut self, batch: MlpBatch) -> Result<f64, BoxError> {
        Ok(self.pipeline.step(batch)?.loss)
    }

    fn evaluate(&mut self, batch: MlpBatch) -> Result<Vec<LossTerm>, BoxError> {
        Ok(self.pipeline.eval(batch)?.terms)
    }
}

fn at_rate(rate: f64) -> MlpBuilder {
    let stage = StageConfig::new(device(), SgdConfig::new().init(), rate);
    model().split(3, &stage).micro_batches(MICRO_BATCHES)
}

#[test]
fn without_a_validation_set_the_training_losses_are_compared() {
    let trial = |rate| Own { pipeline: at_rate(rate).build().unwrap(), nan: false };
    let verify = Verify::new().steps(10);
    assert!(verify.trial(trial(0.5), || at_rate(0.5), batch, &[]).unwrap().passes());
    let verification = verify.trial(trial(0.02), || at_rate(0.5), batch, &[]).unwrap();
    assert_eq!(verification.cause, Some(Cause::AfterTheGradients { step: Some(1) }), "{verification}");
}

#[test]
fn a_gradient_with_nan_fails_verification() {
    let trial = Own { pipeline: at_rate(0.5).build().unwrap(), nan: true };
    let verification = Verify::new().steps(2).trial(trial, || at_rate(0.5), batch, &held_out()).unwrap();
    assert!(!verification.passes() && verification.worst().unwrap().relative.is_nan(), "{verification}");
    // A prediction that is right in all other gradients does not explain NaN.
    assert!(matches!(verification.cause, Some(Cause::Unknown { stage: 0, .. })), "{verification}");
}

/// Tests that steps which are skipped in both runs do not fail a verification: a step with NaN in its input, and a last
/// step whose targets are all masked.
#[test]
fn steps_that_both_runs_skip_agree() {
    let skipping = || at_rate(0.5).on_non_finite(OnNonFinite::Skip);
    let with_nan = |step: usize| {
        let (input, target) = Mlp::batch(ROWS, WIDTH, true, 300 + step as u64);
        Batch::new(if step == 1 { input * f32::NAN } else { input }, target)
    };
    let verification = Verify::new().steps(4).pipeline(skipping, with_nan, &held_out()).unwrap();
    assert!(verification.passes() && verification.losses[1].reference.is_nan(), "{verification}");

    let masked = |step: usize| {
        let (input, (wanted, mask)) = Mlp::batch(ROWS, WIDTH, true, 300 + step as u64);
        Batch::new(input, (wanted, if step == 3 { mask * 0.0 } else { mask }))
    };
    let verification = Verify::new().steps(4).pipeline(|| at_rate(0.5), masked, &[]).unwrap();
    assert!(verification.passes() && verification.losses[3].configured.is_nan(), "{verification}");
}

/// Tests that steps which overflow at the first loss scales are repeated, so that both runs make the same number of
/// steps.
#[test]
fn overflows_at_the_first_loss_scales_are_no_steps() {
    let scale = DynamicLossScale { initial: 2.0_f64.powi(30), ..DynamicLossScale::default() };
    let half = || at_rate(0.5).precision(Precision::F16).loss_scale(LossScale::Dynamic(scale));
    let verification = Verify::new().steps(20).pipeline(half, |_| batch(0), &[]).unwrap();
    assert!(verification.passes(), "{verification}");
    // A run that had not stepped yet would still have the first loss.
    let [first, last] = [0, 19].map(|step| verification.losses[step].reference);
    assert!(first - last > 2.0 * verification.bars.loss * first.max(1.0), "{verification}");
}

/// A last stage for tests of verification, whose loss has two terms. The value `FAULT` chooses a deliberate fault. With
/// 1, the second term is a mean instead of a sum. With 1 or 2, the weight of the second term is always 1.
#[derive(Module, Debug)]
struct Two<const FAULT: usize> {
    linear: Linear,
}

type TwoMasks = (Tensor<2>, Tensor<2>, Tensor<2>);

impl<const FAULT: usize> Stage for Two<FAULT> {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        self.linear.forward(input)
    }
}

impl<const FAULT: usize> LossStage for Two<FAULT> {
    type Target = TwoMasks;

    fn loss(&self, output: Tensor<2>, (wanted, first, second): TwoMasks) -> Tensor<1> {
        let squares = |rows: Tensor<2>| (rows.clone() * rows).sum();
        let size = squares(output.clone() * second.clone());
        let size = if FAULT == 1 { size / second.sum() } else { size };
        Tensor::cat(vec![squares((output - wanted) * first), size], 0)
    }

    fn weight(&self, (_, first, second): &TwoMasks) -> Weight {
        let count = |mask: &Tensor<2>| mask.clone().sum().into_scalar::<f64>();
        if FAULT == 0 { [count(first), count(second)].into() } else { [count(first), 1.0].into() }
    }
}

fn two_masks(step: usize) -> Batch<Tensor<2>, TwoMasks> {
    let (input, (wanted, first)) = Mlp::batch(ROWS, WIDTH, true, 300 + step as u64);
    // At least one row counts in every micro-batch.
    let second = pieces(ROWS, MICRO_BATCHES)
        .into_iter()
        .fold(first.clone(), |mask, rows| mask.slice_fill([rows.start..rows.start + 1, 0..1], 1.0));
    Batch::new(input, (wanted, first, second))
}

fn two_terms<const FAULT: usize>() -> PipelineBuilder<Tensor<2>, Tensor<2>, TwoMasks> {
    let Mlp { layers, error } = model();
    let chain = Pipeline::builder().stage(layers, config());
    chain.loss(Two::<FAULT> { linear: error.linear }, config()).micro_batches(MICRO_BATCHES)
}

#[test]
fn each_term_of_a_loss_is_verified() {
    let verify = Verify::new().steps(3);
    assert_eq!(verify.pipeline(two_terms::<0>, two_masks, &[two_masks(9)]).unwrap().cause, None);
    let mean = verify.pipeline(two_terms::<1>, two_masks, &[two_masks(9)]).unwrap();
    assert_eq!(mean.cause, Some(Cause::MeanOfMeans(Whose::Loss)), "{mean}");
    let weighs_one = verify.pipeline(two_terms::<2>, two_masks, &[two_masks(9)]).unwrap();
    let factor = 1.0 / MICRO_BATCHES as f64;
    assert_eq!(weighs_one.cause, Some(Cause::MissedDivision { factor }), "{weighs_one}");

    let (input, (wanted, mask)) = Mlp::batch(ROWS, WIDTH, true, 7);
    let without_first = Batch::new(input, (wanted, mask.zeros_like(), mask));
    let verification = verify.pipeline(two_terms::<0>, two_masks, &[without_first]).unwrap();
    assert!(verification.passes() && verification.validation.unwrap().reference > 0.0, "{verification}");
}

/// A layer for tests of verification that masks its output at random. Its random generator is shared by all threads, as
/// that of burn's dropout is. It is the test's own, because other tests seed burn's generator.
#[derive(Module, Debug)]
struct Noisy {
    layer: Layer,
}

impl Stage for Noisy {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        static DRAWN: AtomicU64 = AtomicU64::new(0);
        let output = self.layer.forward(input);
        let (_, (mask, _)) = Mlp::batch(output.dims()[0], WIDTH, false, DRAWN.fetch_add(1, Ordering::Relaxed));
        output * mask.greater_elem(-0.2).float().autodiff()
    }
}

#[test]
fn random_draws_are_distinguished_from_a_missing_seed() {
    let build = || {
        let Mlp { layers, error } = model();
        let noisy: Vec<_> = layers.into_iter().map(|layer| Noisy { layer }).collect();
        Pipeline::builder().stage(noisy, config()).loss(error, config()).micro_batches(MICRO_BATCHES)
    };
    let verification = Verify::new().steps(2).pipeline(build, batch, &held_out()).unwrap();
    assert_eq!(verification.cause, Some(Cause::DrawsRandomNumbers), "{verification}");
}

/// A last stage for tests of verification with a deliberate fault: the loss has a regulariser, which is added once per
/// micro-batch instead of once per batch.
#[derive(Module, Debug)]
struct Regularised {
    error: Error,
}

impl Stage for Regularised {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        self.error.forward(input)
    }
}

impl LossStage for Regularised {
    type Target = Target;

    fn loss(&self, output: Tensor<2>, target: Target) -> Tensor<1> {
        let weights = self.error.linear.weight.val();
        self.error.loss(output, target) + (weights.clone() * weights).sum() * 0.01
    }

    fn weight(&self, target: &Target) -> Weight {
        self.error.weight(target)
    }
}

#[test]
fn a_regulariser_that_is_added_once_a_micro_batch_is_diagnosed() {
    let build = || {
        let Mlp { layers, error } = model();
        let chain = Pipeline::builder().stage(layers, config());
        chain.loss(Regularised { error }, config()).micro_batches(MICRO_BATCHES)
    };
    let verification = Verify::new().steps(2).pipeline(build, batch, &held_out()).unwrap();
    assert_eq!(verification.cause, Some(Cause::CoupledSamples));
    assert!(verification.to_string().contains("once a micro-batch"), "{verification}");
}

/// Tests the verification of batches that the caller has divided into micro-batches. Such micro-batches cannot be
/// joined to a full batch. The reference training must therefore use the same number of micro-batches.
#[test]
fn batches_cut_by_hand_need_a_reference_with_micro_batches() {
    let by_hand = |step| Batch::from_micro_batches(batch(step).into_micro_batches(MICRO_BATCHES).unwrap());
    let build = || model().split(2, &config()).micro_batches(MICRO_BATCHES);
    let error = Verify::new().steps(2).pipeline(build, by_hand, &[]).unwrap_err();
    assert!(matches!(error, VerifyError::CutByHand { given: MICRO_BATCHES }), "{error}");
    let verify = Verify::new().steps(2).reference_micro_batches(MICRO_BATCHES);
    assert!(verify.pipeline(build, by_hand, &[]).unwrap().passes());
}
