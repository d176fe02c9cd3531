//! Finds each parameter's owner ([`Owners`]), the stage whose optimizer steps it, and the parameters that cannot be
//! trained with the stages' configuration.

use std::collections::{BTreeMap, HashMap};

use burn::module::{Module, ParamId};
use burn::optim::ModuleOptimizer;
use burn::tensor::{DType, FloatDType};

use stageline_nn::batch_norms;
use stageline_nn::params::{Description, FloatParameter, describe, visit_floats};

/// The owners of a model's parameters. The owner of a parameter is the first stage that trains it. The owner's
/// optimizer steps the parameter, and other stages hold copies. The table also records what a pipeline may be unable to
/// train: tied parameters, batch norms, and optimizers with a gradient clipping of their own.
#[derive(Default)]
pub(crate) struct Owners {
    /// The owner of each trained parameter and the parameter's shape there, by the parameter's id. The owner is the
    /// first stage that trains the parameter.
    trained: HashMap<ParamId, (usize, Vec<usize>)>,
    /// The first stage in which each frozen parameter occurs, by the parameter's id.
    frozen: HashMap<ParamId, usize>,
    /// Two stages in which a tied parameter has different shapes: its owner (the first stage that trains it) and
    /// another stage. `None` if there is no such parameter.
    pub(crate) misshapen: Option<(usize, usize)>,
    /// The ids of all trained tied parameters, keyed by `(owner stage, copying stage)`, both zero-based. The owner's
    /// optimizer updates the parameters; the copying stage is a later one that holds copies of them.
    pub(crate) shared: BTreeMap<(usize, usize), Vec<ParamId>>,
    /// The descriptions (id, path, shape, dtype) of all tensors in each stage's module.
    pub(crate) tensors: Vec<Vec<Description>>,
    /// Zero-based index of the first stage whose optimizer clips gradients itself, which `build` rejects; `None` if
    /// there is none.
    pub(crate) clipping: Option<usize>,
    /// Every batch norm of the model, as the index of its stage and its path in the stage's module.
    pub(crate) batch_norms: Vec<(usize, String)>,
    /// Zero-based index of the first stage with one of burn's own batch norms, which update their running statistics at
    /// every micro-batch; `None` if no stage has one. `build` rejects them in bf16 or f16, which they do not support.
    pub(crate) plain_batch_norm: Option<usize>,
}

impl Owners {
    /// Adds the parameters of the next stage to the table of owners (the stages whose optimizers step the parameters).
    /// Warns if the stage has one of burn's own batch norms.
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

    /// Records a float parameter of a stage. If the stage trains the parameter and no earlier stage does, the stage
    /// becomes the parameter's owner, and its optimizer steps the parameter.
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

    /// Changes the recorded dtype of frozen `narrow` tensors to f32, because the stages convert these tensors.
    pub(crate) fn widen_frozen(&mut self, narrow: FloatDType) {
        let tensors = self.tensors.iter_mut().flatten();
        for tensor in tensors.filter(|tensor| !tensor.trained && tensor.dtype == DType::from(narrow)) {
            tensor.dtype = DType::F32;
        }
    }

    pub(crate) fn of_stage(&self, stage: usize) -> Vec<ParamId> {
        self.trained.iter().filter(|(_, (owner, _))| *owner == stage).map(|(id, _)| *id).collect()
    }

    /// Finds a tied parameter that is trained in one stage and frozen in another. Returns the parameter's owner (the
    /// first stage that trains it) and the other stage. Returns `None` if there is no such parameter.
    pub(crate) fn half_frozen(&self) -> Option<(usize, usize)> {
        let both = |(id, (trained, _)): (&ParamId, &(usize, Vec<usize>))| Some((*trained, *self.frozen.get(id)?));
        self.trained.iter().filter_map(both).min()
    }
}
