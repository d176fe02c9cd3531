//! Tests of recomputation (activation checkpointing): it changes no bit of the trained parameters, also with dropout,
//! running statistics, split backwards and a lower precision.

use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use burn::module::Module;
use burn::tensor::{Int, Tensor};
use stageline::nn::{block, is_recomputation, selective};
use stageline::schedule::{Interleaved, OneFOneB, Schedule, ZbH1};
use stageline::{Batch, BlockOutOfRange, BlockSet, Pipeline, Precision, Recompute, SharedInput, Stage};

use crate::mlp::{Error, Layer, Mlp, Noisy, bits, config};

const WIDTH: usize = 6;

/// A stage for tests of recomputation, with dropout and running statistics. Its whole forward is marked for
/// recomputation, and a part inside it is marked a second time.
#[derive(Module, Debug)]
struct Marked {
    outer: Noisy,
    inner: Noisy,
}

impl Stage for Marked {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        block(self, input, |marked, input| {
            let hidden = marked.outer.forward(input);
            // Uses the outer layer twice, and marks the inner layer inside the marked stage.
            selective(&marked.inner, hidden.clone() + marked.outer.forward(hidden), Noisy::forward)
        })
    }
}

/// Trains a pipeline with the given recomputation for three steps, and returns the bits of each stage's parameters and
/// running statistics.
fn train(recompute: Recompute, schedule: &'static (dyn Schedule + Sync), precision: Precision) -> Vec<Vec<u32>> {
    let Mlp { mut layers, error } = Mlp::new(6, WIDTH, 3);
    let mut noisy = |salt| Noisy::new(layers.pop().unwrap(), salt);
    let mut marked = |salt| Marked { outer: noisy(salt), inner: noisy(salt + 1) };
    let (first, second) = (marked(0), marked(2));
    let config = || config().recompute(recompute);
    // The first stage begins with an unmarked layer, so that the input of the marked part has a gradient.
    let (front, back) = (layers.pop().unwrap(), layers.pop().unwrap());
    let chain = Pipeline::builder().stage((front, first), config()).stage(second, config());
    let chain = chain.stage(back, config()).loss((Vec::<Layer>::new(), error), config());
    let builder = chain.schedule(schedule).micro_batches(4).precision(precision).cores_per_stage(1);
    let mut pipeline = builder.build().unwrap();
    for step in 0..3 {
        let (input, target) = Mlp::batch(11, WIDTH, true, step);
        pipeline.step(Batch::new(input, target)).unwrap();
    }
    let mut modules = pipeline.into_modules();
    vec![
        bits(&modules.take::<(Layer, Marked)>(0).unwrap()),
        bits(&modules.take::<Marked>(1).unwrap()),
        bits(&modules.take::<Layer>(2).unwrap()),
        bits(&modules.take::<(Vec<Layer>, Error)>(3).unwrap()),
    ]
}

#[test]
fn recomputation_changes_no_bit_with_dropout_statistics_split_backwards_and_bf16() {
    const INTERLEAVED: &Interleaved = &Interleaved { chunks: 2 };
    for precision in [Precision::Full, Precision::Bf16] {
        let kept = train(Recompute::Nothing, &OneFOneB, precision);
        for schedule in [&OneFOneB as &'static (dyn Schedule + Sync), &ZbH1, INTERLEAVED] {
            for recompute in [Recompute::Nothing, Recompute::Selective, Recompute::Blocks(1), Recompute::Full] {
                let again = train(recompute, schedule, precision);
                assert!(again == kept, "{recompute:?} {} {precision}", schedule.name());
            }
        }
    }
}

/// A layer for tests of recomputation that panics in one recomputation, while the flag `armed` is set; the panic clears
/// the flag.
#[derive(Module, Debug)]
struct Sabotaged {
    layer: Layer,
    #[module(skip)]
    armed: Arc<AtomicBool>,
}

impl Stage for Sabotaged {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        block(self, input, |sabotaged, input| {
            let armed = is_recomputation() && sabotaged.armed.swap(false, Ordering::Relaxed);
            assert!(!armed, "sabotage");
            sabotaged.layer.forward(input)
        })
    }
}

