//! Tests of data-parallel replicas that share a batch: R replicas give the same bits as one pipeline that sums
//! gradients in R groups of micro-batches, reduce gradients once per stage, and fail together.

use std::fs;
use std::num::NonZero;
use std::path::PathBuf;

use burn::module::Module;
use burn::nn::BatchNormConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamWConfig, ModuleOptimizer, SgdConfig};
use burn::tensor::Tensor;
use stageline::checkpoint::{Checkpoint, Store, Writer};
use stageline::schedule::{EagerOneFOneB, GPipe, Instruction, Interleaved, OneFOneB, Schedule, VHalf, ZbH1, ZbH2, ZbV};
use stageline::{
    Activity, Batch, BoxError, BuildError, Clip, Culprit, Dropout, DynamicLossScale, LossScale, OnNonFinite, Origin,
    Pipeline, PipelineBuilder, Precision, Recompute, Replica, Stage, StageConfig, StepError, StepReport, Update,
    Verify, WorkerEstimate,
};

use crate::failure::{PanickingOptimizer, quiet_workers};
use crate::mlp::{Error, LEARNING_RATE, Layer, Mlp, Target, bits, config, device, within_a_minute};
use crate::parity::Dropped;

const WIDTH: usize = 6;
const ROWS: usize = 19;
const STEPS: u64 = 3;
const CLIP: Clip = Clip::GlobalNorm(0.05);

type Scheduled = &'static (dyn Schedule + Sync);

/// Returns the batches of the replica tests. A third of their rows is masked, so micro-batches have different loss
/// weights.
fn batches() -> Vec<(Tensor<2>, Target)> {
    (0..STEPS).map(|step| Mlp::batch(ROWS, WIDTH, true, 40 + step)).collect()
}

fn batch(step: u64) -> Batch<Tensor<2>, Target> {
    let (input, target) = Mlp::batch(ROWS, WIDTH, true, 40 + step);
    Batch::new(input, target)
}

/// The division of a batch in the replica tests: R replicas of M micro-batches each, or one pipeline that sums the
/// gradients of R x M micro-batches in R groups.
#[derive(Clone, Copy, Debug, PartialEq)]
enum As {
    Replicas,
    Groups,
}

/// Returns the builder with the batch divided into R x M micro-batches. `how` chooses between R data-parallel replicas
/// and R gradient groups (micro-batches whose gradients are summed separately).
fn divided<In: stageline::Payload, Out: stageline::Payload, T: stageline::Payload>(
    builder: PipelineBuilder<In, Out, T>,
    replicas: usize,
    micro_batches: usize,
    stages: usize,
    how: As,
) -> PipelineBuilder<In, Out, T> {
    match how {
        As::Groups => builder.micro_batches(replicas * micro_batches).gradient_groups(replicas),
        As::Replicas => {
            let builder = builder.micro_batches(micro_batches);
            (1..replicas).fold(builder, |builder, _| builder.replica(vec![device(); stages]))
        }
    }
}

/// Returns the global gradient norm of a step. Asserts that the step's gradients were clipped.
fn gradient_norm(report: &StepReport) -> f64 {
    match report.update {
        Update::Stepped { gradient_norm, clipped: true } => gradient_norm,
        other => panic!("{other:?}"),
    }
}

