//! The layout of a checkpoint ([`Layout`]): the names of all stages' tensors, and the stage that owns each (the first
//! stage that has it). Also the conversion of stage states to a checkpoint and back.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use burn::module::ParamId;
use burn::tensor::{DType, Shape, TensorData};
use burn_pack::Scalar;
use stageline_checkpoint::{Checkpoint, FrozenTensor, Progress, Tensor};

use crate::state::convert::{data_of_parameter, kind_of, tensor_of};
use crate::state::frozen::{FrozenFrom, dtype_in_checkpoint};
use crate::state::mismatch::{Difference, Kind, Mismatch};
use crate::state::names::{NameError, Names};
use crate::state::optimizer_check::{Reason, Unfit};
use crate::state::optimizer_state::{Field, STATELESS, Value};
use crate::state::parameter_count::ParameterCount;
use stageline_nn::params::Description;

/// The separator between parameter name and field name in a checkpoint's optimizer-state entries, as in
/// `head.weight/momentum.moment_1`.
const SEPARATOR: char = '/';

/// One stage's state, as copied for a checkpoint: its module's tensors and its optimizer's state.
pub(crate) struct StageState {
    pub(crate) stage: usize,
    pub(crate) tensors: Vec<(ParamId, TensorData)>,
    /// The hashes of frozen tensors whose values the checkpoint leaves out, and which are therefore not in `tensors`.
    pub(crate) frozen: Vec<(ParamId, FrozenTensor)>,
    pub(crate) optimizer: Vec<Field>,
}

/// One stage's part of a checkpoint, from which the stage resumes: its tensors and its optimizer state.
pub(crate) struct Restored {
    pub(crate) tensors: HashMap<ParamId, TensorData>,
    /// The hashes of frozen tensors that the checkpoint stores instead of their values. The stage's own values must
    /// match.
    pub(crate) frozen: HashMap<ParamId, FrozenTensor>,
    pub(crate) optimizer: Vec<Field>,
    /// The parameters that have no optimizer state according to the checkpoint, because they have had no gradient yet.
    pub(crate) stateless: HashSet<ParamId>,
    /// The tensors that this stage owns, by id, each with its path in the stage's module. A tied parameter belongs to
    /// the first stage that has it.
    pub(crate) own: Vec<(ParamId, String)>,
    /// The number of optimizer steps that the training run had made when the checkpoint was taken.
    pub(crate) optimizer_steps: u64,
}

/// The description (path, dtype, shape) of a tensor in checkpoints, with the stage that owns it: the first stage that
/// has it.
struct Entry {
    stage: usize,
    description: Description,
}

/// A tensor of the model in host memory, with its name in checkpoints. `stage` is the first stage that has the tensor,
/// and `path` its path in that stage's module.
pub(crate) struct NamedTensor {
    pub(crate) stage: usize,
    pub(crate) name: Arc<str>,
    pub(crate) path: String,
    pub(crate) data: TensorData,
}

/// The layout of a checkpoint: the tensors of all stages by name. Each tensor belongs to the first stage that has it.
pub(crate) struct Layout {
    entries: BTreeMap<String, Entry>,
    names: HashMap<ParamId, Arc<str>>,
    /// The tensors of each stage, as parameter ids with the paths in the stage's module. A tied parameter is listed for
    /// every stage that has it.
    paths: Vec<Vec<(ParamId, String)>>,
    frozen_from: FrozenFrom,
}

impl Layout {
    /// Creates the layout of a model's checkpoints from the tensors of each stage, in the order of the stages.
    ///
    /// Without `given` names, a tensor is named by its stage and its path in the stage's module, as in
    /// `stage0.linear.weight`.
    ///
    /// # Errors
    /// Returns [`NameError`] if a tensor is missing from `given`, or if two tensors have the same name.
    pub(crate) fn new(
        stages: Vec<Vec<Description>>,
        given: Option<&Names>,
        frozen_from: FrozenFrom,
    ) -> Result<Self, NameError> {
        let mut layout = Self { entries: BTreeMap::new(), names: HashMap::new(), paths: Vec::new(), frozen_from };
        for (stage, descriptions) in stages.into_iter().enumerate() {
            let path = |description: &Description| (description.id, description.path.clone());
            layout.paths.push(descriptions.iter().map(path).collect());
            for description in descriptions {
                if layout.names.contains_key(&description.id) {
                    continue;
                }
                let name = match given.map(|names| names.of(description.id)) {
                    None => format!("stage{stage}.{}", description.path),
                    Some(Some(name)) => name.to_owned(),
                    Some(None) => return Err(NameError::Unnamed { stage, path: description.path }),
                };
                layout.names.insert(description.id, name.as_str().into());
                if let Some(other) = layout.entries.insert(name.clone(), Entry { stage, description }) {
                    return Err(NameError::Repeated { name, stages: (other.stage, stage) });
                }
            }
        }
        Ok(layout)
    }

