//! The traits of a model's parts: a [`Stage`] maps an input to an output. The last stage is a [`LossStage`], which also
//! computes the loss of its output.

use std::convert::Infallible;

use burn::module::Module;
use burn::tensor::Tensor;

use crate::model::loss_weight::Weight;
use crate::model::payload::Payload;
use crate::model::segments::{in_segments, parts};
use crate::threads::failure::BoxError;
use stageline_nn::{Operation, in_layer, in_layers, try_in_layer};

// The example that must not compile follows a copy of itself whose types match. The copy shows that only the type
// mismatch stops the compilation, because stable rustdoc does not check the error code of a `compile_fail` example. A
// separate test harness for such examples would have to build burn again.
/// A part of the model that runs on one device: any burn module with a forward pass.
///
/// Stages compose: a tuple of up to six stages is a stage, and so is a `Vec` of stages of one type. So a model can be
/// written as a sequence of layers, and a split point can be between any two of them. burn's derive of `Module` needs a
/// struct with named fields.
///
/// The compiler checks that the output type of each stage is the input type of the next. Here the types match:
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
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a stage",
    note = "a stage is a burn module for which `Stage` is implemented; tuples of up to six stages and a `Vec` of stages of \
            one type are stages, too"
)]
pub trait Stage: Module + 'static {
    /// The value that the stage receives from the previous stage. The first stage receives it from the batch.
    type Input: Payload;
    /// The value that the stage's forward pass returns, which is sent to the next stage.
    type Output: Payload;

    /// Computes the stage's forward pass of one micro-batch, and returns the stage's output.
    fn forward(&self, input: Self::Input) -> Self::Output;

    /// Computes the stage's forward pass of one micro-batch, as [`forward`](Self::forward) does, but can return an
    /// error, which stops the step.
    ///
    /// A stage that can fail overrides this method; by default it calls [`forward`](Self::forward).
    ///
    /// # Errors
    /// Returns the errors of the stage's own computation; the default implementation returns no error.
    fn try_forward(&self, input: Self::Input) -> Result<Self::Output, BoxError> {
        Ok(self.forward(input))
    }

    /// Returns the operations of the stage's forward pass and loss that [`nn`](crate::nn) has kernels for. The list is
    /// empty by default.
    ///
    /// `PipelineBuilder::build` checks the listed operations. If Stageline has no kernel for an operation on the
    /// stage's device, `build` returns an error or logs a warning ([`Fallbacks`](crate::Fallbacks)). The first forward
    /// pass checks all others: operations that are not listed, and operations whose kernel does not support the forward
    /// pass's tensors. These are errors only with [`Fallbacks::Refuse`](crate::Fallbacks::Refuse); otherwise a warning
    /// names them. A tuple or a `Vec` of stages lists the operations of its stages.
    fn operations(&self) -> Vec<Operation> {
        Vec::new()
    }
}

/// The last stage of the model: a [`Stage`] that also computes the loss from its output and the targets.
///
/// [`Pipeline::infer`](crate::Pipeline::infer) returns the stage's output, such as logits. A loss is the *sum* over the
/// unmasked targets, never their mean. The pipeline divides the sum once, by the loss weight of the whole step (usually
/// its number of unmasked targets). So the result is exact even for uneven micro-batches and masked targets. A loss may
/// have several terms, each over its own targets. Each term has a sum and a weight; the pipeline divides each sum by
/// the term's total weight, and adds the terms.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no loss",
    note = "the last stage implements `LossStage`: the loss of its output, and the weight of its targets"
)]
pub trait LossStage: Stage {
    /// The targets (labels) of a micro-batch, which come from the batch. The loss compares the stage's output with
    /// them.
    type Target: Payload;

