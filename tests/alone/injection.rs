//! Tests that inject a panic before and after every activity of a worker in a step, under every published schedule. One
//! error names the place of the panic, no stage has stepped its optimizer, and a pipeline that is restored from the
//! remaining state continues with the same bits as a training without the panic.
//!
//! The panics come from a `tracing` subscriber, which the library calls around each action. A process has only one
//! global subscriber, so these tests need a process of their own.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once};
use std::{panic, thread};

use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::optim::AdamWConfig;
use burn::tensor::Tensor;
use stageline::checkpoint::Checkpoint;
use stageline::schedule::{
    DualPipeV, EagerOneFOneB, GPipe, Interleaved, LoopedBreadthFirst, OneFOneB, Schedule, VHalf, VMin, ZbH1, ZbH2, ZbV,
};
use stageline::{Activity, Batch, Clip, Failure, Pipeline, PipelineBuilder, StageConfig, StepError, Update};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber, span};

use crate::messages::Messages;
use crate::mlp::{self, Mlp, Noisy, Target, device};
use crate::ran_in_a_process_of_its_own;

const WIDTH: usize = 3;

/// The place in a training where a test injects a panic. It is before or after an activity of one stage, such as a
/// forward or the optimizer step.
#[derive(Clone, Debug, PartialEq)]
struct Point {
    replica: usize,
    stage: usize,
    activity: Activity,
    moment: Moment,
    during: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Moment {
    Before,
    After,
}

/// The place of the next panic that a test injects; `None` if no panic is due. The injection clears this value.
static WANTED: Mutex<Option<Point>> = Mutex::new(None);

/// The id of the tracing span at whose end a panic is injected; 0 if no panic is due.
static LAST: AtomicU64 = AtomicU64::new(0);

/// The tracing spans of steps and actions so far; `None` if the running test does not collect them.
static NOTED: Mutex<Option<Vec<Noted>>> = Mutex::new(None);

#[derive(Clone, Debug, Default, PartialEq)]
struct Noted {
    id: u64,
    stage: Option<u64>,
    action: String,
    micro_batch: Option<u64>,
    waited_us: Option<u64>,
    waited_for: Option<String>,
    step: Option<u64>,
    /// The loss, loss weight and bubble in the tracing span of a training step, by name.
    figures: BTreeMap<&'static str, f64>,
}

/// The number of warnings that pipelines have logged in this process.
pub static WARNINGS: AtomicU64 = AtomicU64::new(0);

/// Installs this process's only tracing subscriber, which injects panics for tests. Later calls do nothing.
pub fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| tracing::subscriber::set_global_default(Saboteur(AtomicU64::new(1))).unwrap());
}

/// A tracing subscriber for tests: it panics in chosen spans, and collects spans and events. The value is the id of the
/// next span.
struct Saboteur(AtomicU64);

impl Subscriber for Saboteur {
    fn enabled(&self, metadata: &Metadata) -> bool {
        let (level, target) = (*metadata.level(), metadata.target());
        let warns = level == Level::WARN && target.starts_with("stageline::pipeline");
        let complains = level <= Level::INFO && target.starts_with("stageline::runner");
        let has_spans = target.starts_with("stageline::worker") || target.starts_with("stageline::pipeline");
        warns || complains || has_spans && metadata.is_span()
    }

    fn new_span(&self, attributes: &span::Attributes) -> span::Id {
        let id = self.0.fetch_add(1, Ordering::Relaxed);
        let mut seen = Seen::default();
        attributes.record(&mut seen);
        if let Some(noted) = &mut *NOTED.lock().unwrap() {
            let mut note = Noted { id, ..Noted::default() };
            attributes.record(&mut note);
            noted.push(note);
        }
        let mut wanted = WANTED.lock().unwrap();
        let here = |point: &mut Point| {
            let action = match point.activity {
                Activity::Instruction(instruction) => instruction.to_string(),
                activity => activity.to_string(),
            };
            let (replica, stage) = (point.replica as u64, point.stage as u64);
            seen == Seen { replica, stage, action, during: point.during.to_owned() }
        };
        let point = wanted.take_if(here);
        drop(wanted);
        match point.map(|point| point.moment) {
            Some(Moment::Before) => panic!("sabotage"),
            Some(Moment::After) => LAST.store(id, Ordering::Relaxed),
            None => {}
        }
        span::Id::from_u64(id)
    }

