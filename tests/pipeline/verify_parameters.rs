//! Tests of the comparison of parameters in a verification: after one optimizer step they have the bits of a plain loop
//! on one thread, with and without recomputation, and a fault in one layer is reported with the name of that layer.

use std::sync::atomic::{AtomicU64, Ordering};

use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::NoCheckpointing};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::{Autodiff, Backend, Flex};
use burn::module::{Module, ParamId};
use burn::optim::SgdConfig;
use burn::tensor::Tensor;
use stageline::nn::{Deferred, Sum, block, is_recomputation, put_off};
use stageline::schedule::{Interleaved, Plan, ZbH1, ZbV};
use stageline::verify::{AfterOneStep, Cause};
use stageline::{Clip, Names, Pipeline, Precision, Recompute, Stage, StageConfig, Verification, Verify};

use crate::mlp::{Cut, Layer, Mlp, device};
use crate::verify::{MICRO_BATCHES, MlpBuilder, ROWS, WIDTH, batch, held_out, model};

type Make = Box<dyn Fn() -> MlpBuilder>;

fn config() -> StageConfig {
    StageConfig::new(device(), SgdConfig::new().init(), 0.5)
}

fn verified(build: impl Fn() -> MlpBuilder) -> Verification {
    Verify::new().steps(2).pipeline(build, batch, &held_out()).unwrap()
}

/// Returns the builder of a pipeline with three stages whose parameters are named `first`, `second` and `last`.
/// `middle` makes the second stage from a layer, and `recompute` has the recomputation policy of each stage.
fn named<S>(middle: impl Fn(Layer) -> S, recompute: [Recompute; 3]) -> MlpBuilder
where
    S: Stage<Input = Tensor<2>, Output = Tensor<2>>,
{
    let Mlp { mut layers, error } = model();
    let second = middle(layers.remove(1));
    let names = Names::new().part("first", &layers).part("second", &second).part("last", &error);
    let [of_first, of_second, of_last] = recompute.map(|recompute| config().recompute(recompute));
    let chain = Pipeline::builder().stage(layers, of_first).stage(second, of_second);
    chain.loss(error, of_last).micro_batches(MICRO_BATCHES).names(names)
}

fn names_of(comparison: &AfterOneStep) -> Vec<&str> {
    comparison.differences.iter().map(|difference| &*difference.name).collect()
}

#[test]
fn a_plan_of_one_worker_has_the_bits_of_a_plain_burn_loop() {
    let csv = "0F0,1F0,2F0,2B0,1B0,0B0,0F1,1F1,2F1,2B1,1B1,0B1\n";
    let schedule: &'static Plan = Box::leak(Box::new(Plan::from_csv(csv).unwrap()));
    let batches = [Mlp::batch(ROWS, WIDTH, true, 1), Mlp::batch(ROWS, WIDTH, true, 2)];
    let on_one_thread = model().train_cut(&Cut { schedule, ..Cut::new(3, 2) }, &batches).unwrap();
    assert_eq!(on_one_thread.bits(), model().train_plainly(2, &batches).bits());
}

#[test]
fn sound_pipelines_have_the_parameters_of_a_plain_loop_bit_for_bit() {
    let split = |stages: usize, recompute: Recompute| {
        move || model().split(stages, &config().recompute(recompute)).micro_batches(MICRO_BATCHES)
    };
    let of_four = || Mlp::new(3, WIDTH, 8).split(4, &config()).micro_batches(MICRO_BATCHES);
    let builders: [(&str, Make); 7] = [
        ("1F1B", Box::new(split(3, Recompute::Nothing))),
        ("clipped", Box::new(move || split(3, Recompute::Nothing)().clip(Clip::GlobalNorm(0.05)))),
        ("recomputing, split backwards", Box::new(move || split(3, Recompute::Full)().schedule(ZbH1))),
        ("interleaved", Box::new(move || of_four().schedule(Interleaved { chunks: 2 }))),
        ("ZB-V", Box::new(move || of_four().schedule(ZbV))),
        ("replicas", Box::new(move || split(2, Recompute::Nothing)().micro_batches(2).replica([device(), device()]))),
        ("bf16", Box::new(move || split(2, Recompute::Nothing)().precision(Precision::Bf16))),
    ];
    for (name, build) in builders {
        let verification = verified(build);
        assert!(verification.passes(), "{name}: {verification}");
        for comparison in &verification.parameters {
            assert!(comparison.differences.is_empty(), "{name}: {verification}");
        }
        let recomputes = name.starts_with("recomputing");
        assert_eq!(verification.parameters.len(), 1 + usize::from(recomputes), "{name}");
        let parameters = verification.parameters[0].parameters;
        let line = format!("  without recomputation: all {parameters} parameters are equal bit for bit\n");
        assert_eq!(verification.to_string().matches(&line).count(), 1, "{name}: {verification}");
    }
}

