//! Tests that recomputation and split backwards take effect on a GPU, instead of falling back to whole backwards. The
//! tests count recomputations and split layers.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Once};

use burn::module::Module;
use burn::nn::LinearConfig;
use burn::tensor::{Device, Tensor};
use stageline::nn::{block, is_recomputation};
use stageline::schedule::{Compute, Instruction, OneFOneB, ZbH1};
use stageline::{Activity, Batch, Pipeline, Recompute, Stage, StageConfig};
use stageline_workspace::mlp::{Layer, Mlp, bits};
use stageline_workspace::own_process::ran_in_a_process_of_its_own;
use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;

use crate::{builder, open};

const WIDTH: usize = 8;
const MICRO_BATCHES: usize = 4;

fn config(recompute: Recompute) -> StageConfig {
    let device = open("gpu").remove(0);
    StageConfig::new(device, burn::optim::AdamWConfig::new().init(), 0.01).recompute(recompute)
}

fn batch(step: u64) -> Batch<Tensor<2>, stageline_workspace::mlp::Target> {
    let (input, target) = Mlp::batch(2 * MICRO_BATCHES, WIDTH, false, step);
    Batch::new(input, target)
}

/// A layer for tests on a GPU that is marked for recomputation, and counts its forwards and its recomputations.
#[derive(Module, Debug)]
struct Counted {
    layer: Layer,
    #[module(skip)]
    forwards: Arc<AtomicUsize>,
    #[module(skip)]
    recomputed: Arc<AtomicUsize>,
}

impl Stage for Counted {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        block(self, input, |counted, input| {
            let counter = if is_recomputation() { &counted.recomputed } else { &counted.forwards };
            counter.fetch_add(1, Ordering::Relaxed);
            counted.layer.forward(input)
        })
    }
}

#[test]
fn a_marked_layer_is_recomputed_once_for_every_micro_batch() {
    for (recompute, expected) in [(Recompute::Nothing, 0), (Recompute::Full, MICRO_BATCHES)] {
        let (forwards, recomputed) = (Arc::default(), Arc::default());
        let Mlp { mut layers, error } = Mlp::new(2, WIDTH, 5);
        let layer = layers.pop().unwrap();
        let counted = Counted { layer, forwards: Arc::clone(&forwards), recomputed: Arc::clone(&recomputed) };
        // The unmarked layer in front gives the input of the marked layer a gradient.
        let chain = Pipeline::builder().stage((layers.pop().unwrap(), counted), config(recompute));
        let chain = chain.loss((layers, error), config(Recompute::Nothing));
        let mut pipeline = chain.schedule(OneFOneB).micro_batches(MICRO_BATCHES).build().unwrap();
        pipeline.step(batch(0)).unwrap();
        drop(pipeline);
        let counts = [&forwards, &recomputed].map(|count: &Arc<AtomicUsize>| count.load(Ordering::Relaxed));
        assert_eq!(counts, [MICRO_BATCHES, expected], "{recompute}");
    }
}

/// A layer from Stageline, whose backward can be split into input gradient and weight gradients.
#[derive(Module, Debug)]
struct Splits {
    split_on_the_device: Layer,
}

/// A layer from burn, whose backward cannot be split into input gradient and weight gradients.
#[derive(Module, Debug)]
struct Whole {
    whole_on_the_device: burn::nn::Linear,
}

impl Stage for Splits {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        self.split_on_the_device.forward(input)
    }
}

impl Stage for Whole {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        self.whole_on_the_device.forward(input)
    }
}

/// The recorded log of this test process: the warnings, and the debug messages of the module `stageline::runner`.
static WARNINGS: Mutex<Vec<u8>> = Mutex::new(Vec::new());

/// A writer that appends log lines to the recorded log of this test process.
struct ToWarnings;