/// Tests that R data-parallel replicas give the same bits as a loop without Stageline that sums gradients in R groups.
/// The training has Adam, clipping by the global norm, and micro-batches of different loss weights.
#[test]
fn replicas_give_the_bits_of_a_plain_loop_in_groups() {
    let model = Mlp::new(5, WIDTH, 3);
    let (micro_batches, batches) = (3, batches());
    for replicas in 1..=3 {
        let all = replicas * micro_batches;
        let (plain, norms) = model.clone().train_plainly_in_groups(replicas, all, &batches, Some(CLIP));
        let in_one_sum = model.clone().train_plainly_clipped(all, &batches, Some(CLIP)).0;
        assert_eq!(plain.bits() == in_one_sum.bits(), replicas == 1, "sums in groups have other bits");
        let run = |stages: usize, schedule: Scheduled, how: As| {
            let case = format!("R={replicas} P={stages} {} {how:?}", schedule.name());
            let builder = model.clone().split(stages, &config()).schedule(schedule).clip(CLIP);
            let mut pipeline = divided(builder, replicas, micro_batches, stages, how).build().unwrap();
            let reports: Vec<_> = (0..STEPS).map(|step| pipeline.step(batch(step)).unwrap()).collect();
            let found: Vec<_> = reports.iter().map(gradient_norm).collect();
            assert_eq!(found, norms, "{case}");
            let reduced = if how == As::Replicas && replicas > 1 { stages } else { 0 };
            assert!(reports.iter().all(|report| report.reductions == reduced), "{case}: {reports:?}");
            assert!(Mlp::join(pipeline.into_modules()).bits() == plain.bits(), "{case}: other bits");
            reports.into_iter().map(|report| report.loss.to_bits()).collect::<Vec<_>>()
        };
        let losses = run(1, &OneFOneB, As::Groups);
        for how in [As::Replicas, As::Groups] {
            for stages in 1..=3 {
                for schedule in [&OneFOneB as Scheduled, &GPipe, &EagerOneFOneB, &ZbH1, &ZbH2] {
                    assert_eq!(run(stages, schedule, how), losses, "R={replicas} P={stages} {how:?}");
                }
            }
            for schedule in [&ZbV as Scheduled, &VHalf, &Interleaved { chunks: 2 }] {
                assert_eq!(run(6, schedule, how), losses, "R={replicas} {} {how:?}", schedule.name());
            }
        }
    }
}

/// Tests that data-parallel replicas exchange their gradient sums once per step and stage, after the stage's last
/// micro-batch.
#[test]
fn every_stage_is_reduced_once_and_after_its_last_micro_batch() {
    let (replicas, stages, micro_batches) = (3, 4, 2);
    let builder = Mlp::new(3, WIDTH, 5).split(stages, &config()).schedule(Interleaved { chunks: 2 });
    let mut pipeline = divided(builder, replicas, micro_batches, stages, As::Replicas).build().unwrap();
    let report = pipeline.step(batch(0)).unwrap();
    assert_eq!((report.reductions, report.replicas, report.micro_batches), (stages, replicas, micro_batches));
    let workers = pipeline.plan().workers();
    assert_eq!((report.workers(), report.recording.events().len()), (replicas * workers, replicas * workers));
    assert_eq!(report.recording.accounts().len(), replicas * workers);
    assert!((0.0..1.0).contains(&report.bubble()), "{}", report.bubble());
    for (row, events) in report.recording.events().iter().enumerate() {
        let place = |wanted: fn(Activity) -> bool| {
            events.iter().enumerate().filter(move |(_, event)| wanted(event.activity)).map(|(at, _)| at)
        };
        let last = place(|activity| matches!(activity, Activity::Instruction(Instruction::Compute(_)))).max().unwrap();
        let reductions: Vec<_> = place(|activity| activity == Activity::Reduce).collect();
        assert!(reductions.len() == 2 && reductions.iter().all(|at| *at > last), "worker {row}: {events:?}");
    }
    let third = report.recording.of_replica(2);
    assert_eq!(third.events(), &report.recording.events()[2 * workers..]);
}

/// Tests that only the first data-parallel replica has optimizers and learning rates. Checkpoints therefore do not
/// depend on the number of replicas.
#[test]
fn momentum_lives_in_the_first_replica_only() {
    let optimizer = || SgdConfig::new().with_momentum(Some(MomentumConfig::new())).init();
    let train = |how| {
        let config = StageConfig::new(device(), optimizer(), LEARNING_RATE);
        let builder = Mlp::new(3, WIDTH, 9).split(2, &config);
        let mut pipeline = divided(builder, 2, 4, 2, how).build().unwrap();
        for step in 0..STEPS {
            let report = pipeline.step(batch(step)).unwrap();
            assert!(report.stages.len() == 2 && report.stages.iter().all(|stage| stage.learning_rate.is_some()));
        }
        pipeline.checkpoint().unwrap()
    };
    let (alone, replicated) = (train(As::Groups), train(As::Replicas));
    assert!(!alone.optimizer.is_empty() && alone == replicated);
    let (alone, replicated) = (written(alone), written(replicated));
    assert!(alone.len() > 1 && alone == replicated, "checkpoints do not depend on R");
}