/// Tests a panic in a recomputation, which is part of a backward: the step is rolled back. After the panic, the
/// pipeline still returns a checkpoint. Training resumes from it with the same bits as without a panic.
#[test]
fn a_panic_in_a_recomputation_rolls_back_the_step() {
    let batch = |step| {
        let (input, target) = Mlp::batch(6, WIDTH, true, step);
        Batch::new(input, target)
    };
    for schedule in [&OneFOneB as &'static (dyn Schedule + Sync), &ZbH1] {
        let armed = Arc::new(AtomicBool::new(false));
        let build = || {
            let Mlp { mut layers, error } = Mlp::new(2, WIDTH, 3);
            let sabotaged = Sabotaged { layer: layers.pop().unwrap(), armed: Arc::clone(&armed) };
            let config = || config().recompute(Recompute::Full);
            let chain = Pipeline::builder().stage((layers.pop().unwrap(), sabotaged), config());
            chain.loss((layers, error), config()).schedule(schedule).micro_batches(3).cores_per_stage(1)
        };
        let mut whole = build().build().unwrap();
        (0..2).for_each(|step| drop(whole.step(batch(step)).unwrap()));
        let mut pipeline = build().build().unwrap();
        pipeline.step(batch(0)).unwrap();
        armed.store(true, Ordering::Relaxed);
        let error = pipeline.step(batch(1)).unwrap_err().to_string();
        assert!(error.starts_with("stage 0 failed in action 0") && error.contains("sabotage"), "{error}");
        let left = pipeline.checkpoint().unwrap();
        assert_eq!(left.progress.steps, 1);
        let mut again = build().restore(left).build().unwrap();
        again.step(batch(1)).unwrap();
        assert!(again.checkpoint().unwrap() == whole.checkpoint().unwrap(), "{}", schedule.name());
    }
}

/// A block of a test model, with dropout, which counts how often it is recomputed. Its input and output also have a
/// number that every block increments, and an input that all blocks share.
#[derive(Module, Debug)]
struct Counted {
    noisy: Noisy,
    marked: bool,
    #[module(skip)]
    recomputed: Arc<AtomicUsize>,
}

type States = (Tensor<2>, Tensor<1, Int>, SharedInput<Tensor<2>>);

impl Stage for Counted {
    type Input = States;
    type Output = States;

    fn forward(&self, (states, passed, given): States) -> States {
        let states = states + given.get() * passed.clone().float().unsqueeze();
        self.recomputed.fetch_add(usize::from(is_recomputation()), Ordering::Relaxed);
        // A mark inside a block of a row is not counted as another block.
        let states = if self.marked { block(&self.noisy, states, Noisy::forward) } else { self.noisy.forward(states) };
        (states, passed + 1, given)
    }
}

/// The first layer of the model for recomputation tests. Its output has three parts: the result of a linear layer, a
/// counter that starts at 0, and the input that all blocks share.
#[derive(Module, Debug)]
struct Front {
    layer: Layer,
}

impl Stage for Front {
    type Input = (Tensor<2>, SharedInput<Tensor<2>>);
    type Output = States;

    fn forward(&self, (input, given): Self::Input) -> States {
        let passed = Tensor::zeros([1], &input.device());
        (self.layer.forward(input), passed, given)
    }
}

/// The last layer of the model for recomputation tests, with the masked squared error as its loss.
#[derive(Module, Debug)]
struct Back {
    error: Error,
}

impl Stage for Back {
    type Input = States;
    type Output = Tensor<2>;

    fn forward(&self, (states, passed, _): States) -> Tensor<2> {
        self.error.forward(states * passed.float().unsqueeze())
    }
}

impl stageline::LossStage for Back {
    type Target = crate::mlp::Target;

    fn loss(&self, output: Tensor<2>, target: Self::Target) -> Tensor<1> {
        self.error.loss(output, target)
    }

    fn weight(&self, target: &Self::Target) -> stageline::Weight {
        self.error.weight(target)
    }
}

const BLOCKS: usize = 5;

/// Trains the model for recomputation tests for two steps of three micro-batches. Returns the bits of the parameters of
/// stage 0 (the first layer and the blocks), and how often each block was recomputed.
fn counted(recompute: Recompute) -> (Vec<u32>, Vec<usize>) {
    let Mlp { mut layers, error } = Mlp::new(BLOCKS + 1, WIDTH, 3);
    let front = Front { layer: layers.pop().unwrap() };
    let counted =
        |(salt, layer)| Counted { noisy: Noisy::new(layer, salt), marked: salt % 2 == 0, recomputed: Arc::default() };
    let blocks: Vec<_> = (0..).zip(layers).map(counted).collect();
    let counters: Vec<_> = blocks.iter().map(|block| Arc::clone(&block.recomputed)).collect();
    let chain = Pipeline::builder().stage((front, blocks), config().recompute(recompute));
    let builder = chain.loss(Back { error }, config()).micro_batches(3).cores_per_stage(1);
    let mut pipeline = builder.build().unwrap();
    for step in 0..2 {
        let (input, target) = Mlp::batch(6, WIDTH, true, step);
        pipeline.step(Batch::new((input.clone(), SharedInput::new(input * 0.1)), target)).unwrap();
    }
    let modules = pipeline.into_modules().take::<(Front, Vec<Counted>)>(0).unwrap();
    (bits(&modules), counters.iter().map(|count| count.load(Ordering::Relaxed)).collect())
}

