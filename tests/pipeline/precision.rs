//! Tests of training in bf16 and f16: the pipeline gives the same bits as a training loop without Stageline, keeps
//! master weights and gradient sums in f32, and scales the loss.

use burn::module::{Module, Param};
use burn::optim::{AdamWConfig, GradientsAccumulator, GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::{DType, FloatDType, Tensor};
use stageline::nn::Linear;
use stageline::schedule::{EagerOneFOneB, GPipe, OneFOneB, Schedule};
use stageline::{
    AccumulatedBatchNorm, Batch, BuildError, Clip, Culprit, DynamicLossScale, LossScale, LossStage, OnNonFinite,
    Origin, Pipeline, PipelineBuilder, Precision, Replica, Stage, StageConfig, StepError, StepReport, Update, Weight,
};

use crate::mlp::{Error, LEARNING_RATE, Layer, Mlp, Target, bits, config, device, pieces};

const WIDTH: usize = 8;
const ROWS: usize = 11;
const MICRO_BATCHES: usize = 3;
const LOWER: [(Precision, FloatDType); 2] = [(Precision::Bf16, FloatDType::BF16), (Precision::F16, FloatDType::F16)];

fn batches() -> Vec<(Tensor<2>, Target)> {
    (0..3).map(|step| Mlp::batch(ROWS, WIDTH, true, 40 + step)).collect()
}

fn model() -> Mlp {
    Mlp::new(3, WIDTH, 14)
}

fn linears(model: &Mlp) -> Vec<&Linear> {
    model.layers.iter().map(|layer| &layer.linear).chain([&model.error.linear]).collect()
}

/// Returns a copy of a linear layer whose parameters are rounded to the type `dtype`.
fn rounded(linear: &Linear, dtype: FloatDType) -> Linear {
    fn leaf<const D: usize>(param: &Param<Tensor<D>>, dtype: FloatDType) -> Param<Tensor<D>> {
        Param::initialized(param.id, param.val().inner().cast(dtype).autodiff().require_grad())
    }
    Linear { weight: leaf(&linear.weight, dtype), bias: linear.bias.as_ref().map(|bias| leaf(bias, dtype)) }
}

/// Trains a model in mixed precision on one thread, in burn without Stageline, and returns the bits of the master
/// weights.
fn train_plainly(mut model: Mlp, dtype: FloatDType, scale: f64) -> Vec<u32> {
    let mut optimizer: ModuleOptimizer = AdamWConfig::new().init();
    for (input, (wanted, mask)) in batches() {
        let total = mask.clone().sum().into_scalar::<f64>();
        let mut sum = GradientsAccumulator::new();
        let copies: Vec<_> = linears(&model).into_iter().map(|linear| rounded(linear, dtype)).collect();
        let (last, layers) = copies.split_last().unwrap();
        for rows in pieces(ROWS, MICRO_BATCHES) {
            let part = |tensor: &Tensor<2>| tensor.clone().slice_dim(0, rows.clone()).autodiff();
            let hidden = layers.iter().fold(part(&input).cast(dtype), |hidden, layer| layer.forward(hidden).tanh());
            let output = last.forward(hidden).cast(FloatDType::F32);
            let difference = (output - part(&wanted)) * part(&mask);
            let loss = (difference.clone() * difference).sum() / 2.0;
            let mut gradients = (loss / total * scale).backward();
            let mut widened = GradientsParams::new();
            for copy in &copies {
                let (weight, bias) = (&copy.weight, copy.bias.as_ref().unwrap());
                widened.register(weight.id, weight.grad_remove(&mut gradients).unwrap().cast(FloatDType::F32));
                widened.register(bias.id, bias.grad_remove(&mut gradients).unwrap().cast(FloatDType::F32));
            }
            sum.accumulate(&model, widened);
        }
        let (mut gradients, mut unscaled) = (sum.grads(), GradientsParams::new());
        for linear in linears(&model) {
            let (weight, bias) = (linear.weight.id, linear.bias.as_ref().unwrap().id);
            unscaled.register(weight, gradients.remove::<2>(weight).unwrap() / scale);
            unscaled.register(bias, gradients.remove::<1>(bias).unwrap() / scale);
        }
        model = optimizer.step(LEARNING_RATE, model, unscaled);
    }
    model.bits()
}

fn train_cut(builder: PipelineBuilder<Tensor<2>, Tensor<2>, Target>) -> (Vec<u32>, Vec<StepReport>) {
    let mut pipeline = builder.micro_batches(MICRO_BATCHES).build().unwrap();
    let step = |(input, target)| pipeline.step(Batch::new(input, target)).unwrap();
    let reports = batches().into_iter().map(step).collect();
    (Mlp::join(pipeline.into_modules()).bits(), reports)
}

const SCHEDULES: [&(dyn Schedule + Sync); 3] = [&GPipe, &OneFOneB, &EagerOneFOneB];

#[test]
fn lower_precisions_give_the_bits_of_the_plain_loop() {
    for (precision, dtype) in LOWER {
        for scale in [1.0, 1024.0] {
            let plain = train_plainly(model(), dtype, scale);
            for (stages, schedule) in [(1, SCHEDULES[1]), (2, SCHEDULES[0]), (2, SCHEDULES[1]), (4, SCHEDULES[2])] {
                for capacity in [1, 3] {
                    let builder = model().split(stages, &config()).schedule(schedule).channel_capacity(capacity);
                    let builder = builder.precision(precision).loss_scale(LossScale::Fixed(scale));
                    let case = format!("{precision} scale={scale} P={stages} {} {capacity}", schedule.name());
                    assert!(train_cut(builder).0 == plain, "{case}");
                }
            }
        }
    }
}

/// Tests that a loss scale which is a power of two changes no bit of training in f32, with or without clipping.
/// Gradients are divided by the scale before their norm is taken.
#[test]
fn a_loss_scale_changes_no_bit_in_f32() {
    for clip in [None, Some(Clip::GlobalNorm(0.05)), Some(Clip::Value(0.01))] {
        let train = |stages: usize, schedule, scale: LossScale| {
            let builder = model().split(stages, &config()).schedule(schedule).loss_scale(scale);
            let (bits, reports) = train_cut(if let Some(clip) = clip { builder.clip(clip) } else { builder });
            (bits, reports.into_iter().map(|report| report.update).collect::<Vec<_>>())
        };
        let reference = train(1, &OneFOneB as &(dyn Schedule + Sync), LossScale::Fixed(1.0));
        for (stages, schedule) in [1, 2, 4].into_iter().flat_map(|stages| SCHEDULES.map(|schedule| (stages, schedule)))
        {
            let dynamic = DynamicLossScale { growth_interval: 1, ..DynamicLossScale::default() };
            for scale in [LossScale::Fixed(0.125), LossScale::Dynamic(dynamic)] {
                assert!(train(stages, schedule, scale) == reference, "P={stages} {} {scale:?}", schedule.name());
            }
        }
    }
}

/// Trains a small model to imitate another one in the given precision. Returns the loss of the first step, and the mean
/// loss of the last ten steps.
fn loss_after(steps: u64, precision: Precision) -> (f64, f64) {
    let teacher = Mlp::new(1, WIDTH, 77);
    let batch = |seed: u64| {
        let (input, (_, mask)) = Mlp::batch(32, WIDTH, false, 5000 + seed);
        let hidden = teacher.layers[0].linear.valid().forward(input.clone() * 2.0).tanh();
        (input * 2.0, (teacher.error.linear.valid().forward(hidden), mask))
    };
    let mut pipeline =
        Mlp::new(1, WIDTH, 78).split(2, &config()).micro_batches(4).precision(precision).build().unwrap();
    let mut step = |seed| {
        let (input, target) = batch(seed);
        pipeline.step(Batch::new(input, target)).unwrap().loss
    };
    let first = step(0);
    let last = (1..steps).map(&mut step).skip(steps as usize - 11).sum::<f64>() / 10.0;
    (first, last)
}

#[test]
fn every_precision_converges() {
    let (first, full) = loss_after(400, Precision::Full);
    assert!(full < 0.01 * first, "f32: {first} to {full}");
    for (precision, _) in LOWER {
        let (_, last) = loss_after(400, precision);
        assert!(last < 0.02 * first && last < 1.5 * full, "{precision}: {first} to {last}, f32 to {full}");
    }
}

/// A last stage for tests of precision, with one parameter whose gradient is -1 for every sample.
#[derive(Module, Debug)]
struct One {
    value: Param<Tensor<1>>,
}

impl Stage for One {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        input * self.value.val().unsqueeze()
    }
}