    /// Returns the source of frozen parameters (checkpoint or model) when a training run resumes from these
    /// checkpoints.
    pub(crate) fn frozen_from(&self) -> FrozenFrom {
        self.frozen_from
    }

    pub(crate) fn name(&self, id: ParamId) -> Arc<str> {
        Arc::clone(&self.names[&id])
    }

    /// Returns the number of elements in each stage's float tensors, trained and frozen ones separately, in stage
    /// order. A tied parameter counts for the first stage that has it.
    pub(crate) fn elements(&self) -> Vec<ParameterCount> {
        let mut counts = vec![ParameterCount::default(); self.paths.len()];
        for Entry { stage, description } in self.entries.values() {
            let Description { trained, dtype, shape, .. } = description;
            if dtype.is_float() || matches!(dtype, DType::QFloat(_)) {
                counts[*stage].add(*trained, *dtype, &Shape::from(shape.clone()));
            }
        }
        counts
    }

    /// Whether at least one tensor of the model is a trainable (not frozen) parameter.
    pub(crate) fn trains(&self) -> bool {
        self.entries.values().any(|entry| entry.description.trained)
    }

    /// Returns the tensors of the model with their names, in the order of the stages and of the fields of their
    /// modules. A tied parameter is taken from the first stage that has it.
    pub(crate) fn named(&self, mut states: Vec<StageState>) -> Vec<NamedTensor> {
        states.sort_by_key(|state| state.stage);
        let mut named = Vec::new();
        for StageState { stage, tensors, .. } in states {
            for (id, data) in tensors {
                let Some(name) = self.names.get(&id) else { continue };
                let Entry { stage: owner, description } = &self.entries[&**name];
                if *owner == stage {
                    let (name, path) = (Arc::clone(name), description.path.clone());
                    named.push(NamedTensor { stage, name, path, data });
                }
            }
        }
        named
    }

    /// Builds a checkpoint from the progress of the training run (step counts, loss scale) and the states of all
    /// stages. A tied parameter is taken from the first stage that has it.
    pub(crate) fn checkpoint(&self, progress: Progress, states: Vec<StageState>) -> Checkpoint {
        let (mut parameters, mut optimizer, mut frozen) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        for StageState { stage, tensors, frozen: hashes, optimizer: optimizer_fields } in states {
            let own = |id: &ParamId| self.names.get(id).filter(|name| self.entries[&***name].stage == stage);
            let with_state: HashSet<_> = optimizer_fields.iter().map(|field| field.id).collect();
            for (id, data) in tensors {
                let is_stateless = |name: &&Arc<str>| {
                    let Description { trained, .. } = self.entries[&***name].description;
                    trained && progress.optimizer_steps > 0 && !with_state.contains(&id)
                };
                if let Some(name) = own(&id).filter(is_stateless) {
                    optimizer.insert(format!("{name}{SEPARATOR}{STATELESS}"), Value::Scalar(Scalar::Bool(true)).into());
                }
                own(&id).map(|name| parameters.insert(name.to_string(), tensor_of(data)));
            }
            for (id, hash) in hashes {
                own(&id).map(|name| frozen.insert(name.to_string(), hash));
            }
            for Field { id, name: field, value } in optimizer_fields {
                own(&id).map(|name| optimizer.insert(format!("{name}{SEPARATOR}{field}"), value.into()));
            }
        }
        Checkpoint { progress, run: BTreeMap::new(), parameters, optimizer, frozen }
    }