    fn exit(&self, id: &span::Id) {
        if LAST.compare_exchange(id.into_u64(), 0, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            panic!("sabotage");
        }
    }

    fn event(&self, event: &Event) {
        if event.metadata().target().starts_with("stageline::pipeline") {
            WARNINGS.fetch_add(1, Ordering::Relaxed);
            return;
        }
        COMPLAINTS.add(event);
    }
    fn record(&self, id: &span::Id, values: &span::Record) {
        let mut noted = NOTED.lock().unwrap();
        let mut all = noted.iter_mut().flatten();
        if let Some(note) = all.find(|note| note.id == id.into_u64()) {
            values.record(note);
        }
    }
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
}

impl Visit for Noted {
    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "stage" => self.stage = Some(value),
            "micro_batch" => self.micro_batch = Some(value),
            "waited_us" => self.waited_us = Some(value),
            "step" => self.step = Some(value),
            _ => {}
        }
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.figures.insert(field.name(), value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "action" => self.action = format!("{value:?}"),
            "waited_for" => self.waited_for = Some(format!("{value:?}")),
            _ => {}
        }
    }
}

/// The messages that the stages of the tested pipelines have logged so far.
static COMPLAINTS: Messages = Messages::new();

/// The fields of a worker's tracing span by which a test finds the place of a panic.
#[derive(Default, PartialEq)]
struct Seen {
    replica: u64,
    stage: u64,
    action: String,
    during: String,
}

impl Visit for Seen {
    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "replica" => self.replica = value,
            "stage" => self.stage = value,
            _ => {}
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "action" => self.action = format!("{value:?}"),
            "during" => self.during = format!("{value:?}"),
            _ => {}
        }
    }
}

/// Returns the configuration of a stage in the tests that inject panics. The learning rate differs in every step.
fn falling() -> StageConfig {
    let learning_rate = CosineAnnealingLrSchedulerConfig::new(0.05, 10).init().unwrap();
    StageConfig::new(device(), AdamWConfig::new().init(), learning_rate)
}

/// Returns the builder of a pipeline for the tests that inject panics: two stages with running statistics and dropout,
/// and a last stage with the loss.
fn noisy(seed: u64, micro_batches: usize) -> PipelineBuilder<Tensor<2>, Tensor<2>, Target> {
    let Mlp { mut layers, error } = Mlp::new(2, WIDTH, seed);
    let (second, first) = (Noisy::new(layers.pop().unwrap(), 1), Noisy::new(layers.pop().unwrap(), 0));
    let chain = Pipeline::builder().stage(first, falling()).stage(second, falling());
    chain.loss((layers, error), falling()).micro_batches(micro_batches).cores_per_stage(1)
}

/// Returns the builder of a pipeline for the tests that inject panics. Its last layer is tied to the first one.
fn tied(
    seed: u64,
    stages: usize,
    micro_batches: usize,
    schedule: Scheduled,
) -> PipelineBuilder<Tensor<2>, Tensor<2>, Target> {
    let mut model = Mlp::new(stages, WIDTH, seed);
    let first = model.layers[0].clone();
    model.layers.push(first);
    let builder = model.split(stages, &falling()).micro_batches(micro_batches).schedule(schedule);
    builder.clip(Clip::GlobalNorm(0.1)).cores_per_stage(1)
}

fn batch(step: u64) -> Batch<Tensor<2>, Target> {
    let (input, target) = Mlp::batch(6, WIDTH, true, step);
    Batch::new(input, target)
}

type Scheduled = &'static (dyn Schedule + Sync);

