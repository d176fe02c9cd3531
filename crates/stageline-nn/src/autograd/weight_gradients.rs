//! The weight gradients that layers compute outside burn's autodiff graph. In an unsplit backward pass (input and
//! weight gradients together), a layer adds its weight gradients to the stage's running sum immediately, so only one
//! layer's gradients exist besides the sum. In a split backward pass (input gradients apart from weight gradients, as
//! in zero-bubble schedules), the weight gradients are deferred ([`Deferred`]). The stage computes them later, when the
//! pipeline's schedule says so.
//!
//! The backward pass of a layer of this crate passes a closure for its weight gradients to [`put_off_any`]; that of a
//! custom layer passes it to [`put_off`]. Outside [`collect`] and [`add_at_once`], the layer registers the gradients in
//! the graph instead, so the same layers also train without a pipeline.

use std::cell::RefCell;
use std::collections::HashSet;

use burn::module::{Param, ParamId};
use burn::tensor::Tensor;

use crate::autograd::sum::Sum;
use crate::autograd::uses::note_use;
use crate::engine::are_one_node;
use crate::forward::thread_scope::collecting;

/// Weight gradients of one layer call that a split backward pass has deferred, to be computed later outside the
/// autodiff graph.
pub struct Deferred {
    /// The ids of the parameters whose gradients are deferred.
    pub ids: Vec<ParamId>,
    compute: Box<dyn FnOnce(&mut Sum) + Send>,
}

impl Deferred {
    /// Creates the deferred gradients of the parameters `ids`. The closure `compute` is called later: it computes one
    /// gradient for each of these parameters without autodiff, and adds it to a running sum.
    pub fn new(ids: Vec<ParamId>, compute: impl FnOnce(&mut Sum) + Send + 'static) -> Self {
        Self { ids, compute: Box::new(compute) }
    }

    /// Computes the deferred weight gradients of a layer and adds them to `sum`, the running sums of the parameters'
    /// gradients.
    pub fn add_to(self, sum: &mut Sum) {
        (self.compute)(sum);
    }
}

/// Passes a layer's weight gradients to this thread's backward pass. A split backward pass defers them to be computed
/// later, and an unsplit one (input and weight gradients together) adds them to its running sum immediately. `ids`
/// contains the id of each parameter whose gradient may be computed outside the autodiff graph, and `None` for each
/// other parameter (see [`may_put_off`]). `later` returns the closure that computes all these gradients together.
///
/// Returns true for each parameter whose gradient the backward pass accepts. It accepts all gradients with an id in
/// `ids`, or none. The layer must compute every other gradient itself, and register it in the autodiff graph.
pub fn put_off_any<const N: usize, F: FnOnce(&mut Sum) + Send + 'static>(
    ids: [Option<ParamId>; N],
    later: impl FnOnce() -> F,
) -> [bool; N] {
    let waiting: Vec<_> = ids.into_iter().flatten().collect();
    let waits = !waiting.is_empty() && put_off(Deferred::new(waiting, later())).map_or_else(add_now, |()| true);
    ids.map(|id| waits && id.is_some())
}

/// Returns the id of a parameter if a layer may compute its gradient outside the autodiff graph. `value` is the tensor
/// that the layer's forward pass uses as the parameter's value. The function also records this use of the parameter, so
/// a forward pass calls it once for each use.
///
/// Returns `None` if the parameter is frozen, and if `value` is computed from other tensors, as with LoRA: only the
/// autodiff graph can derive the gradients of those tensors.
pub fn may_put_off<const D: usize>(param: &Param<Tensor<D>>, value: &Tensor<D>) -> Option<ParamId> {
    note_use(param.id);
    (value.is_require_grad() && are_one_node(value, &param.base())).then_some(param.id)
}

/// How the running backward pass handles layers' weight gradients: it defers them, or adds them to a running sum.
enum Scope {
    /// A split backward pass: weight gradients are deferred, and the stage computes them later.
    Split {
        /// Ids of parameters whose gradients must not be deferred, for example because another stage shares these
        /// (tied) parameters.
        exempt: HashSet<ParamId>,
        deferred: Vec<Deferred>,
    },
    /// An unsplit backward pass (input and weight gradients together): each layer computes its weight gradients
    /// immediately and adds them to a running sum.
    Whole(AtOnce),
}

