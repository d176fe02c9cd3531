//! What computes and transfers take.

use crate::action::{Action, Compute};
use crate::lower::{Carried, Transfer};

/// What one stage takes for one micro-batch, in any one unit of time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StageCost {
    /// F: the forward.
    pub forward: f64,
    /// I: the input-gradient half of the backward.
    pub input_gradient: f64,
    /// W: the weight-gradient half of the backward.
    pub weight_gradient: f64,
    /// B: the whole backward. The gradient leaves at its end.
    pub backward: f64,
    /// From the send of the stage's output to the moment the next stage can take it. It occupies neither worker.
    pub send_activation: f64,
    /// From the send of the gradient of the stage's input to the moment the stage before can take it.
    pub send_gradient: f64,
}

impl StageCost {
    /// A whole backward is the sum of its halves, and transfers are free.
    pub const fn new(forward: f64, input_gradient: f64, weight_gradient: f64) -> Self {
        let backward = input_gradient + weight_gradient;
        Self { forward, input_gradient, weight_gradient, backward, send_activation: 0.0, send_gradient: 0.0 }
    }

    /// With transfers that take `latency`, in both directions.
    pub const fn with_latency(self, latency: f64) -> Self {
        Self { send_activation: latency, send_gradient: latency, ..self }
    }

    /// The latency of transfers, where it is the same in both directions.
    pub(crate) fn latency(&self) -> Option<f64> {
        (self.send_activation == self.send_gradient).then_some(self.send_activation)
    }

    fn amounts(self) -> [f64; 6] {
        let Self { forward, input_gradient, weight_gradient, backward, send_activation, send_gradient } = self;
        [forward, input_gradient, weight_gradient, backward, send_activation, send_gradient]
    }

    /// One of `parts` equal parts of the stage, which sends as much as the whole.
    fn part(self, parts: f64) -> Self {
        Self {
            forward: self.forward / parts,
            input_gradient: self.input_gradient / parts,
            weight_gradient: self.weight_gradient / parts,
            backward: self.backward / parts,
            ..self
        }
    }
}

/// How transfers share the devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transfers {
    /// Any number at once: only their latency counts.
    #[default]
    Asynchronous,
    /// One communication stream a worker: a transfer occupies its sender's and its receiver's for as long as it takes, and
    /// those that want the same stream take turns, first come, first served.
    Serialised,
}

/// What everything in a plan takes, in any one unit of time. Transfers between stages of one worker are free.
#[derive(Clone, Debug, PartialEq)]
pub struct Costs {
    /// Each stage's micro-batches; the last entry holds for all further ones.
    stages: Vec<Vec<StageCost>>,
    /// Each stage's optimizer step.
    optimizer: Vec<f64>,
    /// How long a transfer occupies the link between each stage and the next.
    links: Vec<f64>,
    transfers: Transfers,
}

impl Costs {
    /// Each stage's own costs, the same for all its micro-batches.
    pub fn by_stage(stages: Vec<StageCost>) -> Self {
        Self::by_micro_batch(stages.into_iter().map(|cost| vec![cost]).collect())
    }

    /// Each stage's own costs for each micro-batch. The last entry of a stage holds for all its further micro-batches.
    ///
    /// # Panics
    /// If a stage has no entry, or one that is negative or not finite.
    pub fn by_micro_batch(stages: Vec<Vec<StageCost>>) -> Self {
        if let Some(stage) = stages.iter().position(Vec::is_empty) {
            panic!("stage {stage} has no costs; give at least those of one micro-batch");
        }
        let amount = |amount: f64| amount.is_finite() && amount >= 0.0;
        if let Some(cost) = stages.iter().flatten().find(|cost| !cost.amounts().into_iter().all(amount)) {
            panic!("{cost:?} has a cost that is negative or not finite");
        }
        let (optimizer, links) = (vec![0.0; stages.len()], vec![0.0; stages.len()]);
        Self { optimizer, links, stages, transfers: Transfers::default() }
    }

