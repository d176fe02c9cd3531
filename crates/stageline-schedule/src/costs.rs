//! [`Costs`]: how long a plan's forward passes, backward passes, transfers and optimizer steps take.
//!
//! The input is measured or assumed times, in any one unit. The output is [`Costs`], which `check` replays plans with,
//! and `simulate` and `search` evaluate them with. This module must not depend on a particular plan: costs belong to
//! stages and micro-batches, whatever the plan.

mod cut;

use crate::plan::{Action, Carried, Compute, Transfer};

/// The costs of one stage for one micro-batch: the times of its forward and backward pass, and the latency of its
/// transfers. All times of a plan have the same unit, such as milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StageCost {
    /// The time of the stage's forward pass (F) on one micro-batch, in the costs' time unit (such as ms).
    pub forward: f64,
    /// The time of the stage's input gradient (I) for one micro-batch, in the costs' time unit (such as ms). It is the
    /// part of a split backward pass that computes the gradient of the stage's input.
    pub input_gradient: f64,
    /// The time of the stage's weight gradient (W) for one micro-batch, in the costs' time unit (such as ms). It is the
    /// part of a split backward pass that computes the gradients of the stage's weights.
    pub weight_gradient: f64,
    /// The time of the stage's whole backward pass (B) on one micro-batch, in the costs' time unit (such as ms). At the
    /// end of this pass, the stage sends the gradient of its input.
    pub backward: f64,
    /// Latency of sending the stage's output (activation) for one micro-batch, in the costs' time unit (such as ms):
    /// the time from this stage's send until the next stage can receive the output. Both workers can compute meanwhile.
    pub send_activation: f64,
    /// Latency of sending the gradient of the stage's input for one micro-batch, in the costs' time unit (such as ms):
    /// the time from this stage's send until the previous stage can receive the gradient. Both workers can compute
    /// meanwhile.
    pub send_gradient: f64,
}

impl StageCost {
    /// Makes the costs of a stage from the times of its forward pass, input gradient and weight gradient, all in the
    /// same unit. Transfers take no time. A whole backward pass takes as long as the input and weight gradient
    /// together.
    pub const fn new(forward: f64, input_gradient: f64, weight_gradient: f64) -> Self {
        let backward = input_gradient + weight_gradient;
        Self { forward, input_gradient, weight_gradient, backward, send_activation: 0.0, send_gradient: 0.0 }
    }

    /// Returns a copy of the stage's costs with the latency `latency` for the activations and gradients that the stage
    /// sends, in the costs' time unit (such as ms).
    pub const fn with_latency(self, latency: f64) -> Self {
        Self { send_activation: latency, send_gradient: latency, ..self }
    }

    /// Returns the latency of a stage's sends, in the costs' time unit (such as ms). Returns `None` if activations and
    /// gradients have different latencies.
    pub(crate) fn latency(&self) -> Option<f64> {
        (self.send_activation == self.send_gradient).then_some(self.send_activation)
    }

    fn amounts(self) -> [f64; 6] {
        let Self { forward, input_gradient, weight_gradient, backward, send_activation, send_gradient } = self;
        [forward, input_gradient, weight_gradient, backward, send_activation, send_gradient]
    }
}

/// How simulated transfers run: concurrently, or one at a time on each worker's communication stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transfers {
    /// Run transfers concurrently: a worker may have any number of transfers in flight. Transfers wait for each other
    /// only on the same direction of the same network link ([`Costs::with_links`]).
    #[default]
    Asynchronous,
    /// Run each worker's transfers one after another, first come, first served, as on one communication stream. A
    /// transfer occupies its sender's and its receiver's stream for its time on the network link plus its latency.
    Serialised,
}

/// The costs for simulating a plan: the times of all forward passes, backward passes, transfers and optimizer steps.
/// All times have the same unit, such as milliseconds. Transfers between stages of one worker take no time.
#[derive(Clone, Debug, PartialEq)]
pub struct Costs {
    /// Costs (times of forward pass, backward pass and transfers) of each stage for each micro-batch. The last entry of
    /// a stage's list applies to all further micro-batches.
    stages: Vec<Vec<StageCost>>,
    /// The time of each stage's optimizer step, in the costs' time unit (such as ms).
    optimizer: Vec<f64>,
    /// How long one transfer occupies a network link, in the costs' time unit (such as ms), with one entry per stage.
    /// Entry i applies to both directions of the link between the workers of stages i and i+1. See
    /// [`with_links`](Self::with_links).
    links: Vec<f64>,
    transfers: Transfers,
}

impl Costs {
    /// Makes the costs of a plan whose micro-batches all have the same costs. `stages` has one entry per stage: its
    /// times of forward pass, backward pass and transfers. Optimizer steps take no time.
    ///
    /// # Panics
    /// Panics if a cost is negative or not finite.
    pub fn by_stage(stages: Vec<StageCost>) -> Self {
        Self::by_micro_batch(stages.into_iter().map(|cost| vec![cost]).collect())
    }