/// A training of three steps into which tests inject panics.
struct Case {
    name: String,
    /// The function that returns the builder of the training's pipeline, given the seed of its parameters.
    build: Box<dyn Fn(u64) -> PipelineBuilder<Tensor<2>, Tensor<2>, Target> + Send>,
    /// The checkpoint after each step of a training without a panic.
    undisturbed: Vec<Checkpoint>,
    /// Whether a panic is also injected after each instruction of the plan.
    after_instructions: bool,
    /// The places where a test can inject a panic: the replica, the stage and the kind of every activity in a step.
    points: Vec<(usize, usize, Activity)>,
}

impl Case {
    fn new(
        name: String,
        build: impl Fn(u64) -> PipelineBuilder<Tensor<2>, Tensor<2>, Target> + Send + 'static,
    ) -> Self {
        let mut pipeline = build(1).build().unwrap();
        let (mut undisturbed, mut points) = (Vec::new(), Vec::new());
        for step in 0..3 {
            let report = pipeline.step(batch(step)).unwrap();
            let replica_points = |replica: usize| {
                let rows = report.recording.of_replica(replica).events().concat();
                rows.into_iter().map(move |event| (replica, event.stage, event.activity))
            };
            points = (0..report.replicas).flat_map(replica_points).collect();
            undisturbed.push(pipeline.checkpoint().unwrap());
        }
        let after_instructions = ["1f1b P=2 M=2", "zb-h1 P=2 M=2"].contains(&name.as_str());
        Self { name, build: Box::new(build), undisturbed, after_instructions, points }
    }

    /// Injects a panic at `point` in the training's second step. Asserts that the error names this place, and that no
    /// stage has stepped its optimizer. The training must continue with the same bits as without a panic. If `rehearses`
    /// is set, it continues with a rehearsal, which must leave no trace.
    fn survive(&self, point: Point, rehearses: bool) {
        let case = format!("{}, {point:?}", self.name);
        let mut pipeline = (self.build)(1).build().unwrap();
        pipeline.step(batch(0)).unwrap();
        *WANTED.lock().unwrap() = Some(point.clone());
        let error = pipeline.step(batch(1)).unwrap_err();
        assert!(WANTED.lock().unwrap().is_none(), "{case}: {error}");

        let StepError::Stage(failure) = &error else { panic!("{case}: {error}") };
        assert_eq!(
            (failure.replica.index, failure.stage, failure.activity),
            (point.replica, point.stage, point.activity),
            "{case}"
        );
        assert_eq!(failure.during.to_string(), "step 1", "{case}");
        assert!(matches!(&failure.failure, Failure::Panic(message) if message == "sabotage"), "{case}: {error}");
        assert!(matches!(pipeline.step(batch(1)), Err(StepError::Stopped { .. })), "{case}");

        self.assert_continues(pipeline, &case, rehearses);
    }

    /// Injects a panic at `point` in the second of three overlapping steps, which begin before the previous step has
    /// ended. Returns false if that step has no such point.
    fn survive_overlapping(&self, point: Point) -> bool {
        let case = format!("{}, {point:?}, overlapping", self.name);
        let mut pipeline = (self.build)(1).build().unwrap();
        let before = pipeline.checkpoint().unwrap();
        *WANTED.lock().unwrap() = Some(point.clone());
        let mut reports: Vec<_> = pipeline.steps((0..3).map(batch)).collect();
        if WANTED.lock().unwrap().take().is_some() {
            assert!(reports.len() == 3 && reports.iter().all(Result::is_ok), "{case}: {reports:?}");
            assert!(pipeline.checkpoint().unwrap() == self.undisturbed[2], "{case}");
            return false;
        }
        let Some(Err(StepError::Stage(failure))) = reports.pop() else { panic!("{case}: {reports:?}") };
        assert_eq!(
            (failure.replica.index, failure.stage, failure.activity),
            (point.replica, point.stage, point.activity),
            "{case}"
        );
        assert!(reports.iter().all(Result::is_ok), "{case}");

        let left = pipeline.checkpoint().unwrap();
        let made = left.progress.steps as usize;
        let expected = made.checked_sub(1).map_or(&before, |last| &self.undisturbed[last]);
        assert!(left == *expected && made <= 2, "{case}: {made} steps, or the stages have made different steps");
        let mut again: Pipeline<_, _, _> = (self.build)(2).restore(left).build().unwrap();
        assert!(again.steps((made as u64..3).map(batch)).all(|report| report.is_ok()), "{case}");
        assert!(again.checkpoint().unwrap() == self.undisturbed[2], "{case}");
        true
    }