impl LossStage for One {
    type Target = Tensor<2>;

    fn loss(&self, output: Tensor<2>, target: Tensor<2>) -> Tensor<1> {
        -(output.cast(FloatDType::F32) * target).sum()
    }

    fn weight(&self, _: &Tensor<2>) -> Weight {
        1.0.into()
    }
}

fn one() -> One {
    One { value: Param::from_tensor(Tensor::zeros([1], &device().autodiff())) }
}

/// Tests that 512 gradients of 1/512 add up to 1 with precision bf16. If they were summed in bf16, the sum would stop
/// at 1/2, because 1/2 + 1/512 rounds to 1/2.
#[test]
fn gradients_in_bf16_are_summed_in_f32() {
    const M: usize = 512;
    let ones = Tensor::<2>::ones([M, 1], &device());
    let share = Tensor::<1>::from_floats([1.0 / M as f32], &device()).cast(FloatDType::BF16);
    let stalled = (0..M).fold(Tensor::<1>::zeros([1], &device()).cast(FloatDType::BF16), |sum, _| sum + share.clone());
    assert_eq!(stalled.into_scalar::<f64>(), 0.5);

    let stage = StageConfig::new(device(), SgdConfig::new().init(), 1.0);
    let builder = Pipeline::builder().loss(one(), stage).micro_batches(M).precision(Precision::Bf16);
    let mut pipeline = builder.build().unwrap();
    pipeline.step(Batch::new(ones.clone(), ones)).unwrap();
    let moved = pipeline.into_modules().take::<One>(0).unwrap().value.val();
    assert_eq!((moved.dtype(), moved.into_scalar::<f64>()), (DType::F32, 1.0));
}