#[test]
fn the_report_names_the_policy_of_each_stage() {
    let policies = [Recompute::Nothing, Recompute::Full, Recompute::Selective];
    let verification = verified(|| named(|layer| vec![layer], policies));
    assert!(verification.passes(), "{verification}");
    let [configured, kept] = &verification.parameters[..] else { panic!("{verification}") };
    assert_eq!((&configured.recompute[..], &kept.recompute[..]), (&policies[..], &[Recompute::Nothing; 3][..]));
    assert_eq!((configured.parameters, kept.parameters), (6, 6));
    let line =
        "  recomputing all blocks on stage 1, selective parts on stage 2: all 6 parameters are equal bit for bit\n";
    assert!(verification.to_string().contains(line), "{verification}");
}

/// A layer for tests of verification with a deliberate fault. In a recomputation, it multiplies its output by a factor
/// that changes with every call; in a forward it does not.
#[derive(Module, Debug)]
struct Counting {
    layer: Layer,
}

impl Stage for Counting {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        static RECOMPUTED: AtomicU64 = AtomicU64::new(0);
        block(&self.layer, input, |layer, input| {
            let count = if is_recomputation() { 1 + RECOMPUTED.fetch_add(1, Ordering::Relaxed) % 3 } else { 0 };
            layer.forward(input) * (1.0 + 0.25 * count as f64)
        })
    }
}

#[test]
fn a_layer_with_a_wrong_recomputation_is_named() {
    let build =
        |recompute| move || named(|layer| Counting { layer }, [Recompute::Nothing, recompute, Recompute::Nothing]);
    let verification = verified(build(Recompute::Full));
    let name = "second.layer.linear.bias".to_owned();
    assert_eq!(verification.cause, Some(Cause::Recomputation { stage: 1, name }), "{verification}");
    let [configured, kept] = &verification.parameters[..] else { panic!("{verification}") };
    assert!(kept.differences.is_empty(), "{verification}");
    // The wrong layer also passes a wrong gradient on to the layer before it. The layer behind it is right.
    let expected =
        ["second.layer.linear.bias", "second.layer.linear.weight", "first.0.linear.bias", "first.0.linear.weight"];
    assert_eq!(names_of(configured), expected);
    let text = verification.to_string();
    let lines = "  recomputing all blocks on stage 1: 4 of 6 parameters differ, the nearest to the loss first:\n    \
                 second.layer.linear.bias of stage 1: ";
    assert!(text.contains(lines) && !text.contains("last."), "{text}");
    assert!(text.contains("  without recomputation: all 6 parameters are equal bit for bit\n"), "{text}");
    assert!(verified(build(Recompute::Nothing)).passes());
}

/// A layer for tests of verification, whose split backward is deliberately wrong: its second half adds 1 to the
/// gradient of the layer's bias. The whole backward is right.
#[derive(Module, Debug)]
struct Deferring {
    layer: Layer,
}

impl Stage for Deferring {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        let output = self.layer.forward(input);
        let bias = self.layer.linear.bias.as_ref().expect("the test model has biases").id;
        if output.device().is_autodiff() { with_wrong_second_half(output, bias) } else { output }
    }
}

/// Returns the given tensor with a deliberate mistake in its backward. If the backward is split into two halves, the
/// second half adds a gradient of ones for the parameter `id`.
fn with_wrong_second_half(tensor: Tensor<2>, id: ParamId) -> Tensor<2> {
    let tensor = tensor.try_into_primitive::<Autodiff<Flex>>().expect("a tensor in a graph on the CPU");
    let (value, node) = tensor.into_parts();
    let wrong = match WrongSecondHalf.prepare::<NoCheckpointing>([node]).compute_bound().stateful() {
        OpsKind::Tracked(prepared) => prepared.finish(id, value),
        OpsKind::UnTracked(prepared) => prepared.finish(value),
    };
    Tensor::from_primitive::<Autodiff<Flex>>(wrong)
}

/// An operation of the autodiff graph with a deliberate mistake for a test. It passes its gradient on unchanged. In the
/// second half of a split backward, it also adds a gradient of ones for a parameter.
#[derive(Debug)]
struct WrongSecondHalf;

