//! Tests of overlapping steps (`Pipeline::steps`), in which a step begins before all stages have finished the previous
//! one: they give the bits and the reports of steps that run one after another.

use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::module::{Module, Param};
use burn::optim::{AdamW, AdamWConfig, AdamWState, Optimizer};
use burn::tensor::{Device, Tensor};
use stageline::schedule::{DualPipeV, EagerOneFOneB, GPipe, Interleaved, OneFOneB, Schedule, ZbH1, ZbH2, ZbV};
use stageline::{
    Batch, BatchError, BoxError, Clip, DynamicLossScale, LossScale, OnNonFinite, Pipeline, PipelineBuilder, Precision,
    Stage, StageConfig, StepError, StepReport, Update,
};

use crate::mlp::{Error, LEARNING_RATE, Layer, Mlp, Noisy, Target, config, device, within_a_minute};
use crate::tied;

const WIDTH: usize = 4;
const STEPS: u64 = 8;

type Scheduled = &'static (dyn Schedule + Sync);

/// Returns the batch for one step of the tests of overlapping steps: batch 3 has a NaN, batch 5 has only masked rows,
/// and batch 6 has large gradients.
fn batch(step: u64) -> Batch<Tensor<2>, Target> {
    let (input, (wanted, mask)) = Mlp::batch(12, WIDTH, true, 100 + step);
    match step {
        3 => Batch::new(input * f32::NAN, (wanted, mask)),
        5 => Batch::new(input, (wanted, mask * 0.0)),
        6 => Batch::new(input, (wanted * 10.0, mask)),
        _ => Batch::new(input, (wanted, mask)),
    }
}

/// Returns the configuration of a test pipeline's stage whose learning rate falls with every step.
fn falling() -> StageConfig {
    let learning_rate = CosineAnnealingLrSchedulerConfig::new(0.05, 20).init().unwrap();
    StageConfig::new(device(), AdamWConfig::new().init(), learning_rate)
}

/// Returns the parts of a training step's report that do not depend on time, for a comparison with another report.
fn timeless(report: &StepReport) -> impl PartialEq + std::fmt::Debug {
    let learning_rates: Vec<_> = report.stages.iter().map(|stage| stage.learning_rate).collect();
    let health: Vec<_> = report.health.iter().map(|health| (health.stage, health.update_norm.to_bits())).collect();
    let update = format!("{:?}", report.update);
    (report.step, report.loss.to_bits(), report.loss_scale, learning_rates, health, update)
}

/// Trains a pipeline with and without overlapping steps. Asserts that reports and final states are equal. Returns for
/// every step whether it updated the parameters or was skipped.
fn both(case: &str, build: impl Fn() -> PipelineBuilder<Tensor<2>, Tensor<2>, Target>) -> Vec<Update> {
    let (mut together, mut ahead) = (build().build().unwrap(), build().build().unwrap());
    let expected: Vec<_> = (0..STEPS).map(|step| together.step(batch(step)).unwrap()).collect();
    let found: Vec<_> = ahead.steps((0..STEPS).map(batch)).map(Result::unwrap).collect();
    assert_eq!(found.len(), expected.len(), "{case}");
    for (found, expected) in found.iter().zip(&expected) {
        let (found, expected) = (format!("{:?}", timeless(found)), format!("{:?}", timeless(expected)));
        assert_eq!(found, expected, "{case}");
    }
    let (found_state, expected_state) = (ahead.checkpoint().unwrap(), together.checkpoint().unwrap());
    assert!(found_state == expected_state, "{case}: other bits");
    // A further step also gives the same loss in both pipelines.
    let (found_loss, expected_loss) = (ahead.step(batch(9)).unwrap().loss, together.step(batch(9)).unwrap().loss);
    assert_eq!(found_loss.to_bits(), expected_loss.to_bits(), "{case}");
    found.into_iter().map(|report| report.update).collect()
}

