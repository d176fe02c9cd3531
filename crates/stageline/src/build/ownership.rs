//! Which stage trains which parameter.

use std::collections::{BTreeMap, HashMap};

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::ModuleOptimizer;
use burn::tensor::Tensor;

use stageline_nn::layers::batch_norm::batch_norms;
use stageline_nn::params::visit::{Description, describe};

/// Which stage trains which parameter, and what about that cannot be.
#[derive(Default)]
pub(crate) struct Owners {
    /// The first stage that trains it, and its shape.
    trained: HashMap<ParamId, (usize, Vec<usize>)>,
    /// A stage in which it is frozen.
    frozen: HashMap<ParamId, usize>,
    /// Stages whose parameter has one id and two shapes.
    pub(crate) misshapen: Option<(usize, usize)>,
    /// Parameters that later stages have too, by owner and holder.
    pub(crate) shared: BTreeMap<(usize, usize), Vec<ParamId>>,
    /// What each stage has, in order.
    pub(crate) tensors: Vec<Vec<Description>>,
    /// A stage whose optimizer clips.
    pub(crate) clipping: Option<usize>,
    /// Batch norms, by stage and path.
    pub(crate) batch_norms: Vec<(usize, String)>,
    /// A stage that has one of burn's.
    pub(crate) plain_batch_norm: Option<usize>,
}

impl Owners {
    pub(crate) fn add<M: Module>(&mut self, stage: usize, module: &M, optimizer: &ModuleOptimizer) {
        module.visit(&mut Claim { owners: self, stage });
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

    /// The parameters that a stage trains itself, as the first one that has them.
    pub(crate) fn of_stage(&self, stage: usize) -> Vec<ParamId> {
        self.trained.iter().filter(|(_, (owner, _))| *owner == stage).map(|(id, _)| *id).collect()
    }

    /// The stages of a parameter that is trained in one place and frozen in another.
    pub(crate) fn half_frozen(&self) -> Option<(usize, usize)> {
        let both = |(id, (trained, _)): (&ParamId, &(usize, Vec<usize>))| Some((*trained, *self.frozen.get(id)?));
        self.trained.iter().filter_map(both).min()
    }
}

struct Claim<'a> {
    owners: &'a mut Owners,
    stage: usize,
}

impl ModuleVisitor for Claim<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = param.val();
        if value.is_require_grad() {
            let first = || (self.stage, value.dims().to_vec());
            let (owner, shape) = self.owners.trained.entry(param.id).or_insert_with(first);
            let owner = *owner;
            if shape != value.dims().as_slice() {
                self.owners.misshapen.get_or_insert((owner, self.stage));
            }
            let shared = (owner != self.stage).then(|| self.owners.shared.entry((owner, self.stage)).or_default());
            if let Some(ids) = shared.filter(|ids| !ids.contains(&param.id)) {
                ids.push(param.id);
            }
        } else {
            self.owners.frozen.entry(param.id).or_insert(self.stage);
        }
    }
}
