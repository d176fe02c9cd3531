//! Deferred weight gradients: in a split backward, a layer leaves its weight gradients out, and its stage computes them
//! later, at the time that the pipeline's plan sets for them.
//!
//! A layer's backward passes a closure for its weight gradients to [`put_off`]. Only a backward inside [`collect`]
//! defers them, so the same layers also train in a plain loop. A whole backward computes them at once, which needs less
//! memory.

use std::cell::RefCell;
use std::collections::HashSet;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{FloatDType, Tensor};

use crate::engine::are_one_node;
use crate::forward::thread_scope::collecting;
use crate::kernels::sum_of_squares;

/// A running sum of the gradients of a stage's parameters, kept separately for each parameter.
pub struct Sum {
    /// The running sum of the gradients of each parameter, for the parameters that have had a gradient so far.
    pub gradients: GradientsParams,
    /// The float type in which parameter gradients are summed: each gradient is cast to it before it is added. If
    /// `None`, gradients are added in their own type.
    pub dtype: Option<FloatDType>,
    /// The sum of the squared norms of all parameter gradients that were added so far; `None` if squared norms are not
    /// measured. The list has one tensor of shape `[1]` on the gradients' device. It is empty before the first
    /// gradient.
    pub squared_norms: Option<Vec<Tensor<1>>>,
}

impl Sum {
    /// Creates a running sum of gradients that starts from `gradients`. Further gradients are cast to the type `dtype`
    /// before they are added, or added in their own type if `dtype` is `None`.
    pub fn new(gradients: GradientsParams, dtype: Option<FloatDType>) -> Self {
        Self { gradients, dtype, squared_norms: None }
    }

    /// Adds one more gradient of the parameter `id` to the running sum of its gradients. The sum is changed in place if
    /// nothing else uses its tensor.
    pub fn add<const D: usize>(&mut self, id: ParamId, gradient: Tensor<D>) {
        let gradient = match self.dtype {
            Some(dtype) => gradient.cast(dtype),
            None => gradient,
        };
        if let Some(squared_norms) = &mut self.squared_norms {
            let squared_norm = sum_of_squares(gradient.clone());
            let sum = match squared_norms.pop() {
                Some(sum) => sum + squared_norm,
                None => squared_norm,
            };
            squared_norms.push(sum);
        }
        let sum = match self.gradients.remove::<D>(id) {
            Some(sum) => sum.add(gradient),
            None => gradient,
        };
        self.gradients.register(id, sum);
    }

    /// Adds the gradients of the parameters of `module` to the running sums. Parameters without a gradient in
    /// `gradients` are skipped.
    pub fn add_all<M: Module>(&mut self, module: &M, gradients: GradientsParams) {
        module.visit(&mut AddAll { sum: self, gradients });
    }
}

struct AddAll<'a> {
    sum: &'a mut Sum,
    gradients: GradientsParams,
}

impl ModuleVisitor for AddAll<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(gradient) = self.gradients.remove::<D>(param.id) {
            self.sum.add(param.id, gradient);
        }
    }
}

/// The deferred weight gradients of a layer: a backward leaves them out, and they are computed after it. They belong to
/// one call of the layer's forward.
pub struct Deferred {
    /// The ids of a layer's parameters whose gradients are deferred until after the backward.
    pub ids: Vec<ParamId>,
    compute: Box<dyn FnOnce(&mut Sum) + Send>,
}

impl Deferred {
    /// Creates the deferred gradients of the parameters `ids`. The closure `compute` is called later. It computes one
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

/// Defers gradients of a layer's parameters until after the backward, if the running backward permits it. `ids` has the
/// id of each parameter whose gradient may be deferred, and `None` for each other parameter (see [`may_put_off`]).
///
/// Returns for each parameter whether its gradient is now deferred. No gradient is deferred if the running backward
/// defers none, or must not defer one of these gradients. `later` returns the closure that will compute all deferred
/// gradients together. The layer must compute all other gradients itself and register them in the autodiff graph.
pub fn put_off_any<const N: usize, F: FnOnce(&mut Sum) + Send + 'static>(
    ids: [Option<ParamId>; N],
    later: impl FnOnce() -> F,
) -> [bool; N] {
    let waiting: Vec<_> = ids.into_iter().flatten().collect();
    let waits = !waiting.is_empty() && put_off(Deferred::new(waiting, later())).is_ok();
    ids.map(|id| waits && id.is_some())
}

/// Returns the id of a parameter if a layer may defer its gradient. `value` is the tensor that the layer's forward used
/// as the value of the parameter.
///
/// Returns `None` if the parameter is frozen. Returns `None` also if `value` is computed from other tensors, as with
/// LoRA and other reparameterisations. Only the autodiff graph can derive the gradients of those tensors.
pub fn may_put_off<const D: usize>(param: &Param<Tensor<D>>, value: &Tensor<D>) -> Option<ParamId> {
    (value.is_require_grad() && are_one_node(value, &param.base())).then_some(param.id)
}

/// The state of a running split backward, which leaves weight gradients to be computed later. It has the gradients
/// deferred so far, and the parameters whose gradients must not be deferred.
struct Scope {
    /// The ids of the parameters whose gradients must not be deferred, such as parameters that are tied to another
    /// stage's.
    exempt: HashSet<ParamId>,
    deferred: Vec<Deferred>,
}

thread_local! {
    /// The state of the split backward that runs on this thread; `None` outside [`collect`].
    static SCOPE: RefCell<Option<Scope>> = const { RefCell::new(None) };
}

/// Runs `backward`. Returns its result, and the weight gradients that layers deferred during it, in the order in which
/// they deferred them. The caller computes these gradients later. Gradients of parameters with ids in `exempt` are not
/// deferred.
pub fn collect<R>(exempt: HashSet<ParamId>, backward: impl FnOnce() -> R) -> (R, Vec<Deferred>) {
    let (result, scope) = collecting(&SCOPE, Scope { exempt, deferred: Vec::new() }, backward);
    (result, scope.deferred)
}

/// Defers the weight gradients `later` of a custom layer until after the backward. The layer's backward calls this
/// function. The pipeline computes the gradients at the time that its schedule sets for weight gradients.
///
/// # Errors
/// Returns the argument `later` if the gradients cannot be deferred. This is so outside a pipeline, in a backward that
/// is not split into input and weight gradients, and for parameters that are tied to another stage's. The layer must
/// then compute the gradients itself and register them in the autodiff graph.
pub fn put_off(later: Deferred) -> Result<(), Deferred> {
    SCOPE.with_borrow_mut(|scope| match scope {
        Some(scope) if later.ids.iter().all(|id| !scope.exempt.contains(id)) => {
            scope.deferred.push(later);
            Ok(())
        }
        _ => Err(later),
    })
}
