//! The traits of a model's parts: a [`Stage`] maps an input to an output, and the last stage, a [`LossStage`], maps its
//! input to a loss.

use burn::module::Module;
use burn::tensor::Tensor;

use crate::model::loss_weight::Weight;
use crate::model::payload::Payload;
use crate::threads::failure::BoxError;

// The example that must not compile stands beside the same example with matching types, because a stable compiler does
// not compare error codes. A separate harness for such examples would build burn again.
/// A part of the model that runs on one device: any burn module with a forward pass.
///
/// Stages compose: a pair of stages is a stage, and so is a `Vec` of stages of one type. So a model is written as
/// layers and can be split between any two of them. burn's derive of `Module` needs a struct with named fields.
///
/// The compiler checks the boundaries. Here the types match:
///
/// ```
/// # use burn::{module::Module, nn::Linear, tensor::Tensor};
/// # use stageline::{Pipeline, Stage, StageConfig};
/// #[derive(Module, Debug)]
/// struct Flat {
///     linear: Linear,
/// }
/// impl Stage for Flat {
///     type Input = Tensor<2>;
///     type Output = Tensor<2>;
///     fn forward(&self, input: Tensor<2>) -> Tensor<2> {
///         self.linear.forward(input)
///     }
/// }
///
/// #[derive(Module, Debug)]
/// struct Deep {
///     linear: Linear,
/// }
/// impl Stage for Deep {
///     type Input = Tensor<3>;
///     type Output = Tensor<3>;
///     fn forward(&self, input: Tensor<3>) -> Tensor<3> {
///         self.linear.forward(input)
///     }
/// }
///
/// # fn join(flat: Flat, deep: Deep, config: StageConfig) {
/// let _ = Pipeline::builder().stage(flat.clone(), config.clone()).stage(flat, config);
/// # }
/// ```
///
/// With the same two stages, a boundary from `Tensor<2>` to `Tensor<3>` does not compile:
///
/// ```compile_fail,E0271
/// # use burn::{module::Module, nn::Linear, tensor::Tensor};
/// # use stageline::{Pipeline, Stage, StageConfig};
/// # #[derive(Module, Debug)]
/// # struct Flat {
/// #     linear: Linear,
/// # }
/// # impl Stage for Flat {
/// #     type Input = Tensor<2>;
/// #     type Output = Tensor<2>;
/// #     fn forward(&self, input: Tensor<2>) -> Tensor<2> {
/// #         self.linear.forward(input)
/// #     }
/// # }
/// # #[derive(Module, Debug)]
/// # struct Deep {
/// #     linear: Linear,
/// # }
/// # impl Stage for Deep {
/// #     type Input = Tensor<3>;
/// #     type Output = Tensor<3>;
/// #     fn forward(&self, input: Tensor<3>) -> Tensor<3> {
/// #         self.linear.forward(input)
/// #     }
/// # }
/// # fn join(flat: Flat, deep: Deep, config: StageConfig) {
/// let _ = Pipeline::builder().stage(flat.clone(), config.clone()).stage(deep, config);
/// # }
/// ```
pub trait Stage: Module + 'static {
    /// The value that the stage receives from the previous stage; the first stage receives it from the batch.
    type Input: Payload;
    /// The value that the stage's forward sends to the next stage.
    type Output: Payload;

    /// Computes the stage's forward pass of one micro-batch.
    fn forward(&self, input: Self::Input) -> Self::Output;

    /// Computes the stage's forward pass of one micro-batch, or returns an error that stops the step.
    ///
    /// A stage that can fail overrides this method; by default it calls [`forward`](Self::forward).
    ///
    /// # Errors
    /// Returns the errors of the stage's own computation; the default implementation returns none.
    fn try_forward(&self, input: Self::Input) -> Result<Self::Output, BoxError> {
        Ok(self.forward(input))
    }
}

/// The last stage of the model, which computes the loss from its input and the targets.
///
/// A loss is the *sum* over the unmasked targets, never their mean: the pipeline divides once, by the weight of the
/// whole step, so that uneven and masked micro-batches are exact. A loss may have several terms, each over its own
/// targets. Each term has a sum and a weight; the pipeline divides each sum by the term's total weight, and adds the
/// terms.
pub trait LossStage: Module + 'static {
    /// The value that the last stage receives from the previous stage; in a pipeline of one stage, from the batch.
    type Input: Payload;
    /// The targets of a micro-batch's loss, which come from the batch.
    type Target: Payload;

    /// Computes the sum of the losses of one micro-batch's targets, as a tensor of shape `[1]`.
    ///
    /// For a loss of several terms, this method returns the sum of each term, multiplied by the term's factor, of shape
    /// `[terms]`.
    fn loss(&self, input: Self::Input, target: Self::Target) -> Tensor<1>;

    /// Computes the loss sums of one micro-batch, or returns an error that stops the step.
    ///
    /// A stage that can fail overrides this method; by default it calls [`loss`](Self::loss).
    ///
    /// # Errors
    /// Returns the errors of the stage's own computation; the default implementation returns none.
    fn try_loss(&self, input: Self::Input, target: Self::Target) -> Result<Tensor<1>, BoxError> {
        Ok(self.loss(input, target))
    }

    /// Returns the loss weight of a micro-batch's targets, one number per term: usually the number of unmasked targets.
    ///
    /// The pipeline calls this function before the first forward of a step, so the weight depends on the targets only.
    fn weight(target: &Self::Target) -> Weight;
}

impl<A, B> Stage for (A, B)
where
    A: Stage,
    B: Stage<Input = A::Output>,
{
    type Input = A::Input;
    type Output = B::Output;

    fn forward(&self, input: Self::Input) -> Self::Output {
        self.1.forward(self.0.forward(input))
    }

    fn try_forward(&self, input: Self::Input) -> Result<Self::Output, BoxError> {
        self.1.try_forward(self.0.try_forward(input)?)
    }
}

impl<S> Stage for Vec<S>
where
    S: Stage<Output = <S as Stage>::Input>,
{
    type Input = S::Input;
    type Output = S::Output;

    fn forward(&self, input: Self::Input) -> Self::Output {
        self.iter().fold(input, |value, stage| stage.forward(value))
    }

    fn try_forward(&self, input: Self::Input) -> Result<Self::Output, BoxError> {
        self.iter().try_fold(input, |value, stage| stage.try_forward(value))
    }
}

impl<A, B> LossStage for (A, B)
where
    A: Stage,
    B: LossStage<Input = A::Output>,
{
    type Input = A::Input;
    type Target = B::Target;

    fn loss(&self, input: Self::Input, target: Self::Target) -> Tensor<1> {
        self.1.loss(self.0.forward(input), target)
    }

    fn try_loss(&self, input: Self::Input, target: Self::Target) -> Result<Tensor<1>, BoxError> {
        self.1.try_loss(self.0.try_forward(input)?, target)
    }

    fn weight(target: &Self::Target) -> Weight {
        B::weight(target)
    }
}