#[test]
fn updates_too_small_for_bf16_move_the_master_weights() {
    let stage = StageConfig::new(device(), SgdConfig::new().init(), 1e-4);
    let one = One { value: Param::from_tensor(Tensor::ones([1], &device().autodiff())) };
    let mut pipeline = Pipeline::builder().loss(one, stage).precision(Precision::Bf16).build().unwrap();
    let sample = Tensor::<2>::ones([1, 1], &device());
    (0..100).for_each(|_| drop(pipeline.step(Batch::new(sample.clone(), sample.clone())).unwrap()));
    let moved = pipeline.into_modules().take::<One>(0).unwrap().value.val().into_scalar::<f64>();
    assert!((moved - 1.01).abs() < 1e-5, "{moved}");
}

/// Tests gradients that are too small for f16. Without a loss scale they become zeros. The default for f16, a dynamic
/// loss scale, preserves them.
#[test]
fn gradients_in_f16_underflow_without_the_default_loss_scale() {
    let zeros = |scale: Option<LossScale>| {
        let (input, (_, mask)) = Mlp::batch(ROWS, WIDTH, false, 3);
        let builder =
            model().split(2, &config()).micro_batches(MICRO_BATCHES).precision(Precision::F16).health_every(1);
        let builder = if let Some(scale) = scale { builder.loss_scale(scale) } else { builder };
        let mut pipeline = builder.build().unwrap();
        // The wanted output is almost the model's output, so that gradients are small.
        let output = {
            let parts: Vec<_> = linears(&model()).into_iter().map(|linear| rounded(linear, FloatDType::F16)).collect();
            let (last, layers) = parts.split_last().unwrap();
            let start = input.clone().autodiff().cast(FloatDType::F16);
            let hidden = layers.iter().fold(start, |hidden, layer| layer.forward(hidden).tanh());
            last.forward(hidden).cast(FloatDType::F32).inner()
        };
        let report = pipeline.step(Batch::new(input, (output + 2e-7, mask))).unwrap();
        (report.health.iter().map(|health| health.zeros).sum::<f64>() / report.health.len() as f64, report.loss_scale)
    };
    let (without, _) = zeros(Some(LossScale::Fixed(1.0)));
    let (with, scale) = zeros(None);
    assert_eq!(scale, DynamicLossScale::default().initial);
    assert!(without > 0.9 && with < 0.1, "zeros without a scale {without}, with {with}");
}