    /// Makes the costs of a plan whose micro-batches have different costs. `stages` has one list per stage, with one
    /// entry per micro-batch. The last entry of a list applies to all further micro-batches. Optimizer steps take no
    /// time.
    ///
    /// # Panics
    /// Panics if a stage has no entry in its list, or a cost is negative or not finite.
    pub fn by_micro_batch(stages: Vec<Vec<StageCost>>) -> Self {
        if let Some(stage) = stages.iter().position(Vec::is_empty) {
            panic!("stage {stage} has no costs; give the costs of at least one micro-batch");
        }
        let amount = |amount: f64| amount.is_finite() && amount >= 0.0;
        if let Some(cost) = stages.iter().flatten().find(|cost| !cost.amounts().into_iter().all(amount)) {
            panic!("{cost:?} has a cost that is negative or not finite");
        }
        let (optimizer, links) = (vec![0.0; stages.len()], vec![0.0; stages.len()]);
        Self { optimizer, links, stages, transfers: Transfers::default() }
    }

    /// Makes the costs of a plan with `stages` stages that all have the same costs. `cost` has the times of a stage's
    /// forward pass, backward pass and transfers, in any one unit. Optimizer steps take no time.
    ///
    /// # Panics
    /// Panics if a cost is negative or not finite.
    pub fn equal(stages: usize, cost: StageCost) -> Self {
        Self::by_stage(vec![cost; stages])
    }

    /// Makes the costs of a plan with `stages` equal stages. A stage's forward pass on one micro-batch takes the time
    /// `forward`, and its backward pass the time `backward`, both in any one unit. The input and weight gradients of a
    /// split backward pass take half of `backward` each. Transfers and optimizer steps take no time.
    ///
    /// # Panics
    /// Panics if a time is negative or not finite.
    pub fn uniform(stages: usize, forward: f64, backward: f64) -> Self {
        Self::equal(stages, StageCost::new(forward, backward / 2.0, backward / 2.0))
    }

    /// Sets the time of each stage's optimizer step, which is 0 by default. `optimizer` has one entry per stage, in the
    /// costs' time unit (such as ms). Optimizer steps begin at the flush: when every worker has finished its forward
    /// and backward passes.
    ///
    /// # Panics
    /// Panics unless `optimizer` has one time per stage, each finite and not negative.
    pub fn with_optimizer(self, optimizer: Vec<f64>) -> Self {
        assert_eq!(optimizer.len(), self.stages(), "give one optimizer step per stage");
        let amounts = optimizer.iter().all(|amount| amount.is_finite() && *amount >= 0.0);
        assert!(amounts, "optimizer steps {optimizer:?}: one is negative or not finite");
        Self { optimizer, ..self }
    }

    /// Sets how long one transfer between a stage and the next stage occupies the network link between their workers:
    /// the tensor's size divided by the link's bandwidth. The default is 0.
    ///
    /// `links` has one entry per stage, in the costs' time unit (such as ms). Entry i applies to activations from stage
    /// i to stage i+1, and to the gradients that come back. The last stage has no next stage, so simulations ignore its
    /// entry. Only [`cut`](Self::cut) uses it, as the time on the link from the last worker back to the first.
    ///
    /// Two workers share one link, whose two directions are independent. Transfers in one direction occupy the link one
    /// after another, even if they belong to different stages of these workers. A transfer arrives after its time on
    /// the link plus its latency.
    ///
    /// # Panics
    /// Panics unless `links` has one time per stage, each finite and not negative.
    pub fn with_links(self, links: Vec<f64>) -> Self {
        assert_eq!(links.len(), self.stages(), "give one link per stage");
        let amounts = links.iter().all(|amount| amount.is_finite() && *amount >= 0.0);
        assert!(amounts, "times on links {links:?}: one is negative or not finite");
        Self { links, ..self }
    }

    /// Sets how simulated transfers run: concurrently ([`Transfers::Asynchronous`], the default), or one at a time on
    /// each worker's communication stream ([`Transfers::Serialised`]).
    pub fn with_transfers(self, transfers: Transfers) -> Self {
        Self { transfers, ..self }
    }

    /// Returns the number of stages with costs.
    pub fn stages(&self) -> usize {
        self.stages.len()
    }

    /// Returns the costs (times of forward pass, backward pass and transfers) of one stage for one micro-batch. Both
    /// indices count from 0.
    ///
    /// # Panics
    /// Panics if these costs have no such stage.
    pub fn stage(&self, stage: usize, micro_batch: usize) -> StageCost {
        let costs = &self.stages[stage];
        costs[micro_batch.min(costs.len() - 1)]
    }

