//! Activation recomputation (activation checkpointing): the backward pass recomputes the activations of submodules that
//! the model marks, instead of retaining them from the forward pass. The method is from Chen et al., 2016, *Training
//! Deep Nets with Sublinear Memory Cost*, [arXiv:1604.06174](https://arxiv.org/abs/1604.06174).
//!
//! A model marks its submodules with [`block`], [`selective`] and [`feed_forward`], or runs its blocks by [`sequence`];
//! the stage's [`Recompute`] setting selects which of them are recomputed. Input: a module, its input tensor and its
//! forward function. Output: the forward pass's output and, in the backward pass, the gradients of the input and the
//! parameters. This folder must not change a result: outputs and gradients are bitwise identical with and without
//! recomputation. It must not decide how much is recomputed: the caller's [`Recompute`] does.
//!
//! The first forward pass of a recomputed submodule records no graph of its own: in the stage's graph, one operation
//! stands for the whole submodule. The backward pass of that operation runs the submodule's forward pass again with a
//! separate graph, and then the backward pass of that graph. The gradients of the submodule's parameters do not pass
//! through the stage's graph; [`gather`] collects them.

mod policy;
mod segments;

use std::cell::RefCell;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use burn::backend::Backend;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops};
use burn::backend::tensor::FloatTensor;
use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use parking_lot::Mutex;

use crate::autograd::seed_gradient;
use crate::autograd::sum::Sum;
use crate::engine::{Engine, of_their_backend, recorded};
use crate::forward::recomputation::as_recomputation;
use crate::forward::samples::Samples;
use crate::forward::thread_scope::collecting;
use crate::params::shared::unify;
use crate::params::visit::map_floats;
pub use policy::{BlockOutOfRange, BlockSet, Parts, Recompute, SequenceParts};
use policy::{Mark, note};
pub use segments::sequence;

thread_local! {
    /// Parameter gradients of recomputed submodules, such as transformer blocks, summed over this thread's running
    /// backward pass; `None` outside [`gather`].
    static PART_GRADIENTS: RefCell<Option<Sum>> = const { RefCell::new(None) };
}

/// Runs a stage's backward pass, the closure `backward`, and separately collects the parameter gradients of recomputed
/// submodules, such as transformer blocks. Returns the closure's result, which lacks these gradients, and the
/// gradients. They are separate because each recomputed submodule has its own autodiff graph.
pub fn gather<R>(backward: impl FnOnce() -> R) -> (R, GradientsParams) {
    let (result, beside) = collecting(&PART_GRADIENTS, Sum::new(GradientsParams::new(), None), backward);
    (result, beside.gradients)
}

/// Runs a block of a model, such as a transformer layer, and marks it for activation recomputation (activation
/// checkpointing). Returns the block's output. The settings [`Recompute::Full`], [`Recompute::Blocks`],
/// [`Recompute::EveryNth`] and [`Recompute::Only`] recompute marked blocks in the backward pass.
///
/// `forward` computes the block from `module` and `input`. It must use no other parameters and no other activations
/// that need gradients, because a recomputation could not pass gradients on to them. It must not use burn's `Dropout`,
/// because the recomputation would draw other random numbers: use [`Dropout`](crate::Dropout).
///
/// # Panics
/// Panics if the block is recomputed and `forward` uses a parameter or an activation from outside. A backward pass
/// outside [`autograd::gather`](crate::autograd::gather), which pipelines call, panics at a recomputed block.
///
/// ```
/// use burn::module::Module;
/// use burn::tensor::Tensor;
/// use stageline_nn::{Linear, block};
///
/// #[derive(Module, Debug)]
/// struct Mlp {
///     up: Linear,
///     down: Linear,
/// }
///
/// impl Mlp {
///     fn forward(&self, input: Tensor<2>) -> Tensor<2> {
///         block(self, input, |mlp, input| mlp.down.forward(mlp.up.forward(input).tanh()))
///     }
/// }
/// ```
pub fn block<M: Module + 'static, const D: usize, const E: usize>(
    module: &M,
    input: Tensor<D>,
    forward: impl Fn(&M, Tensor<D>) -> Tensor<E> + Send + 'static,
) -> Tensor<E> {
    part(Mark::Block, module, input, forward)
}

/// Runs a submodule whose activations are large but cheap to compute, such as attention, and returns its output. With
/// [`Recompute::Selective`], the backward pass recomputes this submodule instead of retaining its activations.
/// `forward` may only use the parameters of `module` and the activation `input`, as with [`block`].
///
/// # Panics
/// Panics if the submodule is recomputed and `forward` uses other parameters or activations. A backward pass outside
/// [`autograd::gather`](crate::autograd::gather) panics at a recomputed submodule.
pub fn selective<M: Module + 'static, const D: usize, const E: usize>(
    module: &M,
    input: Tensor<D>,
    forward: impl Fn(&M, Tensor<D>) -> Tensor<E> + Send + 'static,
) -> Tensor<E> {
    part(Mark::Selective, module, input, forward)
}