    /// Injects a panic at `point` in a rehearsal (a step that only measures memory and is rolled back). Returns false
    /// if a rehearsal has no such point.
    fn survive_rehearsing(&self, point: Point, rehearses: bool) -> bool {
        let case = format!("{}, {point:?}", self.name);
        let mut pipeline = (self.build)(1).build().unwrap();
        pipeline.step(batch(0)).unwrap();
        *WANTED.lock().unwrap() = Some(point.clone());
        let ended = pipeline.estimate_memory(batch(1));
        if WANTED.lock().unwrap().take().is_some() {
            assert!(ended.is_ok(), "{case}");
            return false;
        }
        let Err(StepError::Stage(failure)) = &ended else { panic!("{case}: {ended:?}") };
        assert_eq!(
            (failure.replica.index, failure.stage, failure.activity),
            (point.replica, point.stage, point.activity),
            "{case}"
        );
        self.assert_continues(pipeline, &case, rehearses);
        true
    }

    /// Asserts that a pipeline that failed in its second step still has the state after the first step. A new pipeline,
    /// restored from this state, must make the second step with the same bits as without a panic. If `rehearses` is set,
    /// it first makes a rehearsal.
    fn assert_continues(&self, mut pipeline: Pipeline<Tensor<2>, Tensor<2>, Target>, case: &str, rehearses: bool) {
        let left = pipeline.checkpoint().unwrap();
        assert!(left == self.undisturbed[0], "{case}: a stage has stepped");
        let mut again: Pipeline<_, _, _> = (self.build)(2).restore(left).build().unwrap();
        if rehearses {
            again.estimate_memory(batch(7)).unwrap().unwrap();
        }
        again.step(batch(1)).unwrap();
        assert!(again.checkpoint().unwrap() == self.undisturbed[1], "{case}");
    }
}

/// Returns the trainings into which tests inject panics. They differ in their schedules and in their numbers of stages,
/// micro-batches and replicas.
fn cases() -> impl Iterator<Item = Case> {
    let plain: [Scheduled; 4] = [&GPipe, &OneFOneB, &EagerOneFOneB, &ZbH1];
    let chunked: [Scheduled; 3] = [&Interleaved { chunks: 2 }, &LoopedBreadthFirst { chunks: 2 }, &ZbV];
    let shapes = |schedules: Vec<Scheduled>, shapes: &[(usize, usize)]| {
        let shapes = shapes.to_vec();
        schedules.into_iter().flat_map(move |schedule| shapes.clone().into_iter().map(move |shape| (schedule, shape)))
    };
    let mut plans = Vec::new();
    let plain = shapes(plain.to_vec(), &[(1, 1), (1, 2), (2, 1), (2, 2), (2, 3), (3, 2), (3, 3)]).filter(
        // With few micro-batches, several schedules have the same plan, which is tested once.
        move |(schedule, (stages, micro_batches))| {
            let plan = schedule.plan(*stages, *micro_batches).unwrap();
            let is_new = !plans.contains(&plan);
            plans.push(plan);
            is_new
        },
    );
    let case = |(schedule, (stages, micro_batches)): (Scheduled, (usize, usize))| {
        let name = format!("{} P={stages} M={micro_batches}", schedule.name());
        Case::new(name, move |seed| tied(seed, stages, micro_batches, schedule))
    };
    let others = shapes(vec![&ZbH2], &[(2, 2)]).chain(shapes(vec![&VHalf, &VMin, &DualPipeV], &[(4, 2)]));
    let cases = plain.chain(shapes(chunked.to_vec(), &[(2, 2), (4, 2)])).chain(others).map(case);
    let replicated =
        shapes(vec![&OneFOneB, &ZbH1], &[(1, 1), (2, 2)]).chain(shapes(vec![&Interleaved { chunks: 2 }], &[(4, 2)]));
    let replicated = replicated.map(|(schedule, (stages, micro_batches))| {
        let name = format!("{} P={stages} M={micro_batches} R=2", schedule.name());
        let build = move |seed| tied(seed, stages, micro_batches, schedule).replica(vec![device(); stages]);
        Case::new(name, build)
    });
    cases.chain(replicated).chain([Case::new("running statistics".to_owned(), |seed| noisy(seed, 2))])
}