/// Writes a checkpoint to a folder, and returns the path and the bytes of each of its files.
fn written(checkpoint: Checkpoint) -> Vec<(PathBuf, Vec<u8>)> {
    let place = tempfile::tempdir().unwrap();
    let store = Store::open(place.path(), NonZero::new(1).unwrap()).unwrap();
    let mut writer = Writer::new(store).unwrap();
    writer.write(checkpoint).unwrap();
    writer.finish().unwrap();
    let (mut folders, mut files) = (vec![place.path().to_owned()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => files.push((path.strip_prefix(place.path()).unwrap().to_owned(), fs::read(&path).unwrap())),
            }
        }
    }
    files.sort();
    files
}

/// Returns the builder of a pipeline with dropout and recomputation, whose last layer is tied to the first one.
fn tied(stages: usize, recompute: Recompute) -> PipelineBuilder<Tensor<2>, Tensor<2>, Target> {
    let Mlp { layers, error } = Mlp::new(1, WIDTH, 21);
    let dropped = |layer: Layer, salt| vec![Dropped { layer, dropout: Dropout::new(0.3, 1, salt) }];
    let ends = error.linear.clone();
    let (first, middle) = (dropped(Layer { linear: ends }, 0), dropped(layers.into_iter().next().unwrap(), 1));
    let (chain, config) = (Pipeline::builder(), config().recompute(recompute));
    match stages {
        1 => chain.loss((first, (middle, error)), config),
        2 => chain.stage(first, config.clone()).loss((Vec::<Dropped>::new(), (middle, error)), config),
        _ => {
            let chain = chain.stage(first, config.clone()).stage(middle, config.clone());
            chain.loss((Vec::<Dropped>::new(), (Vec::<Dropped>::new(), error)), config)
        }
    }
}

/// Tests data-parallel replicas together with tied parameters, dropout, clipping, recomputation and a loss scale that
/// changes at every step, in every precision.
#[test]
fn combined_features_give_the_same_bits_on_replicas() {
    let train = |precision, stages, schedule: Scheduled, recompute, how| {
        let scale = DynamicLossScale { growth_interval: 1, ..DynamicLossScale::default() };
        let builder = tied(stages, recompute).precision(precision).loss_scale(LossScale::Dynamic(scale));
        let builder = divided(builder.schedule(schedule).clip(Clip::GlobalNorm(0.3)), 2, 2, stages, how);
        let mut pipeline = builder.build().unwrap();
        let updates: Vec<_> = (0..4).map(|step| pipeline.step(batch(step)).unwrap().update.stepped()).collect();
        // The scale doubles at every step, which overflows in f16 only.
        assert_eq!(updates.contains(&false), precision == Precision::F16, "{precision}: {updates:?}");
        let last = pipeline.into_modules().take::<(Vec<Dropped>, (Vec<Dropped>, Error))>(stages - 1);
        (updates, bits(&last.unwrap().1.1))
    };
    for precision in [Precision::Full, Precision::Bf16, Precision::F16] {
        let reference = train(precision, 1, &OneFOneB, Recompute::Nothing, As::Groups);
        for stages in 1..=3 {
            for schedule in [&OneFOneB as Scheduled, &GPipe, &EagerOneFOneB, &ZbH1] {
                for recompute in [Recompute::Nothing, Recompute::Full] {
                    let found = train(precision, stages, schedule, recompute, As::Replicas);
                    let case = format!("{precision} P={stages} {} {recompute}", schedule.name());
                    assert!(found == reference, "{case}: {:?} against {:?}", found.0, reference.0);
                }
            }
        }
    }
}

