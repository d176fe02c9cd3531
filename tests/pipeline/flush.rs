//! Tests of the flush, the end of a step at which optimizers step: losses and gradients that are not finite, batches
//! whose targets are all masked, and invalid gradient clipping.

use burn::grad_clipping::GradientClippingConfig;
use burn::lr_scheduler::linear::LinearLrSchedulerConfig;
use burn::module::{Module, Param};
use burn::optim::{AdamWConfig, SgdConfig};
use burn::tensor::Tensor;
use stageline::schedule::{GPipe, OneFOneB, Schedule};
use stageline::{
    Batch, BuildError, Clip, Culprit, OnNonFinite, Origin, Pipeline, PipelineBuilder, Replica, Stage, StageConfig,
    StepError, StepReport, Update,
};

use crate::mlp::{Error, Mlp, Target, bits, config, device};

const WIDTH: usize = 4;
const MICRO_BATCHES: usize = 4;

/// A stage for tests that multiplies its input by a trained factor, which starts at 1.
#[derive(Module, Debug)]
struct Scale {
    factor: Param<Tensor<1>>,
}

/// A stage for tests that returns the square root of its input times a trained factor: NaN below 0, and an infinite
/// gradient at 0.
#[derive(Module, Debug)]
struct Root {
    factor: Param<Tensor<1>>,
}

impl Stage for Scale {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        input * self.factor.val().unsqueeze()
    }
}

impl Stage for Root {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        input.sqrt() * self.factor.val().unsqueeze()
    }
}

fn parts() -> (Scale, Root, Error) {
    let device = device().autodiff();
    let ones = || Param::from_tensor(Tensor::ones([WIDTH], &device));
    let (scale, root) = (Scale { factor: ones() }, Root { factor: ones() });
    (scale, root, Mlp::new(0, WIDTH, 5).error)
}

/// Returns the builder of a pipeline with three stages: a scale, a square root, and a last stage that computes the
/// loss. The learning rate falls with every optimizer step, so it shows how many optimizer steps were made.
fn pipeline(schedule: impl Schedule + 'static, policy: OnNonFinite) -> PipelineBuilder<Tensor<2>, Tensor<2>, Target> {
    let (scale, root, error) = parts();
    let rate = LinearLrSchedulerConfig::new(0.01, 0.001, 9).init().unwrap();
    let config = StageConfig::new(device(), AdamWConfig::new().init(), rate);
    let chain = Pipeline::builder().stage(scale, config.clone()).stage(root, config.clone()).loss(error, config);
    chain.micro_batches(MICRO_BATCHES).schedule(schedule).on_non_finite(policy)
}

/// Returns a batch whose inputs and targets are all 1, except in one micro-batch, where the inputs are `input` and the
/// targets `wanted`.
fn batch(micro_batch: usize, input: f32, wanted: f32) -> Batch<Tensor<2>, Target> {
    let rows = |value: f32| {
        let values: Vec<_> = (0..MICRO_BATCHES).map(|at| if at == micro_batch { value } else { 1.0 }).collect();
        Tensor::<1>::from_floats(values.as_slice(), &device()).reshape([MICRO_BATCHES, 1])
    };
    let every_row = Tensor::ones([MICRO_BATCHES, 1], &device());
    Batch::new(rows(input).repeat_dim(1, WIDTH), (rows(wanted).repeat_dim(1, WIDTH), every_row))
}

fn good() -> Batch<Tensor<2>, Target> {
    batch(0, 2.0, 1.0)
}

/// Ends a pipeline, and returns the bits of the parameters of all its stages.
fn bits_of(pipeline: Pipeline<Tensor<2>, Tensor<2>, Target>) -> Vec<u32> {
    let mut modules = pipeline.into_modules();
    let (scale, root) = (modules.take::<Scale>(0).unwrap(), modules.take::<Root>(1).unwrap());
    [bits(&scale), bits(&root), bits(&modules.take::<Error>(2).unwrap())].concat()
}

/// The only data-parallel replica of a pipeline without data parallelism: replica 0 of 1.
const ONLY: Replica = Replica { index: 0, of: 1 };

/// The deliberate faults of a test. Each entry has the input and the target of one micro-batch, the expected origin of
/// the NaN or infinity, and the expected text of the error.
const FAULTS: [(f32, f32, Culprit, &str); 4] = [
    (
        -1.0,
        1.0,
        Culprit { replica: ONLY, stage: 1, micro_batch: 2, origin: Origin::Forward },
        "the forward of stage 1 on micro-batch 2",
    ),
    (
        0.0,
        1.0,
        Culprit { replica: ONLY, stage: 1, micro_batch: 1, origin: Origin::Backward },
        "the backward of stage 1 on micro-batch 1",
    ),
    (
        f32::NAN,
        1.0,
        Culprit { replica: ONLY, stage: 0, micro_batch: 3, origin: Origin::Input },
        "the input of micro-batch 3, as it came with the batch",
    ),
    // The square of the difference overflows.
    (
        1.0,
        1e30,
        Culprit { replica: ONLY, stage: 2, micro_batch: 0, origin: Origin::Forward },
        "the forward of stage 2 on micro-batch 0",
    ),
];