#[test]
fn overlapping_steps_give_the_same_bits_in_every_schedule() {
    let plain: [Scheduled; 5] = [&OneFOneB, &GPipe, &EagerOneFOneB, &ZbH1, &ZbH2];
    let chunked: [Scheduled; 3] = [&Interleaved { chunks: 2 }, &ZbV, &DualPipeV];
    let plain = plain.into_iter().flat_map(|schedule| [(schedule, 1), (schedule, 2), (schedule, 4)]);
    let cases: Vec<_> = plain.chain(chunked.into_iter().map(|schedule| (schedule, 4))).collect();
    within_a_minute(move || {
        for (schedule, stages) in cases {
            for clip in [None, Some(Clip::GlobalNorm(2.0)), Some(Clip::GlobalNorm(1e-3)), Some(Clip::Value(1e-2))] {
                let case = format!("{}, P = {stages}, {clip:?}", schedule.name());
                let updates = both(&case, || {
                    let builder = Mlp::new(5, WIDTH, 21).split(stages, &falling()).micro_batches(4).schedule(schedule);
                    let builder = builder.on_non_finite(OnNonFinite::Skip).health_every(3);
                    match clip {
                        Some(clip) => builder.clip(clip),
                        None => builder,
                    }
                });
                assert!(matches!(updates[3], Update::NonFinite { .. }) && updates[5] == Update::NoWeight, "{case}");
                let clipped = updates.iter().filter(|update| matches!(update, Update::Stepped { clipped: true, .. }));
                let clipped = clipped.count();
                match clip {
                    None => assert_eq!(clipped, 0),
                    // Some steps are clipped and some are not.
                    Some(Clip::GlobalNorm(2.0)) => assert!((1..5).contains(&clipped), "{case}: {updates:?}"),
                    Some(_) => assert_eq!(clipped, 6, "{case}"),
                }
            }
        }
    });
}

#[test]
fn overlapping_steps_give_the_same_bits_with_statistics_dropout_ties_and_a_dynamic_loss_scale() {
    within_a_minute(|| {
        both("running statistics and dropout", || {
            let Mlp { mut layers, error } = Mlp::new(2, WIDTH, 22);
            let (second, first) = (Noisy::new(layers.pop().unwrap(), 1), Noisy::new(layers.pop().unwrap(), 0));
            let chain = Pipeline::builder().stage(first, falling()).stage(second, falling());
            let builder = chain.loss((layers, error), falling()).micro_batches(4).schedule(ZbH1);
            builder.on_non_finite(OnNonFinite::Skip).clip(Clip::GlobalNorm(2.0))
        });
        for stages in [2, 3, 4] {
            both(&format!("ties, P = {stages}"), || {
                let mut model = Mlp::new(4, WIDTH, 23);
                let first = model.layers[0].clone();
                model.layers.push(first);
                let builder = model.split(stages, &falling()).micro_batches(3);
                builder.on_non_finite(OnNonFinite::Skip).clip(Clip::GlobalNorm(2.0))
            });
        }
        let updates = both("a loss scale that falls and rises", || {
            let scale =
                DynamicLossScale { initial: 2.0_f64.powi(18), growth_interval: 2, ..DynamicLossScale::default() };
            let builder = Mlp::new(3, WIDTH, 24).split(2, &falling()).micro_batches(4).precision(Precision::F16);
            builder.loss_scale(LossScale::Dynamic(scale)).on_non_finite(OnNonFinite::Skip)
        });
        assert!(updates.iter().any(|update| matches!(update, Update::Overflow { .. })), "{updates:?}");
        assert!(updates.iter().any(Update::stepped), "{updates:?}");
    });
}

/// A layer for tests of overlapping steps that counts its forwards, and may return an error in one of them.
#[derive(Module, Debug)]
struct Counted {
    layer: Layer,
    #[module(skip)]
    forwards: Arc<AtomicUsize>,
    #[module(skip)]
    fails_at: Option<usize>,
}

impl Stage for Counted {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        self.layer.forward(input)
    }

    fn try_forward(&self, input: Tensor<2>) -> Result<Tensor<2>, BoxError> {
        let forward = self.forwards.fetch_add(1, Ordering::SeqCst);
        if self.fails_at == Some(forward) { Err("a fault for the test".into()) } else { Ok(self.forward(input)) }
    }
}

/// An AdamW for tests of overlapping steps, which waits in its step until another stage has run a given number of
/// forwards.
#[derive(Clone)]
struct Waiting {
    inner: AdamW,
    forwards: Arc<AtomicUsize>,
    until: usize,
}

impl Optimizer for Waiting {
    type State<const D: usize> = AdamWState<D>;

    fn step<const D: usize>(
        &self,
        learning_rate: f64,
        parameter: Tensor<D>,
        gradient: Tensor<D>,
        state: Option<AdamWState<D>>,
    ) -> (Tensor<D>, Option<AdamWState<D>>) {
        while self.forwards.load(Ordering::SeqCst) < self.until {
            thread::yield_now();
        }
        Optimizer::step(&self.inner, learning_rate, parameter, gradient, state)
    }

    fn to_device<const D: usize>(state: AdamWState<D>, device: &Device) -> AdamWState<D> {
        <AdamW as Optimizer>::to_device(state, device)
    }
}

const MICRO_BATCHES: usize = 3;

