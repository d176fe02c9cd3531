//! Activations that are not kept, but computed again when the backward comes to them (Chen et al., 2016, *Training Deep Nets
//! with Sublinear Memory Cost*, [arXiv:1604.06174](https://arxiv.org/abs/1604.06174)).
//!
//! A model marks its parts, by [`block`] and [`selective`]; the configuration of a stage says which of them are computed again.
//! A part's first forward makes no graph. In the backward of the stage's graph, an operation that stands for the part runs it
//! again, with a graph of its own, whose backward it runs; its parameters' gradients go beside the stage's graph.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use burn::backend::Backend;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops};
use burn::backend::tensor::FloatTensor;
use burn::module::{Module, ModuleMapper, Param};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use parking_lot::Mutex;

use crate::nn::autograd::engine::{Engine, of_their_backend, recorded};
use crate::nn::autograd::seed_gradient;
use crate::nn::autograd::split_backward::Sum;
use crate::nn::forward::samples::Samples;
use crate::nn::forward::thread_scope::{collecting, during};
use crate::nn::params::shared::{is_trained, unify, with_value};

/// What a stage computes again in its backwards, instead of keeping it from the forward. The gradients are the same bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Recompute {
    /// Nothing.
    #[default]
    Nothing,
    /// The parts marked by [`selective`], such as attention, which holds much and is computed fast (Korthikanti et al., 2022,
    /// [arXiv:2205.05198](https://arxiv.org/abs/2205.05198)).
    Selective,
    /// So many of the parts marked by [`block`], the first ones.
    Blocks(usize),
    /// All parts marked by [`block`], of which only the inputs are kept: about a third more is computed.
    Full,
}

impl fmt::Display for Recompute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => write!(f, "nothing"),
            Self::Selective => write!(f, "selective parts"),
            Self::Blocks(blocks) => write!(f, "the first {blocks} blocks"),
            Self::Full => write!(f, "all blocks"),
        }
    }
}

/// What a part is marked as.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    Block,
    Selective,
}

thread_local! {
    /// What the forward on this thread does not keep.
    static POLICY: Cell<Recompute> = const { Cell::new(Recompute::Nothing) };
    /// Whether the forward on this thread is one that was computed before.
    static AGAIN: Cell<bool> = const { Cell::new(false) };
    /// Counts the marked parts of the forward on this thread.
    static PARTS: Cell<Parts> = const { Cell::new(Parts { recomputed: 0, untracked: 0, unsupported: 0 }) };
    /// The gradients of parameters of parts that were computed again.
    static BESIDE: RefCell<Option<Sum>> = const { RefCell::new(None) };
}

/// What became of the parts that a forward marked for recomputation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Parts {
    /// Parts that will be recomputed.
    recomputed: usize,
    /// Parts that are kept, because their input is not part of a graph.
    untracked: usize,
    /// Parts that are kept, because their backend has no operations of ours, or burn's own checkpointing is on.
    unsupported: usize,
}

impl Parts {
    /// Whether the forward has marked nothing that the policy names: a stage of embeddings alone, for example.
    pub(crate) fn are_none(self) -> bool {
        self == Self::default()
    }

    /// Why nothing is recomputed although it was asked for, and what to do; `None` if something is.
    pub(crate) fn complaint(self) -> Option<&'static str> {
        match self {
            Self { recomputed: 1.., .. } => None,
            Self { unsupported: 1.., .. } => Some(
                "its device is of a backend that this build has no operations for, or burn's gradient checkpointing is on; \
                 place it on a CPU or a CUDA device, and turn burn's off",
            ),
            Self { untracked: 1.., .. } => Some(
                "the inputs of all its marked parts are outside the graph; mark parts behind a layer with parameters, and \
                 do not detach their inputs",
            ),
            Self { .. } => {
                Some("it has no part that the policy names; mark its parts by `nn::block` or `nn::selective`")
            }
        }
    }
}

impl Recompute {
    /// Runs a stage's forward, and says what became of the parts that it marks.
    pub(crate) fn counting<R>(self, forward: impl FnOnce() -> R) -> (R, Parts) {
        PARTS.set(Parts::default());
        let result = self.during(forward);
        (result, PARTS.take())
    }

    /// Runs a stage's forward.
    pub(crate) fn during<R>(self, forward: impl FnOnce() -> R) -> R {
        during(&POLICY, self, forward)
    }

    /// Whether the next part with this mark is computed again.
    fn takes(mark: Mark) -> bool {
        match (POLICY.get(), mark) {
            (Self::Full, Mark::Block) | (Self::Selective, Mark::Selective) => true,
            (Self::Blocks(left), Mark::Block) => {
                POLICY.set(Self::Blocks(left.saturating_sub(1)));
                left > 0
            }
            (Self::Nothing | Self::Full | Self::Blocks(_), _) | (Self::Selective, Mark::Block) => false,
        }
    }
}

/// Whether the forward that runs on this thread is one that was computed before: what a layer counts or draws, it has then
/// counted, and has to draw the same.
pub fn is_computed_again() -> bool {
    AGAIN.get()
}

/// Runs a forward that was computed before.
fn again<R>(forward: impl FnOnce() -> R) -> R {
    during(&AGAIN, true, forward)
}