/// Tests recomputation of segments (groups of consecutive blocks) and of selected blocks. It changes no bit of the
/// parameters. Each recomputed block runs again once for each of the six micro-batches.
#[test]
fn segments_and_selected_blocks_are_recomputed_and_change_no_bit() {
    let (kept, none) = counted(Recompute::Nothing);
    assert_eq!(none, [0; BLOCKS]);
    let segments = |n| Recompute::Segments(NonZero::new(n).unwrap());
    for recompute in [segments(1), segments(2), segments(9), Recompute::SquareRoot] {
        assert!(counted(recompute) == (kept.clone(), vec![6; BLOCKS]), "{recompute}");
    }
    let only = Recompute::Only(BlockSet::new([1, 4]).unwrap());
    assert_eq!(only.to_string(), "the blocks 1,4");
    assert!(counted(only) == (kept.clone(), vec![0, 6, 0, 0, 6]));
    assert!(counted(Recompute::Blocks(2)) == (kept.clone(), vec![6, 6, 0, 0, 0]));
    assert!(counted(Recompute::EveryNth(NonZero::new(3).unwrap())) == (kept.clone(), vec![6, 0, 0, 6, 0]));
    assert!(counted(Recompute::Full) == (kept, vec![6; BLOCKS]));
    assert_eq!(BlockSet::new([3, 128]), Err(BlockOutOfRange { block: 128 }));
}

type Pair = (Tensor<2>, Option<Tensor<2>>);

/// A layer whose output is a pair in which the second tensor is `None`.
#[derive(Module, Debug)]
struct Single {
    layer: Layer,
}

impl Stage for Single {
    type Input = Tensor<2>;
    type Output = Pair;

    fn forward(&self, input: Tensor<2>) -> Pair {
        (self.layer.forward(input), None)
    }
}

/// A block that sets the second tensor of a pair to its input if that tensor is `None`. Its forward may fail.
#[derive(Module, Debug)]
struct Skipping {
    layer: Layer,
    #[module(skip)]
    fails: bool,
}

impl Stage for Skipping {
    type Input = Pair;
    type Output = Pair;

    fn forward(&self, (states, skipped): Pair) -> Pair {
        (self.layer.forward(states.clone()), skipped.or(Some(states)))
    }

    fn try_forward(&self, input: Pair) -> Result<Pair, Box<dyn std::error::Error + Send + Sync>> {
        if self.fails { Err("it fails on purpose".into()) } else { Ok(self.forward(input)) }
    }
}

/// A last layer that adds both tensors of a pair.
#[derive(Module, Debug)]
struct Joining {
    error: Error,
}

impl Stage for Joining {
    type Input = Pair;
    type Output = Tensor<2>;

    fn forward(&self, (states, skipped): Pair) -> Tensor<2> {
        self.error.forward(states + skipped.unwrap())
    }
}

impl stageline::LossStage for Joining {
    type Target = crate::mlp::Target;

    fn loss(&self, output: Tensor<2>, target: Self::Target) -> Tensor<1> {
        self.error.loss(output, target)
    }

    fn weight(&self, target: &Self::Target) -> stageline::Weight {
        self.error.weight(target)
    }
}

/// Trains a model for one step whose blocks return a second float tensor. The block with the index `fails` fails; with
/// `None`, no block fails. Returns the bits of the parameters of stage 0, which contains all blocks, or the error of
/// the step.
fn skipping(recompute: Recompute, fails: Option<usize>) -> Result<Vec<u32>, String> {
    let Mlp { mut layers, error } = Mlp::new(4, WIDTH, 3);
    let front = Single { layer: layers.pop().unwrap() };
    let block = |(index, layer)| Skipping { layer, fails: fails == Some(index) };
    let blocks: Vec<_> = layers.into_iter().enumerate().map(block).collect();
    let chain = Pipeline::builder().stage((front, blocks), config().recompute(recompute));
    let mut pipeline = chain.loss(Joining { error }, config()).micro_batches(2).build().unwrap();
    let (input, target) = Mlp::batch(6, WIDTH, true, 0);
    pipeline.step(Batch::new(input, target)).map_err(|error| error.to_string())?;
    Ok(bits(&pipeline.into_modules().take::<(Single, Vec<Skipping>)>(0).unwrap()))
}

#[test]
fn a_recomputed_block_whose_output_has_more_float_tensors_is_an_error_and_a_later_one_is_kept() {
    let kept = skipping(Recompute::Nothing, None).unwrap();
    let later = Recompute::Only(BlockSet::new([1, 2]).unwrap());
    assert!(skipping(later, None) == Ok(kept), "their inputs have two float tensors");
    let error = skipping(Recompute::Full, None).unwrap_err();
    let expected = "must return exactly one float tensor, of rank 2 as in its input; it returned float tensors of the ranks [2, 2]";
    assert!(error.contains(expected), "{error}");
}

#[test]
fn the_error_of_a_block_ends_the_step_whether_the_block_is_recomputed_or_kept() {
    for recompute in [Recompute::Nothing, Recompute::Blocks(0), Recompute::Full] {
        let error = skipping(recompute, Some(0)).unwrap_err();
        assert!(error.contains("it fails on purpose"), "{recompute}: {error}");
    }
}
