//! Finds the owner of each parameter, which is the stage whose optimizer steps it ([`Owners`]), and the parameters that
//! cannot be trained as the stages are configured.

use std::collections::{BTreeMap, HashMap};

use burn::module::{Module, ParamId};
use burn::optim::ModuleOptimizer;

use stageline_nn::batch_norms;
use stageline_nn::params::{Description, FloatParameter, describe, visit_floats};

/// The table of the stages that own the model's parameters. The owner of a parameter is the first stage that trains it;
/// its optimizer steps the parameter, and other stages hold copies. The table also records tied parameters, batch norms
/// and optimizers that clip gradients by themselves, because a pipeline cannot train with some of them.
#[derive(Default)]
pub(crate) struct Owners {
    /// Maps the id of each trained parameter to the index of its owner (the first stage that trains the parameter,
    /// whose optimizer steps it), and to the parameter's shape in that stage.
    trained: HashMap<ParamId, (usize, Vec<usize>)>,
    /// Maps the id of each frozen parameter to the index of the first stage that computes with the parameter without
    /// training it.
    frozen: HashMap<ParamId, usize>,
    /// The two stages of the first tied parameter whose shape differs between them: its owner (the first stage that
    /// trains it), and the other stage. `None` if there is no such parameter.
    pub(crate) misshapen: Option<(usize, usize)>,
    /// The ids of the tied parameters that two stages share, for each pair of such stages. A pair has the index of the
    /// owner, whose optimizer steps the parameters, and the index of a later stage that has copies of them.
    pub(crate) shared: BTreeMap<(usize, usize), Vec<ParamId>>,
    /// The descriptions (id, path, shape, type) of the tensors of each stage's module, in the module's order.
    pub(crate) tensors: Vec<Vec<Description>>,
    /// The index of the first stage whose optimizer is configured to clip gradients by itself; `None` if no optimizer
    /// is.
    pub(crate) clipping: Option<usize>,
    /// The position of every batch norm layer of the model (burn's own, or an `AccumulatedBatchNorm`, whose statistics
    /// are updated once a step): the index of its stage, and its path in the stage's module.
    pub(crate) batch_norms: Vec<(usize, String)>,
    /// The index of the first stage with one of burn's own batch norms, which update their statistics at every
    /// micro-batch; `None` if no stage has one.
    pub(crate) plain_batch_norm: Option<usize>,
}

impl Owners {
    /// Adds the parameters of the model's next stage to the table of parameter owners (the stages whose optimizers step
    /// the parameters), and warns if the stage has one of burn's own batch norms.
    pub(crate) fn add<M: Module>(&mut self, stage: usize, module: &M, optimizer: &ModuleOptimizer) {
        visit_floats(module, |param| self.claim(stage, param));
        self.tensors.push(describe(module));
        if optimizer.has_gradient_clipping() {
            self.clipping.get_or_insert(stage);
        }
        let found = batch_norms(module);
        let plain = found.iter().any(|batch_norm| batch_norm.plain);
        self.batch_norms.extend(found.into_iter().map(|batch_norm| (stage, batch_norm.path)));
        if plain {
            self.plain_batch_norm.get_or_insert(stage);
            tracing::warn!(
                stage,
                "a plain batch norm updates its running statistics at every micro-batch, in skipped steps too; \
                 `AccumulatedBatchNorm` updates them once a step"
            );
        }
    }

    /// Enters a float parameter of a stage into the table of parameter owners. The stage becomes the owner of a
    /// parameter that it trains, unless an earlier stage already owns it.
    fn claim(&mut self, stage: usize, param: &dyn FloatParameter) {
        if !param.is_trained() {
            self.frozen.entry(param.id()).or_insert(stage);
            return;
        }
        let (owner, shape) = self.trained.entry(param.id()).or_insert_with(|| (stage, param.shape()));
        let owner = *owner;
        if *shape != param.shape() {
            self.misshapen.get_or_insert((owner, stage));
        }
        if owner != stage {
            let ids = self.shared.entry((owner, stage)).or_default();
            if !ids.contains(&param.id()) {
                ids.push(param.id());
            }
        }
    }

    /// Returns the ids of the parameters that a stage owns, which that stage's optimizer steps.
    pub(crate) fn of_stage(&self, stage: usize) -> Vec<ParamId> {
        self.trained.iter().filter(|(_, (owner, _))| *owner == stage).map(|(id, _)| *id).collect()
    }

    /// Returns the two stages of a tied parameter that one stage trains and another has frozen: the first stage that
    /// trains the parameter (its owner), and the first stage in which the parameter is frozen. Returns `None` if there
    /// is no such parameter.
    pub(crate) fn half_frozen(&self) -> Option<(usize, usize)> {
        let both = |(id, (trained, _)): (&ParamId, &(usize, Vec<usize>))| Some((*trained, *self.frozen.get(id)?));
        self.trained.iter().filter_map(both).min()
    }
}