    /// Returns how long one stage's optimizer step takes, in the costs' time unit (such as ms). The index `stage`
    /// counts from 0.
    ///
    /// # Panics
    /// Panics if these costs have no such stage.
    pub fn optimizer(&self, stage: usize) -> f64 {
        self.optimizer[stage]
    }

    /// Returns these costs with every time multiplied by `factor`, such as 1000 to turn seconds into milliseconds.
    ///
    /// # Panics
    /// Panics if a product is negative or not finite.
    pub fn times(&self, factor: f64) -> Self {
        let scaled = |cost: &StageCost| StageCost {
            forward: factor * cost.forward,
            input_gradient: factor * cost.input_gradient,
            weight_gradient: factor * cost.weight_gradient,
            backward: factor * cost.backward,
            send_activation: factor * cost.send_activation,
            send_gradient: factor * cost.send_gradient,
        };
        let stages = self.stages.iter().map(|costs| costs.iter().map(scaled).collect()).collect();
        let each = |times: &Vec<f64>| times.iter().map(|time| factor * time).collect();
        Self::by_micro_batch(stages)
            .with_optimizer(each(&self.optimizer))
            .with_links(each(&self.links))
            .with_transfers(self.transfers)
    }

    /// Sets the latency of all transfers. `latencies` has one entry per stage, in the costs' time unit (such as ms):
    /// the latency of the activations and gradients that this stage sends.
    ///
    /// # Panics
    /// Panics unless `latencies` has one time per stage, each finite and not negative.
    pub fn with_latencies(self, latencies: &[f64]) -> Self {
        assert_eq!(latencies.len(), self.stages(), "give one latency per stage");
        let latent =
            |(costs, latency): (&Vec<StageCost>, &f64)| costs.iter().map(|cost| cost.with_latency(*latency)).collect();
        let stages = self.stages.iter().zip(latencies).map(latent).collect();
        let Self { optimizer, links, transfers, .. } = self;
        Self::by_micro_batch(stages).with_optimizer(optimizer).with_links(links).with_transfers(transfers)
    }

    /// Returns a copy of the costs with free transfers: they take no time, and run concurrently.
    pub fn without_latency(&self) -> Self {
        let free = |costs: &Vec<StageCost>| costs.iter().map(|cost| cost.with_latency(0.0)).collect();
        let (stages, links) = (self.stages.iter().map(free).collect(), vec![0.0; self.stages()]);
        Self { stages, links, transfers: Transfers::Asynchronous, ..self.clone() }
    }

    pub(crate) fn transfers(&self) -> Transfers {
        self.transfers
    }

    /// Returns how long a transfer occupies the network link between its two stages, in the costs' time unit (such as
    /// ms).
    pub(crate) fn occupies(&self, transfer: Transfer) -> f64 {
        self.links[transfer.from.min(transfer.to())]
    }

    /// Returns how long an action (such as one stage's forward pass on one micro-batch) takes, in the costs' time unit
    /// (such as ms).
    pub(crate) fn action(&self, action: Action) -> f64 {
        let cost = self.stage(action.stage, action.micro_batch);
        match action.compute {
            Compute::Forward => cost.forward,
            Compute::Backward => cost.backward,
            Compute::InputGradient => cost.input_gradient,
            Compute::WeightGradient => cost.weight_gradient,
        }
    }

    pub(crate) fn latency(&self, transfer: Transfer) -> f64 {
        let cost = self.stage(transfer.from, transfer.micro_batch);
        match transfer.carried {
            Carried::Activation => cost.send_activation,
            Carried::Gradient => cost.send_gradient,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs() -> Costs {
        let cost = StageCost { backward: 4.0, ..StageCost::new(1.0, 2.0, 3.0).with_latency(0.5) };
        Costs::equal(2, cost).with_optimizer(vec![6.0, 7.0]).with_links(vec![8.0, 0.0])
    }

    #[test]
    fn every_time_is_converted_to_another_unit() {
        let cost = StageCost { backward: 4e3, ..StageCost::new(1e3, 2e3, 3e3).with_latency(5e2) };
        let milliseconds = Costs::equal(2, cost).with_optimizer(vec![6e3, 7e3]).with_links(vec![8e3, 0.0]);
        assert_eq!(
            costs().with_transfers(Transfers::Serialised).times(1e3),
            milliseconds.with_transfers(Transfers::Serialised)
        );
    }

    #[test]
    fn latencies_replace_those_of_each_stage_only() {
        let changed = costs().with_latencies(&[0.25, 0.75]);
        assert_eq!([0, 1].map(|stage| changed.stage(stage, 0).send_activation), [0.25, 0.75]);
        assert_eq!(changed.with_latencies(&[0.5, 0.5]), costs());
    }
}