/// The state of a backward pass that is not split into input and weight gradients: the running sum to which layers
/// immediately add their weight gradients, and the ids of the parameters that may be added.
pub struct AtOnce {
    /// Running sum to which layers add their weight gradients while a backward pass runs that is not split into input
    /// and weight gradients.
    pub sum: Sum,
    /// Ids of the parameters whose gradients layers may add to `sum`; all other gradients stay in the autodiff graph.
    /// Each layer call adds either all gradients that may be computed outside the graph (see [`may_put_off`]), or none.
    ids: HashSet<ParamId>,
    /// Ids of the parameters whose gradients layers have added to `sum` so far.
    pub added: HashSet<ParamId>,
}

impl AtOnce {
    /// Creates the state of an unsplit backward pass (input and weight gradients together), in which layers add the
    /// gradients of the parameters `ids` to `sum`. `ids` must not contain parameters that the forward pass used several
    /// times, because their gradients must be summed within a micro-batch before they are added to other micro-batches'
    /// gradients. This is not checked.
    pub fn new(sum: Sum, ids: HashSet<ParamId>) -> Self {
        Self { sum, ids, added: HashSet::new() }
    }
}

thread_local! {
    /// How this thread's backward pass handles layers' weight gradients; `None` outside [`collect`] and
    /// [`add_at_once`].
    static SCOPE: RefCell<Option<Scope>> = const { RefCell::new(None) };
}

/// Runs `backward` as a split backward pass (input gradients only). Returns the result of `backward` and the deferred
/// weight gradients, in the order of their deferral, which the caller computes later. Gradients of the parameters in
/// `exempt` are not deferred.
pub fn collect<R>(exempt: HashSet<ParamId>, backward: impl FnOnce() -> R) -> (R, Vec<Deferred>) {
    match collecting(&SCOPE, Scope::Split { exempt, deferred: Vec::new() }, backward) {
        (result, Scope::Split { deferred, .. }) => (result, deferred),
        (_, Scope::Whole(_)) => unreachable!("a backward inside this one restores its scope"),
    }
}

/// Runs `backward` as an unsplit backward pass (input and weight gradients together), in which layers add their weight
/// gradients to the running sum in `at_once` immediately. Returns the result of `backward`, which lacks these
/// gradients, and `at_once` with the new sum and the ids of the added parameters.
pub fn add_at_once<R>(at_once: AtOnce, backward: impl FnOnce() -> R) -> (R, AtOnce) {
    match collecting(&SCOPE, Scope::Whole(at_once), backward) {
        (result, Scope::Whole(at_once)) => (result, at_once),
        (_, Scope::Split { .. }) => unreachable!("a backward inside this one restores its scope"),
    }
}

/// Passes a custom layer's weight gradients, `later`, to the running backward pass; the layer's backward pass calls
/// this function. A split backward pass defers these gradients, and the pipeline computes them when its schedule says
/// so.
///
/// # Errors
/// Returns `later` if the gradients cannot be deferred:
///
/// - outside a pipeline
/// - in a backward pass that is not split into input and weight gradients
/// - for parameters that are tied to another stage's
///
/// The layer must then compute the gradients itself and register them in the autodiff graph.
pub fn put_off(later: Deferred) -> Result<(), Deferred> {
    SCOPE.with_borrow_mut(|scope| match scope {
        Some(Scope::Split { exempt, deferred }) if later.ids.iter().all(|id| !exempt.contains(id)) => {
            deferred.push(later);
            Ok(())
        }
        _ => Err(later),
    })
}

