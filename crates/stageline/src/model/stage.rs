//! A part of the model: what turns an input into an output, and the last one, which turns it into a loss.

use burn::module::Module;
use burn::tensor::Tensor;

use crate::model::loss_weight::Weight;
use crate::model::payload::Payload;
use crate::threads::failure::BoxError;

/// A part of the model that one device runs: any burn module with a forward.
///
/// Stages compose: a pair of stages is a stage, and so is a `Vec` of equal ones. A model is thus written as layers and
/// cut where one likes.
///
/// Boundaries are checked by the compiler. Here the types match:
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
/// With all of that the same, a boundary from `Tensor<2>` to `Tensor<3>` is refused:
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
    /// What the stage takes from the stage before, or from the batch.
    type Input: Payload;
    /// What the stage hands to the stage after it.
    type Output: Payload;

    /// The forward pass of one micro-batch.
    fn forward(&self, input: Self::Input) -> Self::Output;

    /// The forward pass of one micro-batch, where it can fail. Override it if it can; the error stops the step.
    ///
    /// # Errors
    /// Whatever the stage says.
    fn try_forward(&self, input: Self::Input) -> Result<Self::Output, BoxError> {
        Ok(self.forward(input))
    }
}

/// The last part of the model, which turns its input and the targets into a loss.
///
/// A loss is the *sum* over the targets that count, never their mean: the pipeline divides once, by the weight of the
/// whole step, so that uneven and masked micro-batches are exact. A loss of several terms, each over targets of its own, has a
/// sum and a weight for each; the pipeline divides each by its own total, and adds them up.
pub trait LossStage: Module + 'static {
    /// What the stage takes from the stage before, or from the batch.
    type Input: Payload;
    /// What the loss compares with; it comes from the batch.
    type Target: Payload;

    /// The sum of the losses of one micro-batch, of shape `[1]`; for a loss of several terms the sum of each, with whatever
    /// factor it has, of shape `[terms]`.
    fn loss(&self, input: Self::Input, target: Self::Target) -> Tensor<1>;

    /// The same, where it can fail. Override it if it can; the error stops the step.
    ///
    /// # Errors
    /// Whatever the stage says.
    fn try_loss(&self, input: Self::Input, target: Self::Target) -> Result<Tensor<1>, BoxError> {
        Ok(self.loss(input, target))
    }

    /// How much the loss of these targets weighs, as a number for each term: most often the number of targets that are not
    /// masked.
    ///
    /// It is asked before the first forward of a step and depends on the targets only.
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