#[test]
fn a_non_finite_value_is_attributed_and_its_step_is_skipped() {
    for (input, wanted, culprit, _) in FAULTS {
        let mut pipeline = pipeline(OneFOneB, OnNonFinite::Skip).build().unwrap();
        let first = pipeline.step(good()).unwrap();
        let skipped = pipeline.step(batch(culprit.micro_batch, input, wanted)).unwrap();
        assert_eq!(skipped.update, Update::NonFinite { culprit: Some(culprit) });
        assert!(skipped.stages.iter().all(|stage| stage.learning_rate.is_none()));
        let next = pipeline.step(good()).unwrap();
        assert_eq!((skipped.step, next.step), (1, 2));

        // The skipped step leaves no trace in the parameters, Adam's moments and the learning rate.
        let mut unharmed = self::pipeline(OneFOneB, OnNonFinite::Skip).build().unwrap();
        let steps = [unharmed.step(good()).unwrap(), unharmed.step(good()).unwrap()];
        let rates = |report: &StepReport| report.stages.iter().map(|stage| stage.learning_rate).collect::<Vec<_>>();
        assert_eq!([rates(&first), rates(&next)], steps.each_ref().map(rates));
        assert_eq!(next.loss.to_bits(), steps[1].loss.to_bits());
        assert_eq!(bits_of(pipeline), bits_of(unharmed));
    }
}

#[test]
fn a_non_finite_value_stops_the_pipeline_and_the_error_names_its_origin() {
    for (input, wanted, culprit, place) in FAULTS {
        for schedule in [&OneFOneB as &(dyn Schedule + Sync), &GPipe] {
            let mut pipeline = pipeline(schedule, OnNonFinite::Stop).build().unwrap();
            let error = pipeline.step(batch(culprit.micro_batch, input, wanted)).unwrap_err();
            assert!(
                matches!(error, StepError::NonFinite { step: 0, culprit: Some(found) } if found == culprit),
                "{error}"
            );
            assert!(error.to_string().contains(place), "{error}");
            assert!(matches!(pipeline.step(good()), Err(StepError::Stopped { .. })));
            let (scale, root, last) = parts();
            assert_eq!(bits_of(pipeline), [bits(&scale), bits(&root), bits(&last)].concat(), "a stage has stepped");
        }
    }
}

#[test]
fn a_parameter_that_is_not_finite_is_named_as_the_origin() {
    for bad in [f32::NAN, f32::INFINITY] {
        let (scale, mut root, error) = parts();
        root.factor = root.factor.map(|factor| factor * bad);
        let config = StageConfig::new(device(), AdamWConfig::new().init(), 0.01);
        let chain = Pipeline::builder().stage(scale, config.clone()).stage(root, config.clone()).loss(error, config);
        let error = chain.micro_batches(MICRO_BATCHES).build().unwrap().step(good()).unwrap_err();
        let expected = Culprit { replica: ONLY, stage: 1, micro_batch: 0, origin: Origin::Parameters };
        assert!(
            matches!(error, StepError::NonFinite { step: 0, culprit: Some(found) } if found == expected),
            "{error}"
        );
        let message = error.to_string();
        assert!(message.contains("first the parameters of stage 1, in its forward on micro-batch 0;"), "{message}");
        assert!(message.contains("no stage has stepped: check the weights file or the initialisation"), "{message}");
    }
}

#[test]
fn a_batch_without_weight_is_skipped() {
    let model = Mlp::new(2, WIDTH, 3);
    let (input, (wanted, mask)) = Mlp::batch(6, WIDTH, false, 1);
    let mut pipeline = model.clone().split(3, &config()).micro_batches(2).build().unwrap();
    let masked = || Batch::new(input.clone(), (wanted.clone(), mask.clone() * 0.0));
    // The memory estimate also works for a batch whose targets are all masked.
    let mut bytes = |batch| pipeline.estimate_memory(batch).unwrap().unwrap().devices()[0].1 as f64;
    let whole = bytes(Batch::new(input.clone(), (wanted.clone(), mask.clone())));
    assert!((bytes(masked()) / whole - 1.0).abs() < 0.01);
    let report = pipeline.step(masked()).unwrap();
    assert_eq!((report.update, report.weight()), (Update::NoWeight, 0.0));
    assert!(report.loss.is_nan());
    pipeline.step(Batch::new(input.clone(), (wanted.clone(), mask.clone()))).unwrap();
    let plain = model.train_plainly(2, &[(input, (wanted, mask))]);
    assert_eq!(Mlp::join(pipeline.into_modules()).bits(), plain.bits());
}

#[test]
fn invalid_clip_bounds_and_clipping_optimizers_are_refused() {
    let build = |clip| Mlp::new(1, WIDTH, 1).split(2, &config()).micro_batches(2).clip(clip).build();
    for bound in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        for clip in [Clip::GlobalNorm(bound), Clip::Value(bound)] {
            let error = build(clip).err().unwrap();
            assert!(matches!(error, BuildError::Clip { .. }), "{error}");
            assert!(error.to_string().ends_with("give a bound that is positive and finite"), "{error}");
        }
    }
    let clipping = SgdConfig::new().with_gradient_clipping(Some(GradientClippingConfig::Norm(1.0))).init();
    let stage = StageConfig::new(device(), clipping, 0.1);
    let error = Mlp::new(1, WIDTH, 1).split(2, &stage).micro_batches(2).build().err().unwrap();
    assert!(matches!(error, BuildError::ClippingOptimizer { stage: 0 }), "{error}");
}
