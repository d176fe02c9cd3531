//! [`MicroBatchGradients`]: one micro-batch's gradients for a stage's parameters, including weight gradients that are
//! deferred (not computed yet).

use std::collections::HashSet;

use burn::module::{Module, ParamId};
use burn::optim::GradientsParams;

use crate::model::loss_weight::Weight;
use stageline_nn::params::visit_floats;
use stageline_nn::{Deferred, Sum};

/// One micro-batch's gradients for a stage's parameters, with the micro-batch's loss weight. Weight gradients may be
/// deferred, which means that they are not computed yet.
pub(crate) struct MicroBatchGradients {
    /// The micro-batch's gradients from burn's autodiff graph. After [`complete`](Self::complete), these are the
    /// complete gradients of all parameters.
    pub(crate) gradients: GradientsParams,
    /// The gradients that layers computed themselves, outside burn's autodiff graph, and that are not in a gradient sum
    /// yet. A parameter may also have a gradient in `gradients`.
    pub(crate) of_layers: GradientsParams,
    /// One micro-batch's deferred weight gradients. Each entry is a function that later computes the weight gradients
    /// of one call of a layer.
    pub(crate) deferred: Vec<Deferred>,
    pub(crate) weight: Weight,
}

impl MicroBatchGradients {
    /// Creates an empty set of gradients for a micro-batch with the loss weight `weight`. It is used when a step with a
    /// non-finite result is run a second time: that run only searches for the first NaN or infinity, and sums no
    /// gradients.
    pub(crate) fn of_weight(weight: Weight) -> Self {
        Self { gradients: GradientsParams::new(), of_layers: GradientsParams::new(), deferred: Vec::new(), weight }
    }

    /// Computes a micro-batch's deferred weight gradients, and then adds up all gradients of each parameter.
    pub(crate) fn complete<M: Module>(&mut self, module: &M) {
        let gradients = joined(module, std::mem::take(&mut self.gradients), std::mem::take(&mut self.of_layers));
        let mut sum = Sum::new(gradients, None);
        self.deferred.drain(..).for_each(|deferred| deferred.add_to(&mut sum));
        self.gradients = sum.gradients;
    }

    /// Returns the ids of the parameters whose gradients for one micro-batch are already computed.
    pub(crate) fn computed<M: Module>(&self, module: &M) -> HashSet<ParamId> {
        let mut computed = HashSet::new();
        if !self.gradients.is_empty() {
            visit_floats(module, |param| {
                if param.gradient(&self.gradients).is_some() {
                    computed.insert(param.id());
                }
            });
        }
        computed
    }

    /// Returns the ids of the parameters that have more than one gradient in this micro-batch: from the autodiff graph,
    /// from a layer outside the graph, or deferred. These gradients must be added to each other before they are added
    /// to the gradients of other micro-batches.
    pub(super) fn several<M: Module>(&self, module: &M) -> HashSet<ParamId> {
        if self.deferred.is_empty() && self.of_layers.is_empty() {
            return HashSet::new();
        }
        let (mut seen, mut several) = (self.computed(module), HashSet::new());
        visit_floats(module, |param| {
            if param.gradient(&self.of_layers).is_some() && !seen.insert(param.id()) {
                several.insert(param.id());
            }
        });
        several.extend(self.deferred.iter().flat_map(|deferred| &deferred.ids).filter(|id| !seen.insert(**id)));
        several
    }
}

/// Adds two sets of gradients of the same module, `gradients` and `beside`, parameter by parameter, and returns the
/// sum.
pub(crate) fn joined<M: Module>(module: &M, gradients: GradientsParams, beside: GradientsParams) -> GradientsParams {
    if beside.is_empty() {
        return gradients;
    }
    if gradients.is_empty() {
        return beside;
    }
    let mut sum = Sum::new(gradients, None);
    sum.add_all(module, beside);
    sum.gradients
}