/// Adds the weight gradients `now` to the stage's gradient sum and returns true, if this thread runs an unsplit
/// backward pass (input and weight gradients together) that may add all of them. Otherwise returns false without
/// computing them, and the layer must register the gradients in the autodiff graph. The layer's forward pass must have
/// called [`may_put_off`] for each use of a parameter.
fn add_now(now: Deferred) -> bool {
    SCOPE.with_borrow_mut(|scope| match scope {
        Some(Scope::Whole(AtOnce { sum, ids, added })) if now.ids.iter().all(|id| ids.contains(id)) => {
            added.extend(&now.ids);
            now.add_to(sum);
            true
        }
        _ => false,
    })
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use burn::module::Module;
    use burn::nn::{EmbeddingConfig, LayerNormConfig, LinearConfig};
    use burn::optim::GradientsParams;
    use burn::tensor::{Device, FloatDType, Int, Tensor, TensorData};

    use super::*;
    use crate::autograd::uses::finding_single_uses;
    use crate::params::visit_floats;
    use crate::{Embedding, LayerNorm, Linear};

    /// A model for tests: an embedding, a normalisation, a linear layer that is used twice, and one that is used once.
    #[derive(Module, Debug)]
    struct Layers {
        embedding: Embedding,
        norm: LayerNorm,
        twice: Linear,
        once: Linear,
    }

    impl Layers {
        fn new() -> Self {
            let device = Device::flex().autodiff();
            let linear = |outputs: usize| Linear::from(LinearConfig::new(6, outputs).init(&device));
            Self {
                embedding: Embedding::from(EmbeddingConfig::new(19, 6).init(&device)),
                norm: LayerNorm::init(&LayerNormConfig::new(6), &device),
                twice: linear(6),
                once: linear(3),
            }
        }

        /// Returns the loss of one micro-batch, in which some indices occur several times.
        fn loss(&self, micro_batch: usize) -> Tensor<1> {
            let indices = (0..24).map(|at| ((at * at + micro_batch) % 7) as i32).collect();
            let indices = Tensor::<2, Int>::from_data(TensorData::new(indices, [4, 6]), &Device::flex().autodiff());
            let rows = self.norm.forward(self.embedding.forward(indices));
            let output = self.once.forward(self.twice.forward(self.twice.forward(rows).tanh()));
            (output.clone() * output).sum()
        }

        fn bits(&self, sum: &Sum) -> Vec<Vec<u32>> {
            let mut bits = Vec::new();
            visit_floats(self, |param| {
                let gradient = param.gradient(&sum.gradients).expect("every parameter has a gradient");
                bits.push(gradient.unranked().into_data().iter::<f32>().map(f32::to_bits).collect());
            });
            bits
        }
    }

    fn empty(dtype: Option<FloatDType>) -> Sum {
        Sum::new(GradientsParams::new(), dtype)
    }

    /// Tests gradients that layers add to the sum immediately, over three micro-batches. The sum must have the same
    /// bits as the sum of the gradients from the autodiff graph.
    #[test]
    fn gradients_that_layers_add_at_once_give_the_same_sum() {
        let layers = Layers::new();
        let (mut expected, mut sum) = (empty(None), empty(None));
        for micro_batch in 0..3 {
            let gradients = GradientsParams::from_grads(layers.loss(micro_batch).backward(), &layers);
            expected.add_all(&layers, gradients);

            let (loss, ids) = finding_single_uses(|| layers.loss(micro_batch));
            assert_eq!(ids.len(), 5, "the table, two parameters of the norm, and two of the last layer");
            let (gradients, of_layers) = add_at_once(AtOnce::new(sum, ids), || loss.backward());
            sum = of_layers.sum;
            assert!(layers.once.weight.val().grad(&gradients).is_none(), "the layer must have added its gradient");
            assert!(layers.embedding.weight.val().grad(&gradients).is_none(), "the layer must have added its gradient");
            sum.add_all(&layers, GradientsParams::from_grads(gradients, &layers));
        }
        assert_eq!(layers.bits(&sum), layers.bits(&expected));
    }

    /// Tests a gradient sum in f64 that also measures squared norms. Neither the sum nor the norms depend on whether
    /// layers add their gradients immediately.
    #[test]
    fn norms_and_types_of_a_sum_do_not_depend_on_when_gradients_are_added() {
        let layers = Layers::new();
        let summed = |at_once: bool| {
            let mut sum = Sum { squared_norms: Some(Vec::new()), ..empty(Some(FloatDType::F64)) };
            for micro_batch in 0..2 {
                let (loss, ids) = finding_single_uses(|| layers.loss(micro_batch));
                let ids = if at_once { ids } else { HashSet::new() };
                let (gradients, of_layers) = add_at_once(AtOnce::new(sum, ids), || loss.backward());
                sum = of_layers.sum;
                sum.add_all(&layers, GradientsParams::from_grads(gradients, &layers));
            }
            let norms = sum.squared_norms.take().unwrap().remove(0).into_data().iter::<f64>().collect::<Vec<_>>();
            (norms[0], layers.bits(&sum))
        };
        let ((at_once, sum), (later, expected)) = (summed(true), summed(false));
        assert!((at_once / later - 1.0).abs() < 1e-12, "{at_once}, {later}");
        assert_eq!(sum, expected);
    }

    #[test]
    fn a_custom_layer_cannot_add_gradients_at_once() {
        let layers = Layers::new();
        let id = layers.once.weight.id;
        let at_once = AtOnce::new(empty(None), [id].into());
        let (refused, _) = add_at_once(at_once, || put_off(Deferred::new(vec![id], |_| ())).is_err());
        assert!(refused, "its forward has not noted its use of the parameter");
    }
}