/// Runs a backward, and gives the gradients that go beside its graph.
pub(crate) fn gather<R>(backward: impl FnOnce() -> R) -> (R, GradientsParams) {
    let (result, beside) = collecting(&BESIDE, Sum::new(GradientsParams::new(), None), backward);
    (result, beside.gradients)
}

/// A block of a model, which [`Recompute::Full`] and [`Recompute::Blocks`] compute again: `forward` is its forward, and uses
/// no parameters but the module's.
///
/// ```
/// use burn::module::Module;
/// use burn::tensor::Tensor;
/// use stageline::nn::{Linear, block};
/// use stageline::Stage;
///
/// #[derive(Module, Debug)]
/// struct Mlp {
///     up: Linear,
///     down: Linear,
/// }
///
/// impl Stage for Mlp {
///     type Input = Tensor<2>;
///     type Output = Tensor<2>;
///
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

/// A part of a model that holds much for what it computes, which [`Recompute::Selective`] computes again; otherwise as [`block`].
pub fn selective<M: Module + 'static, const D: usize, const E: usize>(
    module: &M,
    input: Tensor<D>,
    forward: impl Fn(&M, Tensor<D>) -> Tensor<E> + Send + 'static,
) -> Tensor<E> {
    part(Mark::Selective, module, input, forward)
}

fn part<M: Module + 'static, const D: usize, const E: usize>(
    mark: Mark,
    module: &M,
    input: Tensor<D>,
    forward: impl Fn(&M, Tensor<D>) -> Tensor<E> + Send + 'static,
) -> Tensor<E> {
    if !Recompute::takes(mark) {
        return forward(module, input);
    }
    let note = |count: fn(&mut Parts)| {
        let mut parts = PARTS.get();
        count(&mut parts);
        PARTS.set(parts);
    };
    // What nothing flows back through has no place in the graph.
    if !input.is_tracked() {
        note(|parts| parts.untracked += 1);
        return forward(module, input);
    }
    let mut forward = Some(forward);
    let output = of_their_backend!(again_later, module, &input, &mut forward);
    note(if output.is_some() { |parts| parts.recomputed += 1 } else { |parts| parts.unsupported += 1 });
    output.unwrap_or_else(|| {
        let forward = forward.take().expect("a backend that takes it gives something");
        forward(module, input)
    })
}

/// Parameters of their own graph, or of none.
struct Leaves {
    tracked: bool,
}

impl ModuleMapper for Leaves {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let value = param.val().inner().autodiff();
        let tracked = self.tracked && is_trained(&param);
        with_value(param, if tracked { value.require_grad() } else { value })
    }
}

fn leaves<M: Module>(module: &M, tracked: bool) -> M {
    let module = module.clone().map(&mut Leaves { tracked });
    if tracked { unify(module) } else { module }
}

/// From the gradient of a part's output to that of its input, if it has one.
type Again<B> = Box<dyn FnOnce(FloatTensor<B>) -> Option<FloatTensor<B>> + Send>;

/// What a part is computed again with; once.
struct State<B: Backend>(Arc<Mutex<Option<Again<B>>>>);

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

#[derive(Debug)]
struct Recomputed;

impl<B: Backend> Backward<B, 1> for Recomputed {
    type State = State<B>;

    fn backward(self, ops: Ops<State<B>, 1>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let gradient = gradients.consume::<B>(&ops.node);
        let again = ops.state.0.lock().take().expect("a graph is gone through once");
        if let (Some(gradient), [Some(node)]) = (again(gradient), ops.parents) {
            gradients.register::<B>(node.id, gradient);
        }
    }
}

/// `None`, and the forward is still there, where these are no tensors of the backend, or of a graph with burn's own checkpointing.
fn again_later<B: Engine, M: Module + 'static, const D: usize, const E: usize>(
    _: PhantomData<B>,
    module: &M,
    input: &Tensor<D>,
    forward: &mut Option<impl Fn(&M, Tensor<D>) -> Tensor<E> + Send + 'static>,
) -> Option<Tensor<E>> {
    let (_, node) = B::tracked(input.clone())?.into_parts();
    let forward = forward.take()?;
    let samples = Samples::current();
    let kept = input.clone().inner();
    // By the same kernels as with a graph, which those of tensors without autodiff are not.
    let output = Recompute::Nothing.during(|| forward(&leaves(module, false), kept.clone().autodiff()));
    let output =
        B::tracked(output).expect("a part that is computed again leaves what it makes on the device of its input");
    let (output, _) = output.into_parts();
    let module = module.clone();
    let to_input = move |gradient: FloatTensor<B>| {
        let module = leaves(&module, true);
        let leaf = kept.autodiff().require_grad();
        let run = || Recompute::Nothing.during(|| forward(&module, leaf.clone()));
        let output = again(|| samples.map_or_else(run, |samples| samples.during(run)));
        let mut gradients = seed_gradient::root(output, B::of_plain::<E>(gradient))?.backward();
        let to_input = leaf.grad_remove(&mut gradients);
        let gradients = GradientsParams::from_grads(gradients, &module);
        BESIDE.with_borrow_mut(|beside| {
            let beside = beside.as_mut().expect("parts are computed again in the backward of a stage");
            beside.add_all(&module, gradients);
        });
        B::plain(to_input?)
    };
    let state = State(Arc::new(Mutex::new(Some(Box::new(to_input) as Again<B>))));
    Some(recorded::<B, _, 1, E>(Recomputed, [node], state, output))
}