/// Calls `with` for every training and every place in it where a test can inject a panic, and with true for the first
/// place of a training. The panics of workers are expected, so they are not printed. The moments after instructions of
/// the plan are places only in one training with whole backwards and one with split ones.
fn each_point(mut with: impl FnMut(&Case, Point, bool) + Send + 'static) {
    let loud = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if !thread::current().name().is_some_and(|name| name.starts_with("stage-")) {
            loud(info);
        }
    }));
    listen();
    for case in cases() {
        // The limit of a minute is for each case, so that a hang fails the test soon.
        with = mlp::within_a_minute(move || {
            let mut is_first = true;
            for &(replica, stage, activity) in &case.points {
                for moment in [Moment::Before, Moment::After] {
                    let is_instruction = matches!(activity, Activity::Instruction(_));
                    if moment == Moment::Before || !is_instruction || case.after_instructions {
                        with(&case, Point { replica, stage, activity, moment, during: "step 1" }, is_first);
                        is_first = false;
                    }
                }
            }
            with
        });
    }
}

/// A stage for tests of warnings. Its first layer is marked for recomputation, and the backward of its second layer
/// cannot be split. If `detaches` is set, it detaches its input from the autodiff graph, so nothing can be recomputed.
#[derive(burn::module::Module, Debug)]
struct Odd {
    marked: mlp::Layer,
    plain: burn::nn::Linear,
    #[module(skip)]
    detaches: bool,
}

impl stageline::Stage for Odd {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        let input = if self.detaches { input.inner().autodiff() } else { input };
        let marked = stageline::nn::block(&self.marked, input, stageline::Stage::forward);
        self.plain.forward(marked)
    }
}

/// Tests two warnings: that recomputation has no effect, and that backwards cannot be split. Each is logged once for
/// each stage, with the stage's name.
#[test]
fn recomputation_and_split_backwards_that_do_nothing_are_reported() {
    use stageline::Recompute;
    if ran_in_a_process_of_its_own() {
        return;
    }
    listen();
    let complaints = |recompute, schedule: Scheduled, detaches| {
        let Mlp { mut layers, error } = Mlp::new(3, WIDTH, 1);
        let plain = burn::nn::LinearConfig::new(WIDTH, WIDTH).init(&device().autodiff());
        let odd = Odd { marked: layers.pop().unwrap(), plain, detaches };
        let config = || mlp::config().recompute(recompute);
        let chain = Pipeline::builder().stage(layers.pop().unwrap(), config()).stage(odd, config());
        let mut pipeline = chain.loss(error, config()).schedule(schedule).micro_batches(3).build().unwrap();
        COMPLAINTS.take();
        for step in 0..2 {
            let (input, target) = Mlp::batch(6, WIDTH, false, step);
            pipeline.step(Batch::new(input, target)).unwrap();
        }
        drop(pipeline);
        let mut complaints = COMPLAINTS.take();
        complaints.sort();
        complaints
    };
    assert_eq!(complaints(Recompute::Nothing, &OneFOneB, false), [""; 0]);
    let not_split = "the backward of `plain.weight` in stage 1, and of 1 more of its parameters, is not split";
    let found = complaints(Recompute::Nothing, &ZbH1, false);
    assert!(found.len() == 1 && found[0].starts_with(not_split), "{found:?}");
    let found = complaints(Recompute::Full, &OneFOneB, false);
    let unmarked = |stage| format!("stage {stage} recomputes nothing: it has no part that the policy names");
    assert!(found.len() == 2 && found[0].starts_with(&unmarked(0)) && found[1].starts_with(&unmarked(2)), "{found:?}");
    let found = complaints(Recompute::Full, &OneFOneB, true);
    let untracked = "stage 1 recomputes nothing: the inputs of all its marked parts are outside the graph";
    assert!(found.len() == 3 && found.iter().any(|complaint| complaint.starts_with(untracked)), "{found:?}");
    let found = complaints(Recompute::Selective, &OneFOneB, false);
    assert!(found.len() == 3 && found[1].starts_with(&unmarked(1)), "{found:?}");
}