/// Returns the builder of a pipeline with two stages. The first stage counts its forwards. The optimizer of the second
/// stage may wait until the first stage has run a given number of forwards.
fn counted(
    forwards: &Arc<AtomicUsize>,
    fails_at: Option<usize>,
    waits_for: usize,
) -> PipelineBuilder<Tensor<2>, Tensor<2>, Target> {
    let Mlp { mut layers, error } = Mlp::new(1, WIDTH, 25);
    let waiting = Waiting { inner: AdamWConfig::new().build(), forwards: Arc::clone(forwards), until: waits_for };
    let first = Counted { layer: layers.remove(0), forwards: Arc::clone(forwards), fails_at };
    let last = StageConfig::new(device(), waiting, LEARNING_RATE);
    let chain = Pipeline::builder().stage(first, config()).loss::<Error>(error, last);
    chain.micro_batches(MICRO_BATCHES)
}

fn plain(step: u64) -> Batch<Tensor<2>, Target> {
    let (input, target) = Mlp::batch(6, WIDTH, false, step);
    Batch::new(input, target)
}

#[test]
fn a_stage_begins_the_next_step_before_another_has_finished_this_one() {
    within_a_minute(|| {
        let forwards = Arc::<AtomicUsize>::default();
        // The optimizer step of the last stage in step 0 waits for the first stage's first forward of step 1, so
        // without overlap it would wait for ever.
        let mut pipeline = counted(&forwards, None, MICRO_BATCHES + 1).watchdog(None).build().unwrap();
        let reports: Vec<_> = pipeline.steps((0..3).map(plain)).map(Result::unwrap).collect();
        assert_eq!(reports.iter().map(|report| report.step).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(forwards.load(Ordering::SeqCst), 3 * MICRO_BATCHES, "no forward was repeated");
    });
}

#[test]
fn a_misprediction_repeats_one_step_and_no_more() {
    within_a_minute(|| {
        let forwards = Arc::<AtomicUsize>::default();
        let mut pipeline = counted(&forwards, None, 0).clip(Clip::GlobalNorm(1e-6)).build().unwrap();
        let clipped = |report: StepReport| matches!(report.update, Update::Stepped { clipped: true, .. });
        assert!(pipeline.steps((0..5).map(plain)).all(|report| clipped(report.unwrap())));
        // Every step is clipped, which mispredicts its verdict. Only the step that ran ahead of the first verdict is
        // repeated: after a misprediction no step runs ahead.
        assert_eq!(forwards.load(Ordering::SeqCst), 6 * MICRO_BATCHES);
    });
}

#[test]
fn a_dropped_iterator_leaves_exactly_the_reported_steps() {
    within_a_minute(|| {
        // The bounds clip no step, some steps, or every step, so that the last verdict is predicted or mispredicted.
        for clip in [1e9, 1.0, 1e-6] {
            let build = || counted(&Arc::default(), None, 0).clip(Clip::GlobalNorm(clip)).build().unwrap();
            for steps in 1..5 {
                let (mut pipeline, asked) = (build(), AtomicUsize::new(0));
                let batches = (0..9).map(|step| {
                    asked.fetch_add(1, Ordering::SeqCst);
                    plain(step)
                });
                let reports = pipeline.steps(batches).take(steps).map(|report| report.unwrap().step);
                assert_eq!(reports.collect::<Vec<_>>(), (0..steps).collect::<Vec<_>>());
                assert!([steps, steps + 1].contains(&asked.into_inner()), "one batch before it is due");
                let mut expected = build();
                (0..steps).for_each(|step| drop(expected.step(plain(step as u64)).unwrap()));
                assert!(pipeline.checkpoint().unwrap() == expected.checkpoint().unwrap(), "{clip}, {steps}");
                // The discarded step has left no trace. An empty list of batches gives no steps.
                assert!(pipeline.steps(Vec::new()).next().is_none());
                pipeline.eval(plain(7)).unwrap();
                pipeline.gradients(plain(7)).unwrap();
                let (after, then) = (pipeline.step(plain(8)).unwrap(), expected.step(plain(8)).unwrap());
                assert_eq!((after.step, after.loss.to_bits()), (steps, then.loss.to_bits()));
                assert!(pipeline.checkpoint().unwrap() == expected.checkpoint().unwrap(), "{clip}, {steps}");
            }
        }
    });
}

#[test]
fn a_panicking_batch_and_a_forgotten_iterator_leave_whole_steps() {
    within_a_minute(|| {
        let states: Vec<_> = {
            let mut pipeline = counted(&Arc::default(), None, 0).build().unwrap();
            let states = (0..3).map(|step| {
                pipeline.step(plain(step)).unwrap();
                pipeline.checkpoint().unwrap()
            });
            states.collect()
        };
        for at in 1..4 {
            let mut pipeline = counted(&Arc::default(), None, 0).build().unwrap();
            let batches =
                (0..9).map(|step| if step == at { panic::panic_any("a fault for the test") } else { plain(step) });
            let trained = panic::catch_unwind(AssertUnwindSafe(|| pipeline.steps(batches).count()));
            assert!(trained.is_err());
            let left = pipeline.checkpoint().unwrap();
            assert!(left.progress.steps == 0 || left == states[left.progress.steps as usize - 1], "{at}");
            assert!(left.progress.steps < at, "{at}");
            // The second batch is requested before any step begins, so its panic leaves the pipeline usable.
            let next = pipeline.step(plain(1));
            assert!(if at == 1 { next.is_ok() } else { matches!(next, Err(StepError::Stopped { .. })) }, "{at}");
        }
        let mut pipeline = counted(&Arc::default(), None, 0).build().unwrap();
        let mut steps = pipeline.steps((0..9).map(plain));
        steps.next().unwrap().unwrap();
        std::mem::forget(steps);
        assert!(pipeline.checkpoint().unwrap() == states[0]);
        assert!(matches!(pipeline.step(plain(1)), Err(StepError::Stopped { .. })));
        // A stopped pipeline gives one error, and then the iterator ends.
        let mut stopped = pipeline.steps(std::iter::repeat_with(|| plain(1)));
        assert!(matches!(stopped.next(), Some(Err(StepError::Stopped { .. }))) && stopped.next().is_none());
    });
}

/// Tests that a pipeline with tied stages ends although the caller has forgotten (`mem::forget`) its iterator over
/// overlapping steps. At that moment the stage that owns the tied parameter has a NaN gradient. The other stage has
/// stepped its optimizer, and waits for the owner's new value.
#[test]
fn a_forgotten_iterator_with_tied_stages_does_not_block_the_end_of_the_pipeline() {
    let batches = || {
        (0..6).map(|step| {
            let (input, target) = Mlp::batch(10, 6, false, 70 + step);
            // tanh of infinity is finite, but the gradient of the weight is infinity times 0, which is NaN.
            let input = if step == 1 { input.slice_fill([0..10, 0..1], f32::INFINITY) } else { input };
            Batch::new(input, target)
        })
    };
    for give_back in [false, true] {
        within_a_minute(move || {
            let mut pipeline = tied::cut(2, &config()).micro_batches(2).watchdog(None).build().unwrap();
            let mut steps = pipeline.steps(batches());
            steps.next().unwrap().unwrap();
            std::mem::forget(steps);
            if give_back {
                let mut modules = pipeline.into_modules();
                modules.take::<Vec<Layer>>(0).unwrap();
                modules.take::<(Vec<Layer>, Error)>(1).unwrap();
            }
        });
    }
}

/// A layer of a test model with a trained factor. The gradient of the factor is NaN if a row of the input has no
/// element between -1 and 1; the gradient of the input stays finite.
#[derive(Module, Debug)]
struct LocalNan {
    layer: Layer,
    factor: Param<Tensor<1>>,
}

impl Stage for LocalNan {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        let within = input.clone().detach().abs().neg().add_scalar(1.0).clamp_min(0.0).max_dim(1);
        self.layer.forward(input) + (within * self.factor.val().unsqueeze()).sqrt() * 0.0
    }
}