    /// Splits a checkpoint by stage. Returns the tensors and the optimizer state that each stage resumes from.
    ///
    /// # Errors
    /// Returns [`Mismatch`], with all differences, if the checkpoint's names, shapes, dtypes or numbers of bytes differ
    /// from the model's.
    pub(crate) fn restore(&self, checkpoint: &Checkpoint) -> Result<Vec<Restored>, Mismatch> {
        let mut differences = self.differences(checkpoint);
        let restored = |(stage, paths): (usize, &Vec<(ParamId, String)>)| Restored {
            tensors: HashMap::new(),
            frozen: HashMap::new(),
            optimizer: Vec::new(),
            stateless: HashSet::new(),
            own: paths.iter().filter(|(id, _)| self.entries[&*self.names[id]].stage == stage).cloned().collect(),
            optimizer_steps: checkpoint.progress.optimizer_steps,
        };
        let mut stages: Vec<_> = self.paths.iter().enumerate().map(restored).collect();
        for (name, tensor) in &checkpoint.optimizer {
            let entry =
                name.rsplit_once(SEPARATOR).and_then(|(parameter, field)| Some((self.entries.get(parameter)?, field)));
            if entry.is_some_and(|(entry, _)| !entry.description.trained) {
                continue; // A parameter that was trained before it was frozen: its optimizer state is not used again.
            }
            let kind = Kind { dtype: tensor.dtype, shape: tensor.shape.clone() };
            if let Some(difference) = kind.wrong_bytes(name, tensor.bytes.len()).filter(|_| entry.is_some()) {
                differences.push(difference);
                continue;
            }
            match entry.zip(Value::of(tensor)) {
                Some(((Entry { stage, description }, STATELESS), Value::Scalar(Scalar::Bool(true)))) => {
                    stages[*stage].stateless.insert(description.id);
                }
                Some(((&Entry { stage, ref description }, field), value)) => {
                    stages[stage].optimizer.push(Field { id: description.id, name: field.to_owned(), value });
                }
                None => differences.push(Difference::NotInModel { name: name.clone() }),
            }
        }
        Mismatch::unless_empty(differences)?;
        // If no parameter has a state, the checkpoint comes from optimizers that keep none. Its marks (`STATELESS`) are
        // removed, so that an optimizer that does keep a state rejects the checkpoint.
        if stages.iter().all(|stage| stage.optimizer.is_empty()) {
            stages.iter_mut().for_each(|stage| stage.stateless.clear());
        }
        for (stage, paths) in stages.iter_mut().zip(&self.paths) {
            for (id, _) in paths {
                let name = &self.names[id];
                let Description { dtype, shape, .. } = &self.entries[&**name].description;
                if let Some(hash) = checkpoint.frozen.get(&**name) {
                    stage.frozen.insert(*id, hash.clone());
                    continue;
                }
                let data = data_of_parameter(&checkpoint.parameters[&**name], *dtype, shape);
                stage.tensors.insert(*id, data.expect("the tensor has the type, shape and bytes of the model's"));
            }
        }
        Ok(stages)
    }

    /// Returns the differences in names, dtypes and shapes between the model's tensors and the checkpoint's parameters.
    fn differences(&self, checkpoint: &Checkpoint) -> Vec<Difference> {
        let of_own_tensors = self.entries.iter().filter_map(|(name, entry)| {
            let model = kind_of(dtype_in_checkpoint(&entry.description, self.frozen_from), &entry.description.shape);
            let name = name.clone();
            let (dtype, shape, bytes) = match (checkpoint.parameters.get(&name), checkpoint.frozen.get(&name)) {
                (Some(Tensor { dtype, shape, bytes }), _) => (dtype, shape, Some(bytes.len())),
                (None, Some(FrozenTensor { dtype, shape, .. })) => (dtype, shape, None),
                (None, None) => return Some(Difference::NotInCheckpoint { name }),
            };
            let checkpoint = Kind { dtype: *dtype, shape: shape.clone() };
            match checkpoint == model {
                true => bytes.and_then(|bytes| model.wrong_bytes(&name, bytes)),
                false => Some(Difference::Kind { name, model, checkpoint }),
            }
        });
        let all = checkpoint.parameters.keys().chain(checkpoint.frozen.keys());
        let others = all.filter(|name| !self.entries.contains_key(*name));
        of_own_tensors.chain(others.map(|name| Difference::NotInModel { name: name.clone() })).collect()
    }

    /// Converts the checkpoint entries that stages rejected (`parts`) to differences for the error message. Frozen
    /// tensors shared by several stages are listed once, and fields of optimizer state by their checkpoint name,
    /// `parameter/field`.
    pub(crate) fn unfit(&self, parts: impl IntoIterator<Item = Unfit>) -> Vec<Difference> {
        // Each stage that has a shared frozen tensor reports it, in no particular order.
        let (mut frozen, mut fields) = (BTreeSet::new(), Vec::new());
        for part in parts {
            match part {
                Unfit::Frozen { id } => {
                    frozen.insert(self.names[&id].to_string());
                }
                Unfit::Field { id, field, reason } => {
                    let name = format!("{}{SEPARATOR}{field}", self.names[&id]);
                    fields.push(match reason {
                        Reason::OtherOptimizer => Difference::OtherOptimizer { name },
                        Reason::Value { found, expected } => Difference::Value { name, found, expected },
                    });
                }
            }
        }
        frozen.into_iter().map(|name| Difference::Frozen { name }).chain(fields).collect()
    }
}
