//! The tensors of all stages under their names: what a checkpoint has, and what a restored pipeline takes from it.

use std::collections::{BTreeMap, HashMap};

use burn::module::ParamId;
use burn::tensor::TensorData;
use stageline_checkpoint::{Checkpoint, Progress, Tensor};

use crate::error::BuildError;
use crate::host::{data_of, dtype_of, tensor_of};
use crate::mismatch::{Difference, Kind, Mismatch};
use crate::names::Names;
use crate::optimizer_state::{Field, Value};
use crate::tensors::Description;

/// Between a parameter's name and a field of its optimizer state.
const OF: char = '/';

/// What one stage keeps from step to step.
pub(crate) struct StageState {
    pub(crate) stage: usize,
    pub(crate) tensors: Vec<(ParamId, TensorData)>,
    pub(crate) optimizer: Vec<Field>,
}

/// What one stage goes on from.
pub(crate) struct Restored {
    pub(crate) tensors: HashMap<ParamId, TensorData>,
    pub(crate) optimizer: Vec<Field>,
    /// Where what it steps itself is in its module: not copies of other stages' parameters.
    pub(crate) own: Vec<(ParamId, String)>,
    /// How often it has stepped.
    pub(crate) optimizer_steps: u64,
}

/// A tensor, at the first stage that has it.
struct Entry {
    stage: usize,
    description: Description,
}

/// The tensors of all stages.
pub(crate) struct Layout {
    entries: BTreeMap<String, Entry>,
    names: HashMap<ParamId, String>,
    /// Of each stage, where it has what.
    paths: Vec<Vec<(ParamId, String)>>,
}

impl Layout {
    /// Of what each stage has, in order. Without names, everything is called by its stage and its path there.
    pub(crate) fn new(stages: Vec<Vec<Description>>, given: Option<&Names>) -> Result<Self, BuildError> {
        let mut layout = Self { entries: BTreeMap::new(), names: HashMap::new(), paths: Vec::new() };
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
                    Some(None) => return Err(BuildError::Unnamed { stage, path: description.path }),
                };
                layout.names.insert(description.id, name.clone());
                if let Some(other) = layout.entries.insert(name.clone(), Entry { stage, description }) {
                    return Err(BuildError::OneNameTwice { name, stages: (other.stage, stage) });
                }
            }
        }
        Ok(layout)
    }

    /// What the stages keep, under names.
    pub(crate) fn checkpoint(&self, progress: Progress, states: Vec<StageState>) -> Checkpoint {
        let (mut parameters, mut optimizer) = (BTreeMap::new(), BTreeMap::new());
        for StageState { stage, tensors, optimizer: fields } in states {
            let own = |id: &ParamId| self.names.get(id).filter(|name| self.entries[*name].stage == stage);
            for (id, data) in tensors {
                own(&id).map(|name| parameters.insert(name.clone(), tensor_of(data)));
            }
            for Field { id, name: field, value } in fields {
                own(&id).map(|name| optimizer.insert(format!("{name}{OF}{field}"), value.into()));
            }
        }
        Checkpoint { progress, run: BTreeMap::new(), parameters, optimizer }
    }

    /// What each stage goes on from.
    ///
    /// # Errors
    /// Where the checkpoint is of another model.
    pub(crate) fn restore(&self, checkpoint: &Checkpoint) -> Result<Vec<Restored>, Mismatch> {
        let mut differences = self.differences(checkpoint);
        let restored = |(stage, paths): (usize, &Vec<(ParamId, String)>)| Restored {
            tensors: HashMap::new(),
            optimizer: Vec::new(),
            own: paths.iter().filter(|(id, _)| self.entries[&self.names[id]].stage == stage).cloned().collect(),
            optimizer_steps: checkpoint.progress.optimizer_steps,
        };
        let mut stages: Vec<_> = self.paths.iter().enumerate().map(restored).collect();
        for (name, tensor) in &checkpoint.optimizer {
            let entry = name.rsplit_once(OF).and_then(|(parameter, field)| Some((self.entries.get(parameter)?, field)));
            match entry.filter(|(entry, _)| entry.description.trained).zip(Value::of(tensor)) {
                Some(((&Entry { stage, ref description }, field), value)) => {
                    stages[stage].optimizer.push(Field { id: description.id, name: field.to_owned(), value });
                }
                None => differences.push(Difference::NotInModel { name: name.clone() }),
            }
        }
        Mismatch::unless_empty(differences)?;
        for (stage, paths) in stages.iter_mut().zip(&self.paths) {
            let tensor =
                |(id, _): &(ParamId, String)| Some((*id, data_of(checkpoint.parameters.get(&self.names[id])?)?));
            stage.tensors = paths.iter().filter_map(tensor).collect();
        }
        Ok(stages)
    }

    /// Between the model's tensors and the checkpoint's.
    fn differences(&self, checkpoint: &Checkpoint) -> Vec<Difference> {
        let of_model = self.entries.iter().filter_map(|(name, entry)| {
            let model = Kind { dtype: dtype_of(entry.description.dtype), shape: entry.description.shape.clone() };
            let name = name.clone();
            match checkpoint.parameters.get(&name) {
                None => Some(Difference::NotInCheckpoint { name }),
                Some(Tensor { dtype, shape, .. }) => {
                    let checkpoint = Kind { dtype: *dtype, shape: shape.clone() };
                    (checkpoint != model).then_some(Difference::Kind { name, model, checkpoint })
                }
            }
        });
        let others = checkpoint.parameters.keys().filter(|name| !self.entries.contains_key(*name));
        of_model.chain(others.map(|name| Difference::NotInModel { name: name.clone() })).collect()
    }

    /// What these fields of optimizers are called, which a stage could not use.
    pub(crate) fn unused(&self, fields: impl IntoIterator<Item = (ParamId, String)>) -> Vec<Difference> {
        let name = |(id, field): (ParamId, String)| format!("{}{OF}{field}", self.names[&id]);
        fields.into_iter().map(|field| Difference::OtherOptimizer { name: name(field) }).collect()
    }
}