/// Runs the feed-forward submodule of a transformer layer, whose hidden activations are wider than the model, and
/// returns its output. With [`Recompute::FeedForward`], the backward pass recomputes this submodule instead of
/// retaining its activations. `forward` may only use the parameters of `module` and the activation `input`.
///
/// # Panics
/// Panics if the submodule is recomputed and `forward` uses other parameters or activations. A backward pass outside
/// [`autograd::gather`](crate::autograd::gather) panics at a recomputed submodule.
pub fn feed_forward<M: Module + 'static, const D: usize, const E: usize>(
    module: &M,
    input: Tensor<D>,
    forward: impl Fn(&M, Tensor<D>) -> Tensor<E> + Send + 'static,
) -> Tensor<E> {
    part(Mark::FeedForward, module, input, forward)
}

fn part<M: Module + 'static, const D: usize, const E: usize>(
    mark: Mark,
    module: &M,
    input: Tensor<D>,
    forward: impl Fn(&M, Tensor<D>) -> Tensor<E> + Send + 'static,
) -> Tensor<E> {
    if !mark.is_selected() {
        return forward(module, input);
    }
    recomputed(module, input, forward)
}

/// Runs a submodule without retaining its activations, and returns its output; the backward pass recomputes the
/// submodule. If it cannot be recomputed, its activations are retained, and [`Parts`] counts it as `untracked` or
/// `unsupported`. `forward` may only use the parameters of `module` and the activation `input`.
pub fn recomputed<M: Module + 'static, const D: usize, const E: usize>(
    module: &M,
    input: Tensor<D>,
    forward: impl Fn(&M, Tensor<D>) -> Tensor<E> + Send + 'static,
) -> Tensor<E> {
    // Autodiff does not track this input, so no backward pass would reach the submodule and trigger its recomputation.
    if !input.is_tracked() {
        note(|parts| parts.untracked += 1);
        return forward(module, input);
    }
    let mut forward = Some(forward);
    let output = of_their_backend!(recompute_later, module, &input, &mut forward);
    note(if output.is_some() { |parts| parts.recomputed += 1 } else { |parts| parts.unsupported += 1 });
    output.unwrap_or_else(|| {
        let forward = forward.take().expect("only a backend that returns an output takes the forward");
        forward(module, input)
    })
}

/// Returns a copy of a recomputed submodule (`module`) with its parameters detached from the stage's autodiff graph. If
/// `tracked` is set, trainable parameters become leaves of a separate graph, which computes their gradients; otherwise
/// no graph tracks them.
fn leaves<M: Module>(module: &M, tracked: bool) -> M {
    let module = map_floats(module.clone(), |param| Some(param.value().leaf(tracked && param.is_trained())));
    if tracked { unify(module) } else { module }
}

/// A closure that recomputes a submodule (such as a block) in the backward pass. It takes the gradient of the
/// submodule's output, and returns the gradient of its input.
type RecomputePart<B> = Box<dyn FnOnce(FloatTensor<B>) -> FloatTensor<B> + Send>;

/// A recomputed submodule's state in the stage's autodiff graph: the closure that recomputes the submodule. The
/// submodule's backward pass takes the closure and calls it once.
struct State<B: Backend>(Arc<Mutex<Option<RecomputePart<B>>>>);

impl<B: Backend> Clone for State<B> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<B: Backend> fmt::Debug for State<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("State")
    }
}

/// An autodiff operation that represents a recomputed submodule in the stage's graph. Its backward pass first runs the
/// submodule's forward pass again, then the submodule's own backward pass.
#[derive(Debug)]
struct Recomputed;

impl<B: Backend> Backward<B, 1> for Recomputed {
    type State = State<B>;

    fn backward(self, ops: Ops<State<B>, 1>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let gradient = gradients.consume::<B>(&ops.node);
        let recompute = ops.state.0.lock().take().expect("a backward visits every operation once");
        let to_input = recompute(gradient);
        if let [Some(node)] = ops.parents {
            gradients.register::<B>(node.id, to_input);
        }
    }
}