#[test]
fn a_non_finite_value_in_only_the_owner_or_holder_of_a_tied_parameter_discards_the_step() {
    let batch = |step: u64| {
        let (input, target) = Mlp::batch(6, WIDTH, false, step);
        Batch::new(if step == 2 { input * 1e20 + 1e20 } else { input }, target)
    };
    within_a_minute(move || {
        for nan_stage in [0, 1] {
            let build = || {
                let Mlp { mut layers, error } = Mlp::new(2, WIDTH, 27);
                let (between, tied) = (layers.pop().unwrap(), layers.pop().unwrap());
                let factor = Param::from_tensor(Tensor::ones([1], &device().autodiff()));
                let nan = LocalNan { layer: tied.clone(), factor };
                let builder = if nan_stage == 0 {
                    let chain = Pipeline::builder().stage(nan, falling()).stage(between, falling());
                    chain.loss::<(Vec<Layer>, Error)>((vec![tied], error), falling())
                } else {
                    let chain = Pipeline::builder().stage(tied, falling()).stage(nan, falling());
                    chain.loss::<(Vec<Layer>, Error)>((vec![between], error), falling())
                };
                builder.micro_batches(3).on_non_finite(OnNonFinite::Skip).build().unwrap()
            };
            let (mut together, mut ahead) = (build(), build());
            let updates: Vec<_> = (0..5).map(|step| together.step(batch(step)).unwrap().update).collect();
            let found: Vec<_> = ahead.steps((0..5).map(batch)).map(|report| report.unwrap().update).collect();
            assert_eq!(format!("{found:?}"), format!("{updates:?}"));
            let Update::NonFinite { culprit: Some(culprit) } = updates[2] else { panic!("{updates:?}") };
            assert_eq!(culprit.stage, nan_stage);
            assert!(updates.iter().filter(|update| update.stepped()).count() == 4, "{updates:?}");
            let (found, expected) = (ahead.checkpoint().unwrap(), together.checkpoint().unwrap());
            assert!(found == expected, "NaN in stage {nan_stage}: other bits");
        }
    });
}