    /// The names of the stage's metrics, such as `accuracy`; the list is empty by default.
    const METRICS: &'static [&'static str] = &[];

    /// Computes the sum of the losses of one micro-batch's targets, as a tensor of shape `[1]`. `output` is the result
    /// of the stage's forward pass.
    ///
    /// For a loss of several terms, this method returns the sum of each term, multiplied by the term's coefficient, as
    /// a tensor of shape `[terms]`. The step ends with an error if the tensor does not have one element for each number
    /// in the [`weight`](Self::weight).
    ///
    /// If the stages compute in bf16 or f16 ([`Precision`](crate::Precision)), the loss must still be in f32, or the
    /// step ends with an error. [`cross_entropy`](fn@crate::nn::cross_entropy) casts its logits to f32. A custom loss
    /// must cast the output first, with `.cast(FloatDType::F32)`. The pipeline does not round targets to the lower
    /// precision.
    fn loss(&self, output: Self::Output, target: Self::Target) -> Tensor<1>;

    /// Computes the loss sums of one micro-batch, of shape `[terms]`, as [`loss`](Self::loss) does, but can return an
    /// error, which stops the step.
    ///
    /// A stage that can fail overrides this method; by default it calls [`loss`](Self::loss).
    ///
    /// # Errors
    /// Returns the errors of the stage's own computation; the default implementation returns no error.
    fn try_loss(&self, output: Self::Output, target: Self::Target) -> Result<Tensor<1>, BoxError> {
        Ok(self.loss(output, target))
    }

    /// Returns the loss weight of a micro-batch's targets, usually the number of unmasked targets, with one number for
    /// each term of the loss. The pipeline divides a step's loss sum by the total weight of its micro-batches. A batch
    /// is rejected if a number is negative or not finite.
    ///
    /// The pipeline calls this method before the first forward pass of a step, on a copy of the stage without its
    /// parameters. So the weight may depend on the targets and on the stage's constants, such as a padding id. A weight
    /// that depends on a float parameter is NaN, so the batch is rejected.
    fn weight(&self, target: &Self::Target) -> Weight;

    /// Computes the sums of the stage's metrics over the unmasked targets of one micro-batch, of shape
    /// `[METRICS.len()]`. Another shape, or a result in bf16 or f16, ends the step with an error.
    ///
    /// Steps and evaluations report each sum divided by the loss weight of the whole batch (of the first term, if the
    /// loss has several). Metrics are not added to the loss. `output` and `target` are detached from the autodiff
    /// graph. Metrics are computed only if [`METRICS`](Self::METRICS) is not empty. A stage with metrics must override
    /// this method, because the default implementation panics.
    fn metrics(&self, output: Self::Output, target: Self::Target) -> Tensor<1> {
        let _ = (output, target);
        panic!("`LossStage::METRICS` names {}, so the stage must override `metrics`", Self::METRICS.join(", "))
    }

    /// Computes the sum of each loss term of one micro-batch, of shape `[terms]`, from the stage's input and the
    /// targets. Use this method in training loops that run without a pipeline.
    fn loss_of(&self, input: Self::Input, target: Self::Target) -> Tensor<1> {
        self.loss(self.forward(input), target)
    }
}

impl<S> Stage for Vec<S>
where
    S: Stage<Output = <S as Stage>::Input>,
{
    type Input = S::Input;
    type Output = S::Output;

    fn forward(&self, input: Self::Input) -> Self::Output {
        in_layers(|| match parts(self.len(), &input) {
            Some(parts) => {
                let Ok(output) = in_segments(parts, self, input, |stage, value| Ok::<_, Infallible>(one(stage, value)));
                output
            }
            None => self.iter().fold(input, |value, stage| one(stage, value)),
        })
    }

    fn try_forward(&self, input: Self::Input) -> Result<Self::Output, BoxError> {
        in_layers(|| match parts(self.len(), &input) {
            Some(parts) => in_segments(parts, self, input, |stage, value| try_in_layer(|| stage.try_forward(value))),
            None => self.iter().try_fold(input, |value, stage| try_in_layer(|| stage.try_forward(value))),
        })
    }

    fn operations(&self) -> Vec<Operation> {
        in_order(self.iter().map(S::operations))
    }
}

