//! Deferred weight gradients: split layers leave them out of a backward, and the stage computes them when the plan
//! says.
//!
//! A layer's backward passes its weight gradients to [`put_off`]. Only a backward inside [`collect`] defers them, so
//! the same layers also train in a plain loop. A whole backward computes them at once, which needs less memory.

use std::cell::RefCell;
use std::collections::HashSet;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{FloatDType, Tensor};

use crate::forward::thread_scope::collecting;

/// A running sum of the gradients of a stage's parameters, by parameter.
pub struct Sum {
    /// The gradient sum of each parameter for which a gradient was added.
    pub gradients: GradientsParams,
    /// The float type in which gradients are added to the sum; `None` adds gradients in their own type.
    pub dtype: Option<FloatDType>,
}

impl Sum {
    /// Creates a sum that starts from `gradients` and adds further gradients in the type `dtype`, or in their own type
    /// if `dtype` is `None`.
    pub fn new(gradients: GradientsParams, dtype: Option<FloatDType>) -> Self {
        Self { gradients, dtype }
    }

    /// Adds a gradient of one parameter to the sum, in place if nothing else uses the sum's tensor.
    pub fn add<const D: usize>(&mut self, id: ParamId, gradient: Tensor<D>) {
        let gradient = match self.dtype {
            Some(dtype) => gradient.cast(dtype),
            None => gradient,
        };
        let sum = match self.gradients.remove::<D>(id) {
            Some(sum) => sum.add(gradient),
            None => gradient,
        };
        self.gradients.register(id, sum);
    }

    /// Adds the gradients of all parameters of a module to the sum.
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

/// The weight gradients of one use of a layer in a forward, which are not computed yet.
pub struct Deferred {
    /// The ids of the layer's parameters whose gradients are deferred.
    pub ids: Vec<ParamId>,
    compute: Box<dyn FnOnce(&mut Sum) + Send>,
}

impl Deferred {
    /// Creates deferred gradients for the parameters `ids`. `compute` later adds one gradient for each of these
    /// parameters to a sum, computed without autodiff.
    pub fn new(ids: Vec<ParamId>, compute: impl FnOnce(&mut Sum) + Send + 'static) -> Self {
        Self { ids, compute: Box::new(compute) }
    }

    /// Computes the deferred weight gradients of a layer and adds them to `sum`.
    pub fn add_to(self, sum: &mut Sum) {
        (self.compute)(sum);
    }
}

/// Defers gradients of a layer's parameters. `ids` has the result of [`may_put_off`] for each parameter: the id of a
/// parameter whose gradient may be deferred, or `None`. Returns for each parameter whether its gradient is now
/// deferred: false for all of them if the running backward defers no gradients, or must not defer one of these.
///
/// The closure that `later` returns computes all deferred gradients together. The layer must register the gradients
/// that are not deferred in the autodiff graph.
pub fn put_off_any<const N: usize, F: FnOnce(&mut Sum) + Send + 'static>(
    ids: [Option<ParamId>; N],
    later: impl FnOnce() -> F,
) -> [bool; N] {
    let waiting: Vec<_> = ids.into_iter().flatten().collect();
    let waits = !waiting.is_empty() && put_off(Deferred::new(waiting, later())).is_ok();
    ids.map(|id| waits && id.is_some())
}

/// Returns the id of a parameter whose gradient a layer may defer, given the value that the layer computed with.
///
/// Returns `None` if the parameter is frozen, or if its value is composed from other tensors (LoRA and other
/// reparameterisations), because only the graph derives the gradients of those.
pub fn may_put_off<const D: usize>(param: &Param<Tensor<D>>, value: &Tensor<D>) -> Option<ParamId> {
    value.is_require_grad().then_some(param.id)
}

/// The deferred weight gradients that a running backward collects, and the parameters for which it must not defer any.
struct Scope {
    /// The ids of the parameters whose gradients the running backward must not defer.
    exempt: HashSet<ParamId>,
    deferred: Vec<Deferred>,
}

thread_local! {
    /// The deferred gradients of the backward that runs on this thread inside [`collect`]; `None` outside such a
    /// backward.
    static SCOPE: RefCell<Option<Scope>> = const { RefCell::new(None) };
}

/// Runs `backward`, and returns its result and the weight gradients that its layers deferred, in the order of the
/// backward. The gradients of `exempt` parameters are not deferred.
pub fn collect<R>(exempt: HashSet<ParamId>, backward: impl FnOnce() -> R) -> (R, Vec<Deferred>) {
    let (result, scope) = collecting(&SCOPE, Scope { exempt, deferred: Vec::new() }, backward);
    (result, scope.deferred)
}

/// Defers weight gradients in the backward of a custom layer. The pipeline computes them later, at the time that its
/// schedule sets for weight gradients.
///
/// # Errors
/// Returns the argument `later` if gradients cannot be deferred: outside a pipeline, in a backward that is not split,
/// and for parameters that are tied to another stage's. The layer must then register these gradients in the graph.
pub fn put_off(later: Deferred) -> Result<(), Deferred> {
    SCOPE.with_borrow_mut(|scope| match scope {
        Some(scope) if later.ids.iter().all(|id| !scope.exempt.contains(id)) => {
            scope.deferred.push(later);
            Ok(())
        }
        _ => Err(later),
    })
}