    /// The same for all stages.
    pub fn equal(stages: usize, cost: StageCost) -> Self {
        Self::by_stage(vec![cost; stages])
    }

    /// The same for all stages, a backward made of two equal halves, transfers free.
    pub fn uniform(stages: usize, forward: f64, backward: f64) -> Self {
        Self::equal(stages, StageCost::new(forward, backward / 2.0, backward / 2.0))
    }

    /// With each stage's optimizer step, which begins when every worker has finished its computes.
    ///
    /// # Panics
    /// If there is not one for every stage, or one is negative or not finite.
    pub fn with_optimizer(self, optimizer: Vec<f64>) -> Self {
        assert_eq!(optimizer.len(), self.stages(), "give every stage's optimizer step");
        let amounts = optimizer.iter().all(|amount| amount.is_finite() && *amount >= 0.0);
        assert!(amounts, "an optimizer step of {optimizer:?} is negative or not finite");
        Self { optimizer, ..self }
    }

    /// With links of some bandwidth: a transfer between each stage and the next occupies their link for so long, each direction by
    /// itself, and follows the one before; it can be taken when that and its latency are over. The last entry is no link's.
    ///
    /// # Panics
    /// If there is not one for every stage, or one is negative or not finite.
    pub fn with_links(self, links: Vec<f64>) -> Self {
        assert_eq!(links.len(), self.stages(), "give every stage's link to the next");
        let amounts = links.iter().all(|amount| amount.is_finite() && *amount >= 0.0);
        assert!(amounts, "a link occupied for {links:?} is negative or not finite");
        Self { links, ..self }
    }

    /// With transfers that share the devices in this way.
    pub fn with_transfers(self, transfers: Transfers) -> Self {
        Self { transfers, ..self }
    }

    /// How many stages these are the costs of.
    pub fn stages(&self) -> usize {
        self.stages.len()
    }

    /// What a stage takes for a micro-batch.
    ///
    /// # Panics
    /// If there is no such stage.
    pub fn stage(&self, stage: usize, micro_batch: usize) -> StageCost {
        let costs = &self.stages[stage];
        costs[micro_batch.min(costs.len() - 1)]
    }

    /// What a stage's optimizer step takes.
    ///
    /// # Panics
    /// If there is no such stage.
    pub fn optimizer(&self, stage: usize) -> f64 {
        self.optimizer[stage]
    }

    /// The same computes, with transfers that take no time.
    pub fn without_latency(&self) -> Self {
        let free = |costs: &Vec<StageCost>| costs.iter().map(|cost| cost.with_latency(0.0)).collect();
        let (stages, links) = (self.stages.iter().map(free).collect(), vec![0.0; self.stages()]);
        Self { stages, links, transfers: Transfers::Asynchronous, ..self.clone() }
    }

    /// The costs of a model cut finer: every stage in `parts` equal parts, each of which sends as much as the whole did.
    pub fn cut(&self, parts: usize) -> Self {
        let share = parts as f64;
        let stages = self.stages.iter().map(|costs| costs.iter().map(|cost| cost.part(share)).collect::<Vec<_>>());
        let optimizer = self.optimizer.iter().map(|cost| cost / share);
        Self {
            stages: stages.flat_map(|stage| vec![stage; parts]).collect(),
            optimizer: optimizer.flat_map(|cost| vec![cost; parts]).collect(),
            links: self.links.iter().flat_map(|link| vec![*link; parts]).collect(),
            transfers: self.transfers,
        }
    }

    pub(crate) fn transfers(&self) -> Transfers {
        self.transfers
    }

    /// How long a transfer occupies its link.
    pub(crate) fn occupies(&self, transfer: Transfer) -> f64 {
        self.links[transfer.from.min(transfer.to())]
    }

    pub(crate) fn of(&self, action: Action) -> f64 {
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
