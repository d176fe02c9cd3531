//! Weight gradients that wait: what split layers leave of a backward, to be computed when the plan says.
//!
//! A layer's backward asks [`put_off`]. Outside [`collect`] nothing waits, so the same layers train in a plain loop.

use std::cell::RefCell;
use std::collections::HashSet;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{FloatDType, Tensor};

use crate::nn::forward::thread_scope::collecting;

/// Gradients of a stage's parameters, added up.
pub struct Sum {
    pub(crate) gradients: GradientsParams,
    /// In what they are added up, if not as they come.
    pub(crate) dtype: Option<FloatDType>,
}

impl Sum {
    pub(crate) fn new(gradients: GradientsParams, dtype: Option<FloatDType>) -> Self {
        Self { gradients, dtype }
    }

    /// Adds the gradient of a parameter, in place where nobody else has what is there.
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

    /// Adds those of all parameters of a module.
    pub(crate) fn add_all<M: Module>(&mut self, module: &M, gradients: GradientsParams) {
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

/// The gradients of a layer's weights for one use of it, not yet computed.
pub struct Deferred {
    pub(crate) ids: Vec<ParamId>,
    compute: Box<dyn FnOnce(&mut Sum) + Send>,
}

impl Deferred {
    /// Of these parameters; `compute` adds a gradient, without autodiff, for each of them.
    pub fn new(ids: Vec<ParamId>, compute: impl FnOnce(&mut Sum) + Send + 'static) -> Self {
        Self { ids, compute: Box::new(compute) }
    }

    /// Computes them, and adds them to what there is.
    pub(crate) fn add_to(self, sum: &mut Sum) {
        (self.compute)(sum);
    }
}

/// Puts off the gradients of those parameters of a layer that [`may_put_off`] gave, computed together by what `later` makes; and
/// says which of them now wait. The others are to be registered in the graph.
pub(crate) fn put_off_any<const N: usize, F: FnOnce(&mut Sum) + Send + 'static>(
    ids: [Option<ParamId>; N],
    later: impl FnOnce() -> F,
) -> [bool; N] {
    let waiting: Vec<_> = ids.into_iter().flatten().collect();
    let waits = !waiting.is_empty() && put_off(Deferred::new(waiting, later())).is_ok();
    ids.map(|id| waits && id.is_some())
}

/// The parameter whose gradient a layer may put off, given the value with which the layer computed; `None` if the parameter is
/// frozen, or if its value is composed from other tensors (LoRA and other reparameterisations), whose gradients only the graph
/// derives.
pub(crate) fn may_put_off<const D: usize>(param: &Param<Tensor<D>>, value: &Tensor<D>) -> Option<ParamId> {
    value.is_require_grad().then_some(param.id)
}

/// Where a backward leaves them.
struct Scope {
    /// Whose gradients do not wait.
    exempt: HashSet<ParamId>,
    deferred: Vec<Deferred>,
}

thread_local! {
    static SCOPE: RefCell<Option<Scope>> = const { RefCell::new(None) };
}

/// Runs a backward, and gives what it has left for later, in the order of the backward.
pub(crate) fn collect<R>(exempt: HashSet<ParamId>, backward: impl FnOnce() -> R) -> (R, Vec<Deferred>) {
    let (result, scope) = collecting(&SCOPE, Scope { exempt, deferred: Vec::new() }, backward);
    (result, scope.deferred)
}

/// Leaves gradients for later, in the backward of a layer of one's own: they are computed when the plan says.
///
/// # Errors
/// Gives them back where nothing waits: outside a pipeline, in a whole backward, and for parameters that other stages have
/// too. They are then to be registered in the graph, as any layer does.
pub fn put_off(later: Deferred) -> Result<(), Deferred> {
    SCOPE.with_borrow_mut(|scope| match scope {
        Some(scope) if later.ids.iter().all(|id| !scope.exempt.contains(id)) => {
            scope.deferred.push(later);
            Ok(())
        }
        _ => Err(later),
    })
}
