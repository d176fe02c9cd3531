//! [`GradientSum`]: the running sum of a stage's gradients over the micro-batches of a step, added in an order that
//! does not depend on the schedule.

use std::collections::{BTreeMap, HashSet};

use burn::module::{Module, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{FloatDType, Tensor};

use crate::update::clip::Scaling;
use crate::update::ledger::Ledger;
use crate::update::micro_batch_gradients::{MicroBatchGradients, joined};
use crate::update::norm::SquaredNorms;
use stageline_nn::Sum;
use stageline_nn::autograd::{AtOnce, add_at_once};
use stageline_nn::params::visit_floats;

/// The running sum of a stage's gradients over the micro-batches of a step (gradient accumulation). Gradients are added
/// in ascending micro-batch order, even if they arrive in another order. Micro-batches are divided into groups, and
/// each group is summed before it is added to the total.
///
/// Because the order of the additions is fixed, the sum has the same bits under every schedule. Also, one replica's sum
/// in R groups has the same bits as the sum of R data-parallel replicas.
pub(crate) struct GradientSum {
    /// Sum of the gradients of all complete groups of `per_group` consecutive micro-batches.
    total: GradientsParams,
    /// Sum of the gradients of the current group of micro-batches, which is not complete yet.
    group: Sum,
    /// Number of consecutive micro-batches in a group. Each group's gradients are summed before they are added to the
    /// total.
    per_group: usize,
    /// The ids of the parameters that had several gradients in one micro-batch of this step, such as one that a layer
    /// computed itself and one from the autodiff graph. In later micro-batches, layers do not add the gradients of
    /// these parameters to the sum during the backward pass.
    several: HashSet<ParamId>,
    /// Ids of the parameters whose gradients were added to the sum by their layers during the last backward pass,
    /// instead of after it.
    at_once: HashSet<ParamId>,
    /// Gradients of micro-batches that arrived out of order, by micro-batch index. They wait here until the gradients
    /// of all earlier micro-batches are in the sum.
    early: BTreeMap<usize, MicroBatchGradients>,
    /// Number of bytes of temporary memory that the last added micro-batch's gradients needed beside the sum. Excludes
    /// gradients that layers added to the sum one by one.
    beside: u64,
    ledger: Ledger,
}

impl GradientSum {
    /// Creates an empty sum of a stage's gradients. The gradients of every `per_group` consecutive micro-batches are
    /// summed as one group before they are added to the total. Gradients are added in the dtype `dtype`, or in their
    /// own dtype if it is `None`.
    pub(crate) fn new(dtype: Option<FloatDType>, per_group: usize) -> Self {
        let group = Sum::new(GradientsParams::new(), dtype);
        Self {
            total: GradientsParams::new(),
            group,
            per_group,
            several: HashSet::new(),
            at_once: HashSet::new(),
            early: BTreeMap::new(),
            beside: 0,
            ledger: Ledger::default(),
        }
    }

    /// Runs `backward`, a micro-batch's unsplit backward pass (input and weight gradients together). Meanwhile, layers
    /// add the gradients of the parameters `ids` directly to the step's sum if that gives the same bits as adding them
    /// after the pass. `ids` lists the parameters that exactly one layer used, once, in this micro-batch.
    ///
    /// Returns the result of `backward`, and the layers' gradients that [`add`](Self::add) must still add to the sum.
    /// These are empty except for the first micro-batch of a group, whose sum is still empty. If gradients of an
    /// earlier micro-batch are missing, layers add nothing during the pass.
    pub(crate) fn adding_at_once<R>(
        &mut self,
        micro_batch: usize,
        mut ids: HashSet<ParamId>,
        backward: impl FnOnce() -> R,
    ) -> (R, GradientsParams) {
        if micro_batch != self.ledger.backwards {
            return (backward(), GradientsParams::new());
        }
        if self.group.gradients.is_empty() {
            let sum = Sum::new(GradientsParams::new(), None);
            let (result, of_layers) = add_at_once(AtOnce::new(sum, ids), backward);
            return (result, of_layers.sum.gradients);
        }
        ids.retain(|id| !self.several.contains(id));
        let empty = Sum::new(GradientsParams::new(), self.group.dtype);
        let sum = std::mem::replace(&mut self.group, empty);
        let (result, at_once) = add_at_once(AtOnce::new(sum, ids), backward);
        (self.group, self.at_once) = (at_once.sum, at_once.added);
        (result, GradientsParams::new())
    }

    /// Adds one micro-batch's gradients to the step's sum, and computes its deferred weight gradients. If gradients of
    /// an earlier micro-batch are still missing, the new gradients are stored and added after the missing ones.
    ///
    /// Returns the ids of the parameters whose gradient a layer added to the sum too early, during the backward pass.
    /// Such a parameter has another gradient in this micro-batch, and both gradients should have been added to each
    /// other first. The result is empty if there are none.
    pub(crate) fn add<M: Module>(
        &mut self,
        module: &M,
        micro_batch: usize,
        mut gradients: MicroBatchGradients,
    ) -> HashSet<ParamId> {
        let several = gradients.several(module);
        if !gradients.deferred.is_empty() && (micro_batch != self.ledger.backwards || !several.is_empty()) {
            gradients.complete(module);
        }
        let mut too_early = std::mem::take(&mut self.at_once);
        if !too_early.is_empty() {
            let computed = gradients.computed(module);
            too_early.retain(|id| computed.contains(id));
        }
        self.several.extend(several.iter().chain(&too_early));
        self.early.insert(micro_batch, gradients);
        while let Some(MicroBatchGradients { gradients, of_layers, deferred, weight }) =
            self.early.remove(&self.ledger.backwards)
        {
            self.beside = self.group.add_all(module, joined(module, gradients, of_layers));
            // Each deferred gradient is added as soon as it is computed, so only one layer's gradients are in memory in
            // addition to the sum.
            deferred.into_iter().for_each(|deferred| deferred.add_to(&mut self.group));
            self.ledger.weight.add(&weight);
            self.ledger.backwards += 1;
            if self.ledger.backwards.is_multiple_of(self.per_group) {
                self.end_group(module);
            }
        }
        too_early
    }

    /// Ends the current group: adds the sum of its gradients to the total, and begins a new group.
    fn end_group<M: Module>(&mut self, module: &M) {
        let (total, group) = (std::mem::take(&mut self.total), std::mem::take(&mut self.group.gradients));
        self.total = joined(module, total, group);
    }

    /// Completes a step's gradient sum: adds the last group of micro-batches to the total, and replaces the total by
    /// the result of `reduce`. In replica 0, `reduce` returns the sum over all data-parallel replicas. In another
    /// replica, it sends the gradients to replica 0, and returns those that it did not send.
    pub(crate) fn end<M: Module, E>(
        &mut self,
        module: &M,
        reduce: impl FnOnce(GradientsParams) -> Result<GradientsParams, E>,
    ) -> Result<(), E> {
        // A rehearsal may have fewer micro-batches than a group, so the last group may be incomplete.
        self.end_group(module);
        self.total = reduce(std::mem::take(&mut self.total))?;
        Ok(())
    }

    /// Records the squared norm of every micro-batch's gradients until the end of the step, to estimate the gradient
    /// noise.
    pub(crate) fn measure_each(&mut self) {
        self.group.squared_norms = Some(Vec::new());
    }

    /// Removes and returns the sum of the squared norms of all micro-batches' gradients, as a list with one tensor of
    /// shape `[1]`. The list is empty if the stage has no gradients. Returns `None` if the step does not measure norms.
    /// The sum still contains the square of the loss scale as a factor.
    pub(crate) fn take_squared_norm_of_each(&mut self) -> Option<Vec<Tensor<1>>> {
        self.group.squared_norms.take()
    }

    /// Returns the number of bytes of temporary memory that the last added micro-batch's gradients needed beside the
    /// sum. Excludes gradients that layers added to the sum one by one.
    pub(crate) fn beside(&self) -> u64 {
        self.beside
    }

    pub(crate) fn ledger(&self) -> Ledger {
        self.ledger.clone()
    }

    /// Divides the gradient sum by the loss scale.
    pub(crate) fn unscale<M: Module>(&mut self, module: &M, scale: f64) {
        if scale != 1.0 {
            let gradients = std::mem::take(&mut self.total);
            self.total = Scaling::By(1.0 / scale).apply(module, gradients);
        }
    }

    /// Returns the squared norm of each parameter's gradient sum, in the order of the module's parameters.
    pub(crate) fn squared_norms<M: Module>(&self, module: &M) -> SquaredNorms {
        SquaredNorms::of(module, &self.total)
    }

    /// Returns a copy of the gradient sum. Its tensors share their memory with the sum.
    pub(crate) fn copy<M: Module>(&self, module: &M) -> GradientsParams {
        let mut copy = GradientsParams::new();
        visit_floats(module, |param| {
            if let Some(gradient) = param.gradient(&self.total) {
                param.put_gradient(&mut copy, gradient);
            }
        });
        copy
    }

    /// Replaces the gradient sum by `gradients`, the complete sum of a step that was rolled back, so that the optimizer
    /// step can be made again. The count of summed micro-batches becomes 0.
    pub(crate) fn put_back(&mut self, gradients: GradientsParams) {
        self.take();
        self.total = gradients;
    }

    /// Returns the step's completed gradient sum, and leaves an empty sum for the next step.
    pub(crate) fn take(&mut self) -> GradientsParams {
        let empty = Self::new(self.group.dtype, self.per_group);
        std::mem::replace(self, empty).total
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::module::Param;
    use burn::nn::LinearConfig;
    use burn::tensor::{Device, Tensor};
    use stageline_nn::Linear;
    use stageline_nn::autograd::finding_single_uses;

    /// Returns the gradient sum of a test parameter, whose gradient in micro-batch i is `values[i]`. The micro-batches
    /// arrive in the order `order`, and are summed in groups of `per_group`.
    fn total<const N: usize>(values: [f32; N], order: [usize; N], per_group: usize) -> f32 {
        let device = Device::flex().autodiff();
        let parameter = Param::from_tensor(Tensor::<1>::zeros([1], &device));
        let mut sum = GradientSum::new(None, per_group);
        for micro_batch in order {
            let mut gradients = GradientsParams::new();
            gradients.register(parameter.id, Tensor::<1>::from_floats([values[micro_batch]], &device).inner());
            let weight = f64::from(1 << micro_batch).into();
            sum.add(
                &parameter,
                micro_batch,
                MicroBatchGradients { gradients, of_layers: GradientsParams::new(), deferred: Vec::new(), weight },
            );
        }
        assert_eq!(sum.ledger(), Ledger { backwards: N, weight: (f64::from(1 << N) - 1.0).into() });
        sum.end(&parameter, Ok::<_, ()>).unwrap();
        sum.take().remove::<1>(parameter.id).unwrap().into_scalar()
    }

    /// Tests that gradients are summed in ascending micro-batch order, whatever the order of arrival. In f32, the
    /// test's values have different sums in different orders.
    #[test]
    fn the_sum_does_not_depend_on_the_order_of_arrival() {
        let values = [1.0e8_f32, 1.0, -1.0e8];
        let ascending = (values[0] + values[1]) + values[2];
        assert_ne!(ascending, (values[2] + values[0]) + values[1]);
        for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
            assert_eq!(total(values, order, 3).to_bits(), ascending.to_bits(), "{order:?}");
        }
    }

    #[test]
    fn each_group_is_summed_before_it_is_added_to_the_total() {
        let values = [1.0_f32, 1.0e8, -1.0e8, 1.0];
        let in_pairs = (values[0] + values[1]) + (values[2] + values[3]);
        assert_ne!(in_pairs, ((values[0] + values[1]) + values[2]) + values[3]);
        for order in [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]] {
            assert_eq!(total(values, order, 2).to_bits(), in_pairs.to_bits(), "{order:?}");
        }
        assert_eq!(total(values, [0, 1, 2, 3], 1), total(values, [0, 1, 2, 3], 4), "groups of one, or one group");
    }

    /// Sums the gradients of a linear layer over micro-batches, in unsplit backward passes. `uses` says for each
    /// micro-batch whether the loss also uses the layer's weight directly. Returns for each micro-batch the number of
    /// parameters of which a layer added a gradient too early.
    fn too_early(uses: &[bool]) -> Vec<usize> {
        let device = Device::flex().autodiff();
        let layer = Linear::from(LinearConfig::new(4, 3).init(&device));
        let input = Tensor::<2>::ones([5, 4], &device);
        let mut sum = GradientSum::new(None, uses.len());
        let added = uses.iter().enumerate().map(|(micro_batch, uses)| {
            let (loss, used_once) = finding_single_uses(|| {
                let loss = layer.forward(input.clone()).tanh().sum();
                if *uses { loss + layer.weight.val().sum() } else { loss }
            });
            let (gradients, of_layers) = sum.adding_at_once(micro_batch, used_once, || loss.backward());
            let gradients = GradientsParams::from_grads(gradients, &layer);
            let gradients = MicroBatchGradients { gradients, of_layers, deferred: Vec::new(), weight: 1.0.into() };
            sum.add(&layer, micro_batch, gradients).len()
        });
        added.collect()
    }

    #[test]
    fn only_a_direct_use_that_begins_late_is_reported() {
        assert_eq!(too_early(&[false, false, false]), [0, 0, 0]);
        assert_eq!(too_early(&[true, true, true]), [0, 0, 0]);
        assert_eq!(too_early(&[true, false, true]), [0, 0, 0]);
        assert_eq!(too_early(&[false, true, true, false, true]), [0, 1, 0, 0, 0]);
    }
}