#[test]
fn a_batch_that_cannot_be_cut_is_an_error_in_its_turn_and_the_others_train() {
    within_a_minute(|| {
        let forwards = Arc::<AtomicUsize>::default();
        let mut pipeline = counted(&forwards, None, 0).build().unwrap();
        let narrow = || {
            let (input, target) = Mlp::batch(2, WIDTH, false, 1);
            Batch::new(input, target)
        };
        let batches = [plain(0), plain(1), narrow(), plain(2)];
        let steps: Vec<_> = pipeline.steps(batches).map(|report| report.map(|report| report.step)).collect();
        let [Ok(0), Ok(1), Err(StepError::Batch(BatchError::TooSmall { .. })), Ok(2)] = steps[..] else {
            panic!("{steps:?}")
        };
    });
}

#[test]
fn a_failure_anywhere_leaves_the_state_of_the_last_whole_step() {
    within_a_minute(|| {
        let states: Vec<_> = {
            let mut pipeline = counted(&Arc::default(), None, 0).build().unwrap();
            let states = (0..4).map(|step| {
                pipeline.step(plain(step)).unwrap();
                pipeline.checkpoint().unwrap()
            });
            states.collect()
        };
        for fails_at in MICRO_BATCHES..4 * MICRO_BATCHES {
            let mut pipeline = counted(&Arc::default(), Some(fails_at), 0).build().unwrap();
            let mut steps = pipeline.steps((0..4).map(plain));
            let reports: Vec<_> = steps.by_ref().collect();
            assert!(steps.next().is_none(), "the iterator has ended");
            drop(steps);
            let (last, whole) = reports.split_last().unwrap();
            let Err(StepError::Stage(failure)) = last else { panic!("{fails_at}: {last:?}") };
            assert_eq!((failure.stage, failure.micro_batch()), (0, Some(fails_at % MICRO_BATCHES)));
            assert_eq!(failure.during.to_string(), format!("step {}", fails_at / MICRO_BATCHES));
            assert!(whole.iter().all(Result::is_ok));
            let left = pipeline.checkpoint().unwrap();
            let steps = left.progress.steps as usize;
            // The failed step is not committed. The step before it may or may not be committed.
            assert!(
                steps == whole.len() && [0, 1].contains(&(fails_at / MICRO_BATCHES - steps)),
                "{fails_at}: {steps}"
            );
            match steps.checked_sub(1) {
                Some(step) => assert!(left == states[step], "{fails_at}: {steps}"),
                None => assert!(left == counted(&Arc::default(), None, 0).build().unwrap().checkpoint().unwrap()),
            }
        }
    });
}

#[test]
fn a_non_finite_value_is_an_error_under_the_stop_policy() {
    within_a_minute(|| {
        let over = AtomicBool::new(false);
        let mut pipeline = Mlp::new(2, WIDTH, 26).split(3, &config()).micro_batches(3).build().unwrap();
        let batches = (0..8).inspect(|step| over.store(*step > 4, Ordering::SeqCst)).map(batch);
        let reports: Vec<_> = pipeline.steps(batches).collect();
        let [Ok(_), Ok(_), Ok(_), Err(StepError::NonFinite { step: 3, culprit: Some(culprit) })] = &reports[..] else {
            panic!("{reports:?}")
        };
        assert_eq!((culprit.stage, culprit.micro_batch), (0, 0));
        assert!(!over.into_inner(), "no more batches are requested");
        assert_eq!(pipeline.checkpoint().unwrap().progress.steps, 3);
        assert!(matches!(pipeline.steps([batch(0)]).next(), Some(Err(StepError::Stopped { .. }))));
    });
}