/// Runs a submodule's forward pass without recording a graph, and records a single operation in the autodiff graph of
/// `input`, whose backward pass recomputes the submodule. Returns the operation's output.
///
/// Returns `None` if `input` is not an autodiff tensor of the backend `B`, or if burn's own gradient checkpointing is
/// on. `forward` must contain the submodule's forward function. It is only taken out if the result is `Some`, so that
/// the caller can otherwise try the next backend or call the function itself.
fn recompute_later<B: Engine, M: Module + 'static, const D: usize, const E: usize>(
    _: PhantomData<B>,
    module: &M,
    input: &Tensor<D>,
    forward: &mut Option<impl Fn(&M, Tensor<D>) -> Tensor<E> + Send + 'static>,
) -> Option<Tensor<E>> {
    let (_, node) = B::tracked(input.clone())?.into_parts();
    let forward = forward.take()?;
    let samples = Samples::current();
    let kept = input.clone().inner();
    // The tensors are autodiff tensors, although no graph is recorded. Plain tensors would use other kernels, whose
    // results differ in the last bits from those of the recomputation. A recorded graph would be freed late, because no
    // backward pass consumes it.
    let output = Recompute::Nothing.during(|| forward(&leaves(module, false), kept.clone().autodiff()));
    // The module's parameters and the input are untracked here. If the submodule used another tracked tensor, the
    // nested backward pass would deadlock: it would wait for that tensor's graph, which this thread has locked.
    assert!(
        !output.is_tracked(),
        "a recomputed part uses a parameter or an activation other than those of its module and its input; pass it as \
         part of them, detach it if it needs no gradient, or do not recompute this part"
    );
    let output = B::tracked(output).expect("the output of a recomputed part must stay on the backend of its input");
    let (output, _) = output.into_parts();
    let module = module.clone();
    let gradient_of = move |gradient: FloatTensor<B>, input: Tensor<D>| {
        let module = leaves(&module, true);
        let leaf = input.autodiff().require_grad();
        let run = || Recompute::Nothing.during(|| forward(&module, leaf.clone()));
        let output = as_recomputation(|| samples.map_or_else(run, |samples| samples.during(run)));
        let mut gradients = seed_gradient::root(output, B::of_plain::<E>(gradient))?.backward();
        let to_input = leaf.grad_remove(&mut gradients);
        let gradients = GradientsParams::from_grads(gradients, &module);
        PART_GRADIENTS.with_borrow_mut(|beside| {
            let beside = beside.as_mut().expect("a part is recomputed only in a backward that gathers its gradients");
            beside.add_all(&module, gradients);
        });
        to_input
    };
    let to_input = move |gradient: FloatTensor<B>| {
        // If the submodule's output does not depend on its input, the gradient is zeros. burn still visits the
        // operations before this one, so they need a gradient.
        let to_input = gradient_of(gradient, kept.clone()).unwrap_or_else(|| kept.zeros_like());
        B::plain(to_input).expect("the gradient of a part's input is outside autodiff")
    };
    let state = State(Arc::new(Mutex::new(Some(Box::new(to_input) as RecomputePart<B>))));
    Some(recorded::<B, _, 1, E>(Recomputed, [node], state, output))
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use burn::module::Param;
    use burn::tensor::Device;

    use super::*;

    fn parameter(number: f32) -> Param<Tensor<1>> {
        Param::from_tensor(Tensor::from_floats([number, number], &Device::flex().autodiff()).require_grad())
    }

    fn numbers(tensor: Tensor<1>) -> Vec<f32> {
        tensor.into_data().iter::<f32>().collect()
    }

    fn input() -> Tensor<1> {
        Tensor::from_floats([1.0, 2.0], &Device::flex().autodiff()).require_grad()
    }

    #[test]
    #[should_panic(expected = "uses a parameter or an activation other than")]
    fn a_part_that_uses_an_activation_from_outside_panics() {
        let (module, input) = (parameter(3.0), input());
        let before = input.clone() * 2.0;
        Recompute::Full.during(|| {
            block(&module, input * 5.0, move |module, input| module.val() * input + before.clone());
        });
    }

    #[test]
    fn a_part_may_use_constants_from_outside() {
        let (module, input) = (parameter(3.0), input());
        let constant = (input.clone() * 2.0).detach();
        let run = |recompute: Recompute| {
            let constant = constant.clone();
            let output = recompute.during(|| {
                block(&module, input.clone() * 5.0, move |module, input| module.val() * input + constant.clone())
            });
            let (gradients, _) = gather(|| output.sum().backward());
            input.grad(&gradients).unwrap().into_data()
        };
        assert_eq!(run(Recompute::Full), run(Recompute::Nothing));
    }

    #[test]
    fn a_part_that_does_not_depend_on_its_input_has_a_gradient_of_zero() {
        let (module, input) = (parameter(3.0), input());
        let output = Recompute::Full.during(|| block(&module, input.clone() * 5.0, |module, _| module.val() * 2.0));
        let (gradients, of_parts) = gather(|| output.sum().backward());
        assert_eq!(input.grad(&gradients).map(numbers), Some(vec![0.0, 0.0]));
        let of_module = numbers(of_parts.get::<1>(module.id).unwrap());
        assert_eq!(of_module, [2.0, 2.0]);
    }
}