/// Tests the fields of tracing spans. The span of an action has its stage, its micro-batch, the time of the wait before
/// it, and the cause of the wait. The span of a step begins before its actions. It has the step's loss, loss weight and
/// bubble, even if the loss weight is 0.
#[test]
fn spans_of_actions_and_steps_have_their_fields() {
    if ran_in_a_process_of_its_own() {
        return;
    }
    listen();
    let mut pipeline = tied(1, 2, 3, &OneFOneB).build().unwrap();
    *NOTED.lock().unwrap() = Some(Vec::new());
    let report = pipeline.step(batch(0)).unwrap();
    let (input, (wanted, mask)) = Mlp::batch(6, WIDTH, false, 5);
    let masked = pipeline.step(Batch::new(input, (wanted, mask * 0.0))).unwrap();
    drop(pipeline);
    let noted = NOTED.lock().unwrap().take().unwrap();
    let steps: Vec<_> = noted.iter().filter(|note| note.step.is_some()).collect();
    let figures = BTreeMap::from([("loss", report.loss), ("weight", report.weight()), ("bubble", report.bubble())]);
    assert!(steps.len() == 2 && steps[0].step == Some(0) && steps[0].figures == figures, "{steps:?}");
    assert_eq!(noted[0], *steps[0], "a worker has begun before the span of its step");
    assert_eq!((masked.update, steps[1].step), (Update::NoWeight, Some(1)));
    let figure = |name: &str| steps[1].figures[name];
    assert!(figure("loss").is_nan() && figure("weight") == 0.0 && figure("bubble") == masked.bubble(), "{steps:?}");
    let mut waits = 0;
    for note in &noted {
        let Ok(activity) = note.action.parse::<Activity>() else { continue };
        // A wait of less than a microsecond may have a cause or none.
        let cause = activity.wait_cause().map(|cause| cause.to_string());
        assert!(note.waited_for.is_none() || note.waited_for == cause, "{note:?}");
        assert!(note.waited_us == Some(0) || note.waited_for.is_some(), "{note:?}");
        waits += usize::from(note.waited_for.is_some());
    }
    assert!(waits > 0, "no action has waited: {noted:?}");
    for compute in ["F", "B"] {
        let mut found: Vec<_> = Vec::new();
        for note in &noted {
            let parts = note
                .action
                .split_once(compute)
                .and_then(|(stage, micro_batch)| Some((stage.parse::<u64>().ok()?, micro_batch.parse::<u64>().ok()?)));
            if let Some((stage, micro_batch)) = parts {
                assert_eq!((note.stage, note.micro_batch), (Some(stage), Some(micro_batch)), "{note:?}");
                assert!(note.waited_us.is_some(), "{note:?}");
                found.push((stage, micro_batch));
            }
        }
        found.sort_unstable();
        assert_eq!(found, [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)], "{compute}");
    }
}