impl<B: Backend> Backward<B, 1> for WrongSecondHalf {
    type State = ParamId;

    fn backward(self, ops: Ops<ParamId, 1>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let id = ops.state;
        let ones = move |sum: &mut Sum| sum.add(id, Tensor::<1>::ones([WIDTH], &device()));
        // A whole backward rejects the deferred gradient, and then nothing is added.
        let _ = put_off(Deferred::new(vec![id], ones));
        let gradient = gradients.consume::<B>(&ops.node);
        if let [Some(parent)] = ops.parents {
            gradients.register::<B>(parent.id, gradient);
        }
    }
}

#[test]
fn a_layer_with_a_wrong_split_backward_is_named() {
    let build = || named(|layer| Deferring { layer }, [Recompute::Nothing; 3]);
    let verification = verified(|| build().schedule(ZbH1));
    let name = "second.layer.linear.bias".to_owned();
    assert_eq!(verification.cause, Some(Cause::SplitBackward { stage: 1, name }), "{verification}");
    let [configured] = &verification.parameters[..] else { panic!("{verification}") };
    assert_eq!(names_of(configured), ["second.layer.linear.bias"]);
    let [difference] = &configured.differences[..] else { panic!("{verification}") };
    assert_eq!((difference.elements, difference.differing), (WIDTH, WIDTH));
    // Each of the micro-batches adds 1, and the learning rate is 0.5.
    assert!((difference.largest / (0.5 * MICRO_BATCHES as f64) - 1.0).abs() < 1e-5, "{difference}");
    assert!(verified(build).passes());
}

/// A layer for tests of verification that uses its weight three times: in a plain matrix product, and then in two
/// linear layers. A whole backward adds the gradient of the matrix product last, and a split backward adds it first. So
/// the two sums of gradients may differ in their last bits.
#[derive(Module, Debug)]
struct ThreeUses {
    layer: Layer,
}

impl Stage for ThreeUses {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        let transposed = self.layer.linear.weight.val().transpose();
        self.layer.forward(self.layer.forward(input.matmul(transposed).tanh()))
    }
}

/// Tests that split backwards may round the sum of three gradients of a weight differently from whole backwards. One
/// tested plan splits all backwards, and another plan splits only some.
#[test]
fn a_weight_with_three_uses_verifies_with_split_backwards() {
    let some = "0F0,0F1,0F2,0F3,0B0,0I1,0W1,0B2,0I3,0W3\n1F0,1F1,1F2,1F3,1I0,1W0,1B1,1I2,1W2,1I3,1W3\n\
                2F0,2B0,2F1,2B1,2F2,2I2,2W2,2F3,2B3\n";
    let some = Plan::from_csv(some).unwrap();
    let build = || named(|layer| ThreeUses { layer }, [Recompute::Nothing; 3]);
    for verification in [verified(|| build().schedule(ZbH1)), verified(|| build().schedule(some.clone()))] {
        assert!(verification.passes(), "{verification}");
        for comparison in &verification.parameters {
            assert!(comparison.differences.is_empty(), "{verification}");
        }
        let rounding = verification.split_rounding.as_ref().expect("other last bits");
        assert_eq!((rounding.stage, &*rounding.path), (1, "layer.linear.weight"), "{verification}");
        assert!(rounding.relative > 0.0 && rounding.relative < 1e-5, "{verification}");
        let note = "in `layer.linear.weight` of stage 1; a weight that a stage uses three times or more";
        assert!(verification.to_string().contains(note), "{verification}");
    }
    let whole = verified(build);
    assert!(whole.passes() && whole.split_rounding.is_none(), "{whole}");
}

/// A layer for tests of verification whose output depends on the thread: one worker thread multiplies it by 1.00001.
/// The difference is below the tolerance for gradients.
#[derive(Module, Debug)]
struct OnItsThread {
    layer: Layer,
}

impl Stage for OnItsThread {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        let factor = if std::thread::current().name() == Some("stage-1") { 1.00001 } else { 1.0 };
        self.layer.forward(input) * factor
    }
}

#[test]
fn bits_that_depend_on_the_thread_are_found() {
    let verification = verified(|| named(|layer| OnItsThread { layer }, [Recompute::Nothing; 3]));
    assert!(matches!(verification.cause, Some(Cause::OtherBits { .. })), "{verification}");
    assert!(verification.worst().unwrap().relative <= verification.bars.gradient, "{verification}");
}