impl io::Write for ToWarnings {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        WARNINGS.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Starts to record the log of all threads of this test process: the warnings, and the debug messages of the module
/// `stageline::runner`.
pub fn keep_warnings() {
    static FIRST: Once = Once::new();
    FIRST.call_once(|| {
        let kept = Targets::new().with_default(Level::WARN).with_target("stageline::runner", Level::DEBUG);
        let layer = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(|| ToWarnings).with_filter(kept);
        tracing::subscriber::set_global_default(tracing_subscriber::registry().with(layer)).unwrap();
    });
}

/// Returns the recorded log of this test process so far: the warnings, and the debug messages of the module
/// `stageline::runner`.
pub fn warnings() -> String {
    String::from_utf8(WARNINGS.lock().unwrap().clone()).unwrap()
}

/// Tests split backwards: the first half leaves the gradients of a layer's weights to the second half. A layer of burn
/// cannot split its backward, so the first half computes its weight gradients. The pipeline logs a warning for the
/// weights of burn's layer, and none for those of Stageline's layers.
#[test]
fn weight_gradients_are_computed_in_the_second_halves_of_backwards() {
    keep_warnings();
    let Mlp { mut layers, error } = Mlp::new(1, WIDTH, 6);
    let splits = Splits { split_on_the_device: layers.pop().unwrap() };
    let before = bits(&splits);
    let plain = LinearConfig::new(WIDTH, WIDTH).init(&Device::flex().autodiff());
    let chain = Pipeline::builder().stage(splits, config(Recompute::Nothing));
    let chain = chain.stage(Whole { whole_on_the_device: plain }, config(Recompute::Nothing));
    let builder = chain.loss(error, config(Recompute::Nothing)).schedule(ZbH1).micro_batches(MICRO_BATCHES);
    let mut pipeline = builder.build().unwrap();
    let report = pipeline.step(batch(1)).unwrap();

    let is = |activity: Activity, kind: Compute| match activity {
        Activity::Instruction(Instruction::Compute(action)) => action.compute == kind,
        _ => false,
    };
    let count =
        |kind: Compute| report.recording.events().iter().flatten().filter(|event| is(event.activity, kind)).count();
    let halves = [Compute::InputGradient, Compute::WeightGradient, Compute::Backward].map(count);
    assert_eq!(halves, [3 * MICRO_BATCHES, 3 * MICRO_BATCHES, 0]);

    let warnings = warnings();
    assert!(warnings.contains("the backward of `whole_on_the_device.weight` in stage 1"), "{warnings}");
    assert!(!warnings.contains("split_on_the_device"), "{warnings}");
    let after = bits(&pipeline.into_modules().take::<Splits>(0).unwrap());
    let changed = before.iter().zip(&after).filter(|(before, after)| before != after).count();
    assert!(changed > before.len() / 2, "{changed} of {} numbers have changed", before.len());
}

/// Returns what the stages have logged about split backwards, one text per stage, in the order of the stages. Each text
/// has the number and the paths of the parameters whose gradients the first half of the backward has computed.
pub fn of_first_halves(log: &str) -> Vec<String> {
    let about = log.split("weight gradients in the first halves of backwards of ").skip(1);
    let mut found: Vec<_> = about.map(|text| text.split_inclusive(')').next().unwrap().to_owned()).collect();
    found.sort();
    found
}

/// Tests that every layer of a GPT splits its backward: the first half computes the gradient of the input, and leaves
/// the gradients of weights to the second half. The table of positions is a parameter outside of Stageline's layers, so
/// the first half does compute its gradient. The test has a process of its own, because it reads the messages of all
/// stages.
#[test]
fn the_backward_of_every_layer_of_a_gpt_is_split() {
    if ran_in_a_process_of_its_own() {
        return;
    }
    keep_warnings();
    let before = warnings().len();
    let mut pipeline = builder("gpu", 2, ZbH1, Recompute::Nothing).build().unwrap();
    pipeline.step(crate::batch(0)).unwrap();
    let found = of_first_halves(&warnings()[before..]);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].starts_with("stage 0: 1 (") && found[0].ends_with("positions)"), "{found:?}");
    assert_eq!(found[1], "stage 1: 0 ()");
}