/// Tests replicas whose transfers are all issued in one order, as if the replicas shared GPUs: the trained parameters
/// have the same bits as without that order.
#[test]
fn replicas_that_share_devices_take_turns_and_give_the_same_bits() {
    let _alone = crate::transfers::ORDERED.lock();
    let model = Mlp::new(5, WIDTH, 3);
    let plain = model.clone().train_plainly_in_groups(3, 6, &batches(), None).0.bits();
    for (stages, schedule) in [(2, &OneFOneB as Scheduled), (3, &GPipe), (4, &Interleaved { chunks: 2 }), (6, &ZbV)] {
        for capacity in [1, 2] {
            let builder = model.clone().split(stages, &config()).schedule(schedule).ordered_transfers();
            let builder = divided(builder.channel_capacity(capacity), 3, 2, stages, As::Replicas);
            let mut pipeline = builder.build().unwrap();
            (0..STEPS).for_each(|step| drop(pipeline.step(batch(step)).unwrap()));
            pipeline.eval(batch(9)).unwrap();
            assert!(Mlp::join(pipeline.into_modules()).bits() == plain, "P={stages} {}", schedule.name());
        }
    }
}

/// Tests that a pipeline of one data-parallel replica resumes from a checkpoint of two replicas, and the reverse.
#[test]
fn a_checkpoint_resumes_on_any_number_of_replicas() {
    let build = |how, from| {
        let model = Mlp::new(3, WIDTH, 7);
        let names = stageline::Names::new().part("", &model);
        let builder = divided(model.split(2, &config()).names(names), 2, 3, 2, how);
        match from {
            Some(checkpoint) => builder.restore(checkpoint),
            None => builder,
        }
    };
    let after = |how, from, steps: std::ops::Range<u64>| {
        let mut pipeline = build(how, from).build().unwrap();
        steps.for_each(|step| drop(pipeline.step(batch(step)).unwrap()));
        pipeline.checkpoint().unwrap()
    };
    let mut kept = None;
    for (step, how) in [As::Replicas, As::Groups, As::Replicas].into_iter().enumerate() {
        let step = step as u64;
        let next = after(how, kept, step..step + 1);
        for undisturbed in [As::Groups, As::Replicas] {
            assert!(after(undisturbed, None, 0..step + 1) == next, "after step {step}: {undisturbed:?}");
        }
        kept = Some(next);
    }
}

#[test]
fn evaluations_gradients_estimates_and_steps_match_one_replica() {
    let (model, stages) = (Mlp::new(3, WIDTH, 4), 2);
    let build = |how| divided(model.clone().split(stages, &config()).clip(CLIP), 2, 2, stages, how);
    let [mut alone, mut replicated] = [As::Groups, As::Replicas].map(|how| build(how).build().unwrap());
    for rows in [1, 2, 3, 4, ROWS] {
        let part = || {
            let (input, target) = Mlp::batch(rows, WIDTH, true, 8);
            Batch::new(input, target)
        };
        assert_eq!(replicated.eval(part()).unwrap(), alone.eval(part()).unwrap(), "{rows} rows");
    }
    assert_eq!(replicated.gradients(batch(0)).unwrap(), alone.gradients(batch(0)).unwrap());
    let estimate = replicated.estimate_memory(batch(0)).unwrap().expect("the tests count what is allocated");
    let summary = |worker: WorkerEstimate| (worker.replica.index, worker.stages, worker.optimizer > 0);
    let workers: Vec<_> = estimate.workers().into_iter().map(summary).collect();
    assert_eq!(workers, [(0, vec![0], true), (0, vec![1], true), (1, vec![0], false), (1, vec![1], false)]);
    let refused = estimate.check(|_| Some(1), &OneFOneB, 1, |_| false).unwrap_err().to_string();
    assert!(refused.contains("\n  stage 1 of replica 1: parameters "), "{refused}");
    let total: u64 = estimate.workers().iter().map(|worker| worker.peak()).sum();
    assert_eq!(estimate.devices().into_iter().map(|(_, bytes)| bytes).collect::<Vec<_>>(), [total]);
    let loss = |report: Result<StepReport, StepError>| report.unwrap().loss.to_bits();
    let one_by_one: Vec<_> = (0..STEPS).map(|step| loss(alone.step(batch(step)))).collect();
    assert_eq!(replicated.steps((0..STEPS).map(batch)).map(loss).collect::<Vec<_>>(), one_by_one);
    assert!(replicated.checkpoint().unwrap() == alone.checkpoint().unwrap());

    let verification = Verify::new().steps(2).pipeline(|| build(As::Replicas), |step| batch(step as u64), &[batch(9)]);
    let verification = verification.unwrap();
    assert!(verification.passes(), "{verification}");
}