/// Joins the operations of a sequence's layers into one list, and prefixes each operation's layer path with the index
/// of its layer in the sequence.
fn in_order(layers: impl IntoIterator<Item = Vec<Operation>>) -> Vec<Operation> {
    let of_layer = |(index, operations): (usize, Vec<Operation>)| {
        operations.into_iter().map(move |operation| operation.in_layer(index))
    };
    layers.into_iter().enumerate().flat_map(of_layer).collect()
}

/// Runs the forward pass of one stage in a tuple or `Vec`. The stage counts as a layer of this sequence, so that error
/// messages can name it by its index.
fn one<S: Stage>(stage: &S, input: S::Input) -> S::Output {
    in_layer(|| stage.forward(input))
}

/// Implements [`Stage`] for a tuple of stages. For three stages, the arguments are `A, B after A, C after B; C`. The
/// last stage is repeated after the semicolon.
macro_rules! tuple_stage {
    ($first:ident $(, $next:ident after $before:ident)*; $last:ident) => {
        impl<$first: Stage $(, $next: Stage<Input = $before::Output>)*> Stage for ($first, $($next),*) {
            type Input = $first::Input;
            type Output = $last::Output;

            #[allow(non_snake_case)]
            fn forward(&self, input: Self::Input) -> Self::Output {
                let ($first, $($next),*) = self;
                in_layers(|| {
                    let value = one($first, input);
                    $(let value = one($next, value);)*
                    value
                })
            }

            #[allow(non_snake_case)]
            fn try_forward(&self, input: Self::Input) -> Result<Self::Output, BoxError> {
                let ($first, $($next),*) = self;
                in_layers(|| {
                    let value = try_in_layer(|| $first.try_forward(input))?;
                    $(let value = try_in_layer(|| $next.try_forward(value))?;)*
                    Ok::<_, BoxError>(value)
                })
            }

            #[allow(non_snake_case)]
            fn operations(&self) -> Vec<Operation> {
                let ($first, $($next),*) = self;
                in_order([$first.operations(), $($next.operations()),*])
            }
        }
    };
}

/// Implements [`LossStage`] for a tuple of stages. For three stages, the arguments are `A, B; C`, and `C` is the stage
/// that has the loss.
macro_rules! tuple_loss_stage {
    ($($before:ident),*; $last:ident) => {
        impl<$($before: Stage,)* $last: LossStage> LossStage for ($($before,)* $last)
        where
            Self: Stage<Output = $last::Output>,
        {
            type Target = $last::Target;

            const METRICS: &'static [&'static str] = $last::METRICS;

            fn loss(&self, output: Self::Output, target: Self::Target) -> Tensor<1> {
                let (.., last) = self;
                last.loss(output, target)
            }

            fn try_loss(&self, output: Self::Output, target: Self::Target) -> Result<Tensor<1>, BoxError> {
                let (.., last) = self;
                last.try_loss(output, target)
            }

            fn weight(&self, target: &Self::Target) -> Weight {
                let (.., last) = self;
                last.weight(target)
            }

            fn metrics(&self, output: Self::Output, target: Self::Target) -> Tensor<1> {
                let (.., last) = self;
                last.metrics(output, target)
            }
        }
    };
}

tuple_stage!(A, B after A; B);
tuple_stage!(A, B after A, C after B; C);
tuple_stage!(A, B after A, C after B, D after C; D);
tuple_stage!(A, B after A, C after B, D after C, E after D; E);
tuple_stage!(A, B after A, C after B, D after C, E after D, F after E; F);
tuple_loss_stage!(A; B);
tuple_loss_stage!(A, B; C);
tuple_loss_stage!(A, B, C; D);
tuple_loss_stage!(A, B, C, D; E);
tuple_loss_stage!(A, B, C, D, E; F);