#[test]
fn a_panic_anywhere_in_a_step_rolls_it_back_on_all_stages() {
    if ran_in_a_process_of_its_own() {
        return;
    }
    let counts = Arc::new(Mutex::new((0, 0)));
    let seen = Arc::clone(&counts);
    each_point(move |case, point, is_first| {
        let mut seen = seen.lock().unwrap();
        seen.0 += 1;
        seen.1 += usize::from(!matches!(point.activity, Activity::Instruction(_)));
        case.survive(point, is_first);
    });
    let (injections, flush) = *counts.lock().unwrap();
    println!("{injections} panics, {flush} of them in the flush");
    // docs/reliability.md quotes these numbers: change them there too.
    assert_eq!((injections, flush), (2013, 992), "panics, and those of them outside the plan's actions");
}

/// Tests a panic of one stage after its optimizer step, without the setting `rollback`. The step cannot be rolled back,
/// although the other stages have not stepped. So the training ends, and the error names the last checkpoint.
#[test]
fn without_rollback_a_panic_in_the_flush_ends_the_training_and_names_the_last_checkpoint() {
    if ran_in_a_process_of_its_own() {
        return;
    }
    listen();
    let mut undisturbed = tied(1, 2, 2, &OneFOneB).build().unwrap();
    let mut pipeline = tied(1, 2, 2, &OneFOneB).rollback(false).build().unwrap();
    for step in 0..2 {
        undisturbed.step(batch(step)).unwrap();
        // A rehearsal is rolled back even without `rollback`.
        pipeline.estimate_memory(batch(step)).unwrap();
        pipeline.step(batch(step)).unwrap();
        let kept = pipeline.checkpoint().unwrap();
        assert!(kept == undisturbed.checkpoint().unwrap());
    }
    pipeline.step(batch(2)).unwrap();
    let (activity, moment) = (Activity::Follow, Moment::After);
    *WANTED.lock().unwrap() = Some(Point { replica: 0, stage: 0, activity, moment, during: "step 3" });
    let error = pipeline.step(batch(3)).unwrap_err();
    assert!(matches!(error, StepError::Torn { stage: 0, checkpoint: Some(2), .. }), "{error}");
    let message = error.to_string();
    assert!(
        message.contains("sabotage")
            && message.ends_with("resume from the checkpoint after 2 steps, the last one that was taken"),
        "{message}"
    );
    assert!(matches!(pipeline.checkpoint(), Err(StepError::Lost { stage: 0 })));
}

#[test]
fn a_panic_anywhere_in_overlapping_steps_leaves_whole_steps() {
    if ran_in_a_process_of_its_own() {
        return;
    }
    let counts = Arc::new(Mutex::new((0, 0)));
    let seen = Arc::clone(&counts);
    each_point(move |case, point, _| {
        // In overlapping steps, the moment after an instruction is like the moment before the next one.
        if point.moment == Moment::After && matches!(point.activity, Activity::Instruction(_)) {
            return;
        }
        let survived = case.survive_overlapping(point);
        let mut seen = seen.lock().unwrap();
        seen.0 += usize::from(survived);
        seen.1 += usize::from(!survived);
    });
    let (injections, missed) = *counts.lock().unwrap();
    println!("{injections} panics in overlapping steps; {missed} points that such steps do not have");
    // The order of the threads decides whether a step waits for a late verdict, and so whether a few of the points
    // exist.
    assert_eq!(injections + missed, 1977, "panics in overlapping steps, and points that such steps do not have");
    assert!(injections >= 1955, "{injections} panics, and {missed} points that such steps do not have");
}

#[test]
fn a_panic_anywhere_in_a_rehearsal_leaves_no_trace() {
    if ran_in_a_process_of_its_own() {
        return;
    }
    let count = Arc::new(Mutex::new(0));
    let seen = Arc::clone(&count);
    each_point(move |case, point, is_first| {
        // The moment after an activity of a rehearsal is the same as before the next activity.
        let survived = point.moment == Moment::Before
            && case.survive_rehearsing(Point { during: "a rehearsal after 1 steps", ..point }, is_first);
        *seen.lock().unwrap() += usize::from(survived);
    });
    let injections = *count.lock().unwrap();
    println!("{injections} panics in rehearsals");
    assert_eq!(injections, 1387, "panics in rehearsals");
}