/// A layer for tests of replicas that fails on an input above 100, by a panic or by an error, in any replica.
#[derive(Module, Debug)]
struct Wary {
    layer: Layer,
    #[module(skip)]
    panics: bool,
}

impl Stage for Wary {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        self.layer.forward(input)
    }

    fn try_forward(&self, input: Tensor<2>) -> Result<Tensor<2>, BoxError> {
        let too_large = input.clone().max().into_scalar::<f32>() > 100.0;
        assert!(!(too_large && self.panics), "a fault for the test");
        if too_large { Err("a fault for the test".into()) } else { Ok(self.forward(input)) }
    }
}

/// Returns the builder of a pipeline with two replicas of two stages. Each replica has two micro-batches in a step. The
/// first stage fails on an input above 100.
fn wary(panics: bool, optimizer: impl Into<ModuleOptimizer>) -> PipelineBuilder<Tensor<2>, Tensor<2>, Target> {
    quiet_workers();
    let Mlp { mut layers, error } = Mlp::new(1, WIDTH, 81);
    let last = StageConfig::new(device(), optimizer, LEARNING_RATE);
    let chain = Pipeline::builder().stage(Wary { layer: layers.remove(0), panics }, config());
    divided(chain.loss(error, last), 2, 2, 2, As::Replicas)
}

/// Returns a batch of eight rows, whose seventh row has `value` in every column; this row is in the last micro-batch of
/// replica 1.
fn with_a_row_of(value: f32) -> Batch<Tensor<2>, Target> {
    let (input, target) = Mlp::batch(8, WIDTH, false, 1);
    Batch::new(input.slice_fill([6..7, 0..WIDTH], value), target)
}

#[test]
fn a_failure_in_a_replica_is_named_and_no_stage_of_any_has_stepped() {
    within_a_minute(|| {
        for panics in [false, true] {
            let mut pipeline = wary(panics, AdamWConfig::new().init()).build().unwrap();
            pipeline.step(with_a_row_of(1.0)).unwrap();
            let before = pipeline.checkpoint().unwrap();
            let error = pipeline.step(with_a_row_of(1000.0)).unwrap_err();
            let StepError::Stage(failure) = &error else { panic!("{error}") };
            let second = Replica { index: 1, of: 2 };
            assert_eq!((failure.replica, failure.stage, failure.micro_batch()), (second, 0, Some(1)));
            let text = error.to_string();
            let expected = "stage 0 of replica 1 failed in action 0F1, micro-batch 1, of step 1: ";
            assert!(text.starts_with(expected) && text.ends_with("a fault for the test"), "{text}");
            assert!(matches!(pipeline.step(with_a_row_of(1.0)), Err(StepError::Stopped { .. })));
            assert!(pipeline.checkpoint().unwrap() == before, "a stage has stepped");
            let mut modules = pipeline.into_modules();
            assert!(modules.stages() == 2 && modules.take::<Wary>(0).is_ok() && modules.take::<Error>(1).is_ok());
        }
    });
}

