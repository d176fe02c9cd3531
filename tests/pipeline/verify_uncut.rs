//! Tests of verification against the whole model before its division into stages. The tests plant mistakes in the
//! division, which a comparison with the same stages on one device cannot find.

use burn::module::Module;
use burn::tensor::{FloatDType, Tensor};
use stageline::nn::{block, is_recomputation};
use stageline::schedule::ZbH1;
use stageline::verify::Cause;
use stageline::{Batch, LossStage, Pipeline, PipelineBuilder, Recompute, Stage, Verification, Verify, Weight};

use crate::mlp::{Error, Layer, Mlp, Target, config};

const WIDTH: usize = 5;

/// A deliberate mistake that a test makes when it divides a model into stages.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Mistake {
    None,
    /// A deliberate mistake of a test: the divided model lacks the model's skip connection.
    Cut,
    /// A deliberate mistake of a test: a tensor is rounded and scaled in flight from one stage to the next.
    Payload,
    /// A deliberate mistake of a test: the recomputation of a stage computes a different function from the stage's
    /// forward.
    Recomputation,
}

/// Returns the layers of the test's model `x + tanh(W tanh(V x))`: the two layers with the matrices V and W, and a last
/// layer with the loss.
fn model() -> (Layer, Layer, Error) {
    let Mlp { mut layers, error } = Mlp::new(2, WIDTH, 11);
    let second = layers.pop().unwrap();
    (layers.pop().unwrap(), second, error)
}

/// The test's model `x + tanh(W tanh(V x))` in one stage, before it is divided into several stages.
#[derive(Module, Debug)]
struct Whole {
    first: Layer,
    second: Layer,
    error: Error,
}

impl Stage for Whole {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        self.error.forward(input.clone() + self.second.forward(self.first.forward(input)))
    }
}

impl LossStage for Whole {
    type Target = Target;

    fn loss(&self, output: Tensor<2>, target: Target) -> Tensor<1> {
        self.error.loss(output, target)
    }

    fn weight(&self, target: &Target) -> Weight {
        self.error.weight(target)
    }
}

/// The first of the stages into which the test's model `x + tanh(W tanh(V x))` is divided. It sends both its input x
/// and its output to the next stage.
#[derive(Module, Debug)]
struct Front {
    layer: Layer,
    #[module(skip)]
    mistake: usize,
}

impl Stage for Front {
    type Input = Tensor<2>;
    type Output = (Tensor<2>, Tensor<2>);

    fn forward(&self, input: Tensor<2>) -> Self::Output {
        let kept = match self.mistake == Mistake::Payload as usize {
            true => input.clone().cast(FloatDType::BF16).cast(FloatDType::F32) * 1.05,
            false => input.clone(),
        };
        (kept, self.layer.forward(input))
    }
}

/// The last of the stages into which the test's model `x + tanh(W tanh(V x))` is divided: the layer with the matrix W,
/// the skip connection, and the last layer with the loss.
#[derive(Module, Debug)]
struct Back {
    layer: Layer,
    error: Error,
    #[module(skip)]
    mistake: usize,
}

impl Stage for Back {
    type Input = (Tensor<2>, Tensor<2>);
    type Output = Tensor<2>;

    fn forward(&self, (input, hidden): Self::Input) -> Tensor<2> {
        let wrong = self.mistake == Mistake::Recomputation as usize;
        let hidden = block(&self.layer, hidden, move |layer, hidden| {
            let factor = if wrong && is_recomputation() { 1.5 } else { 1.0 };
            layer.forward(hidden) * factor
        });
        let output = if self.mistake == Mistake::Cut as usize { hidden } else { input + hidden };
        self.error.forward(output)
    }
}

impl LossStage for Back {
    type Target = Target;

    fn loss(&self, output: Tensor<2>, target: Target) -> Tensor<1> {
        self.error.loss(output, target)
    }

    fn weight(&self, target: &Target) -> Weight {
        self.error.weight(target)
    }
}

fn cut(mistake: Mistake) -> PipelineBuilder<Tensor<2>, Tensor<2>, Target> {
    let (first, second, error) = model();
    let config = || config().recompute(Recompute::Full);
    let (front, back) =
        (Front { layer: first, mistake: mistake as usize }, Back { layer: second, error, mistake: mistake as usize });
    Pipeline::builder().stage(front, config()).loss(back, config()).schedule(ZbH1).micro_batches(4)
}

fn uncut() -> PipelineBuilder<Tensor<2>, Tensor<2>, Target> {
    let (first, second, error) = model();
    Pipeline::builder().loss(Whole { first, second, error }, config())
}

fn batch(step: usize) -> Batch<Tensor<2>, Target> {
    let (input, target) = Mlp::batch(12, WIDTH, true, 40 + step as u64);
    Batch::new(input, target)
}

fn against_uncut(mistake: Mistake) -> Verification {
    Verify::new().steps(3).pipeline_and_uncut(|| cut(mistake), uncut, batch, &[batch(90)]).unwrap()
}

/// Returns the cause that a verification must report: a wrong recomputation in the layer of the last stage.
fn wrong_recomputation() -> Cause {
    Cause::Recomputation { stage: 1, name: "stage1.layer.linear.bias".to_owned() }
}

#[test]
fn a_mistake_in_the_cut_the_payload_or_the_recomputation_is_found() {
    let sound = against_uncut(Mistake::None);
    assert!(sound.passes(), "{sound}");
    for mistake in [Mistake::Cut, Mistake::Payload] {
        let found = against_uncut(mistake);
        assert!(matches!(found.cause, Some(Cause::Cut { .. })), "{mistake:?}: {found}");
    }
    let found = against_uncut(Mistake::Recomputation);
    assert_eq!(found.cause, Some(wrong_recomputation()), "{found}");
}

/// Tests that a verification without the undivided model finds a wrong recomputation. Its reference training keeps the
/// activations that the pipeline recomputes.
#[test]
fn a_wrong_recomputation_is_found_without_the_uncut_model() {
    let verify = |mistake| Verify::new().steps(3).pipeline(|| cut(mistake), batch, &[]).unwrap();
    assert!(verify(Mistake::None).passes());
    assert_eq!(verify(Mistake::Recomputation).cause, Some(wrong_recomputation()));
}