/// Tests a loss scale that is too large: all stages skip the step, and the loss scale falls until no gradient
/// overflows. Then the loss scale rises again.
#[test]
fn an_overflow_is_skipped_by_all_stages_and_lowers_the_scale() {
    let dynamic = DynamicLossScale { initial: 2.0_f64.powi(24), growth_interval: 2, ..DynamicLossScale::default() };
    let train = |stages: usize| {
        let builder = model().split(stages, &config()).precision(Precision::F16).micro_batches(MICRO_BATCHES);
        let mut pipeline = builder.loss_scale(LossScale::Dynamic(dynamic)).build().unwrap();
        let (input, target) = Mlp::batch(ROWS, WIDTH, false, 9);
        let mut reports = Vec::new();
        while reports.iter().filter(|report: &&StepReport| report.update.stepped()).count() < 4 {
            reports.push(pipeline.step(Batch::new(input.clone(), target.clone())).unwrap());
            assert!(reports.len() < 40, "it does not end");
        }
        (Mlp::join(pipeline.into_modules()).bits(), reports)
    };
    let (reference, reports) = train(1);
    let first = reports.iter().position(|report| report.update.stepped()).unwrap();
    assert!(first > 0, "nothing overflows");
    for (skipped, report) in reports[..first].iter().enumerate() {
        let Update::Overflow { loss_scale, culprit } = report.update else { panic!("{:?}", report.update) };
        assert_eq!(loss_scale, dynamic.initial / 2.0_f64.powi(skipped as i32));
        assert!(matches!(culprit, Some(Culprit { origin: Origin::Backward, .. })), "{culprit:?}");
        assert!(report.stages.iter().all(|stage| stage.learning_rate.is_none()));
    }
    // The scale rises after two good steps.
    let after: Vec<_> = reports[first..].iter().map(|report| report.loss_scale).collect();
    assert_eq!((after[1], after[2]), (after[0], 2.0 * after[0]));

    // The first step that is made is the same as in a pipeline without the skipped steps.
    let builder = model().split(1, &config()).precision(Precision::F16).micro_batches(MICRO_BATCHES);
    let mut unharmed = builder.loss_scale(LossScale::Fixed(reports[first].loss_scale)).build().unwrap();
    let (input, target) = Mlp::batch(ROWS, WIDTH, false, 9);
    let unharmed = unharmed.step(Batch::new(input, target)).unwrap();
    assert_eq!(unharmed.update, reports[first].update);

    for stages in [2, 4] {
        let (bits, others) = train(stages);
        assert!(bits == reference, "P={stages}");
        let scales = |reports: &[StepReport]| reports.iter().map(|report| report.loss_scale).collect::<Vec<_>>();
        assert_eq!(scales(&others), scales(&reports), "P={stages}");
    }
}

/// Tests an overflow in a forward, which a lower loss scale cannot prevent: the pipeline stops or skips the step, as
/// the setting `on_non_finite` says.
#[test]
fn a_non_finite_forward_is_left_to_the_policy() {
    let dynamic = DynamicLossScale { initial: 4.0, ..DynamicLossScale::default() };
    let build = |policy| {
        let builder = model().split(2, &config()).micro_batches(MICRO_BATCHES).on_non_finite(policy);
        builder.loss_scale(LossScale::Dynamic(dynamic)).build().unwrap()
    };
    let (input, (wanted, mask)) = Mlp::batch(ROWS, WIDTH, false, 9);
    let bad = || Batch::new(input.clone(), (wanted.clone() * f32::MAX, mask.clone()));
    let report = build(OnNonFinite::Skip).step(bad()).unwrap();
    assert!(matches!(report.update, Update::NonFinite { culprit: Some(Culprit { origin: Origin::Forward, .. }) }));
    assert!(matches!(build(OnNonFinite::Stop).step(bad()), Err(StepError::NonFinite { .. })));
}

/// Tests a step in which one micro-batch overflows and the input of another has a NaN: the overflow must not hide the
/// NaN.
#[test]
fn a_nan_input_beside_an_overflow_is_left_to_the_policy() {
    let scale = LossScale::Dynamic(DynamicLossScale { initial: 2.0_f64.powi(40), ..DynamicLossScale::default() });
    let builder = model().split(2, &config()).micro_batches(MICRO_BATCHES).precision(Precision::F16);
    let mut pipeline = builder.loss_scale(scale).build().unwrap();
    let (input, target) = Mlp::batch(ROWS, WIDTH, false, 9);
    let bad = input.slice_fill([ROWS - 1..ROWS, 0..1], f32::NAN);
    let error = pipeline.step(Batch::new(bad, target)).unwrap_err();
    let culprit =
        Culprit { replica: Replica::default(), stage: 0, micro_batch: MICRO_BATCHES - 1, origin: Origin::Input };
    assert!(matches!(error, StepError::NonFinite { culprit: Some(found), .. } if found == culprit), "{error}");
}

#[test]
fn a_loss_in_a_low_precision_is_refused() {
    /// A last stage for tests of errors. It sums the loss in the precision of its input instead of f32, which is an
    /// error.
    #[derive(Module, Debug)]
    struct Careless {
        linear: Linear,
    }
    impl Stage for Careless {
        type Input = Tensor<2>;
        type Output = Tensor<2>;

        fn forward(&self, input: Tensor<2>) -> Tensor<2> {
            self.linear.forward(input)
        }
    }
    impl LossStage for Careless {
        type Target = ();

        fn loss(&self, output: Tensor<2>, (): ()) -> Tensor<1> {
            output.sum()
        }

        fn weight(&self, (): &()) -> Weight {
            1.0.into()
        }
    }
    let careless = Careless { linear: model().error.linear };
    let mut pipeline = Pipeline::builder().loss(careless, config()).precision(Precision::Bf16).build().unwrap();
    let error = pipeline.step(Batch::new(batches().remove(0).0, ())).unwrap_err().to_string();
    assert!(error.contains("the loss is summed in BF16") && error.contains(".cast(FloatDType::F32)"), "{error}");
}