/// Tests a panic in the optimizer of stage 1, when stage 0 of both data-parallel replicas may already have its new
/// parameters: all replicas roll the step back.
#[test]
fn a_panic_in_an_optimizer_rolls_back_all_replicas() {
    within_a_minute(|| {
        let mut pipeline = wary(false, PanickingOptimizer).build().unwrap();
        let before = pipeline.checkpoint().unwrap();
        let error = pipeline.step(with_a_row_of(1.0)).unwrap_err().to_string();
        let expected = "stage 1 of replica 0 failed in the optimizer step of step 0: ";
        assert!(error.starts_with(expected), "{error}");
        assert!(pipeline.checkpoint().unwrap() == before);
    });
}

#[test]
fn a_non_finite_value_in_one_replica_is_attributed_and_no_replica_steps() {
    let mut pipeline = wary(false, AdamWConfig::new().init()).on_non_finite(OnNonFinite::Skip).build().unwrap();
    let mut undisturbed = wary(false, AdamWConfig::new().init()).build().unwrap();
    let mut step = |value| {
        undisturbed.step(with_a_row_of(value)).unwrap();
        pipeline.step(with_a_row_of(value)).unwrap().update
    };
    assert!(step(1.0).stepped());
    let skipped = pipeline.step(with_a_row_of(f32::NAN)).unwrap();
    let culprit = Culprit { replica: Replica { index: 1, of: 2 }, stage: 0, micro_batch: 1, origin: Origin::Input };
    assert_eq!(skipped.update, Update::NonFinite { culprit: Some(culprit) });
    assert_eq!(culprit.to_string(), "the input of micro-batch 1 of replica 1, as it came with the batch");
    assert!(skipped.stages.iter().all(|stage| stage.learning_rate.is_none()));
    pipeline.step(with_a_row_of(2.0)).unwrap();
    undisturbed.step(with_a_row_of(2.0)).unwrap();
    let (found, expected) = (pipeline.checkpoint().unwrap(), undisturbed.checkpoint().unwrap());
    assert!(found.parameters == expected.parameters && found.optimizer == expected.optimizer);
}

#[test]
fn invalid_replicas_are_refused() {
    let builder = || Mlp::new(3, WIDTH, 1).split(2, &config()).micro_batches(4);
    let refused = |builder: PipelineBuilder<Tensor<2>, Tensor<2>, Target>| {
        let Err(error) = builder.build() else { panic!("it was built") };
        (error.to_string(), error)
    };
    let (text, error) = refused(builder().replica([device(), device()]).replica([device()]));
    assert!(matches!(error, BuildError::ReplicaDevices { replica: 2, devices: 1, stages: 2 }), "{text}");
    assert!(text.contains("replica 2 was given 1 devices for 2 stages; give it one a stage"), "{text}");
    for (groups, replicas) in [(0, 1), (3, 1), (8, 1), (1, 2), (4, 2)] {
        let replicated = (1..replicas).fold(builder(), |builder, _| builder.replica([device(), device()]));
        let (text, error) = refused(replicated.gradient_groups(groups));
        let BuildError::GradientGroups { groups: found, micro_batches: 4, .. } = error else { panic!("{text}") };
        assert_eq!(found, groups);
        assert!(text.contains(&format!("of {replicas} replicas with 4 micro-batches each")), "{text}");
    }
    let Mlp { layers, error } = Mlp::new(1, WIDTH, 1);
    let norm = stageline::AccumulatedBatchNorm::from(BatchNormConfig::new(WIDTH).init(&device().autodiff()));
    let normed = Normed { layer: layers.into_iter().next().unwrap(), norm };
    let (text, error) = refused(Pipeline::builder().loss((normed, error), config()).replica([device()]));
    assert!(matches!(&error, BuildError::BatchNormReplicas { stage: 0, path } if path == "0.norm.norm"), "{text}");
}

/// A stage for tests: a layer followed by a batch norm, which pipelines with replicas reject.
#[derive(Module, Debug)]
pub struct Normed {
    pub layer: Layer,
    pub norm: stageline::AccumulatedBatchNorm,
}

impl Stage for Normed {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        self.norm.forward(self.layer.forward(input))
    }
}