/// A stage for tests of precision: a layer followed by an `AccumulatedBatchNorm`, the batch norm of this library.
#[derive(Module, Debug)]
struct Normed {
    layer: Layer,
    norm: AccumulatedBatchNorm,
}

impl Stage for Normed {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        self.norm.forward(self.layer.forward(input))
    }
}

#[test]
fn batch_norms_stay_in_full_precision() {
    let norm = || burn::nn::BatchNormConfig::new(WIDTH).init(&device().autodiff());
    let Mlp { layers, error } = Mlp::new(1, WIDTH, 2);
    let layer = layers.into_iter().next().unwrap();
    let normed = Normed { layer: layer.clone(), norm: norm().into() };
    let statistics = |precision| {
        let chain = Pipeline::builder().stage(normed.clone(), config()).loss(error.clone(), config());
        let mut pipeline = chain.precision(precision).micro_batches(MICRO_BATCHES).build().unwrap();
        for (input, target) in batches() {
            pipeline.step(Batch::new(input, target)).unwrap();
        }
        let norm = pipeline.into_modules().take::<Normed>(0).unwrap().norm.into_inner();
        assert_eq!(norm.running_mean.value().dtype(), DType::F32);
        [norm.running_mean.value(), norm.running_var.value()]
            .map(|value| value.into_data().iter::<f64>().collect::<Vec<_>>())
    };
    let normed = statistics(Precision::Full);
    let [means, variances] = statistics(Precision::Bf16);
    for (lower, full) in means.iter().zip(&normed[0]).chain(variances.iter().zip(&normed[1])) {
        assert!((lower - full).abs() < 0.01, "{lower} in bf16, {full} in f32");
    }
    assert!(normed[0].iter().any(|mean| *mean != 0.0));

    /// A stage for tests with burn's own batch norm, which a pipeline rejects in a lower precision.
    #[derive(Module, Debug)]
    struct Plain {
        norm: burn::nn::BatchNorm,
    }
    impl Stage for Plain {
        type Input = Tensor<2>;
        type Output = Tensor<2>;

        fn forward(&self, input: Tensor<2>) -> Tensor<2> {
            self.norm.forward(input)
        }
    }
    let chain = Pipeline::builder().stage(vec![layer], config()).stage(Plain { norm: norm() }, config());
    let refused = chain.loss(error, config()).precision(Precision::F16).build().err().unwrap();
    assert!(matches!(refused, BuildError::BatchNormPrecision { stage: 1, precision: Precision::F16 }), "{refused}");
}

#[test]
fn an_evaluation_computes_in_the_same_precision() {
    let (input, target) = batches().remove(0);
    let losses = [Precision::Full, Precision::Bf16].map(|precision| {
        let builder = model().split(2, &config()).precision(precision).micro_batches(MICRO_BATCHES);
        let mut pipeline = builder.build().unwrap();
        let evaluated = pipeline.eval(Batch::new(input.clone(), target.clone())).unwrap().loss;
        (evaluated, pipeline.step(Batch::new(input.clone(), target.clone())).unwrap().loss)
    });
    assert!(losses.iter().all(|(evaluated, stepped)| (evaluated - stepped).abs() < 1e-3 * stepped));
    assert_ne!(losses[0].0, losses[1].0);
}

#[test]
fn an_invalid_loss_scale_is_refused() {
    // f32 has no numbers like the last two, and losses are scaled in f32.
    for scale in [0.0, f64::NAN, 1e39, 1e-50] {
        let refused = model().split(2, &config()).loss_scale(LossScale::Fixed(scale)).build().err().unwrap();
        let named = refused.to_string().contains(&format!("Fixed({scale:?})"));
        assert!(matches!(refused, BuildError::LossScale { .. }) && named, "{refused}");
    }
}

/// Tests that `Pipeline::into_modules` returns the master weights: parameters in f32, as the pipeline was given them.
#[test]
fn modules_come_back_in_full_precision() {
    let pipeline = model().split(2, &config()).precision(Precision::F16).build().unwrap();
    let back = Mlp::join(pipeline.into_modules());
    assert_eq!(back.bits(), model().bits());
    assert_eq!(bits(&back.error), bits(&Error { linear: model().error.linear }));
    assert_eq!(back.error.linear.weight.val().dtype(), DType::F32);
}
