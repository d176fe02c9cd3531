//! What optimizers remember of each parameter.
//!
//! burn shows a state in the form in which it saves it, and in no other: tensors called `{parameter id}.{field}`, numbers of the
//! same names, and under the id alone the path by which parameter groups know a parameter.

use std::collections::{BTreeMap, BTreeSet};

use burn::module::ParamId;
use burn::optim::ModuleOptimizer;
use burn::tensor::{DType, TensorData};
use burn_pack::{Error, Reader, Scalar, Tensor, Writer};

/// One thing that an optimizer remembers of a parameter.
#[derive(Clone, Debug)]
pub(crate) struct Field {
    pub(crate) id: ParamId,
    /// Such as `momentum.moment_1`.
    pub(crate) name: String,
    pub(crate) value: Value,
}

#[derive(Clone, Debug)]
pub(crate) enum Value {
    Tensor(TensorData),
    Scalar(Scalar),
}

/// All that an optimizer remembers.
pub(crate) fn read(optimizer: &ModuleOptimizer) -> Vec<Field> {
    let bytes = optimizer.into_bytes().expect("a state can be written to memory");
    let reader = Reader::from_bytes(bytes).expect("what was just written can be read");
    let scalar = |(name, value): (&String, &Scalar)| {
        let (id, name) = name.split_once('.')?;
        Some(Field { id: ParamId::from(id.parse::<u64>().ok()?), name: name.to_owned(), value: Value::Scalar(*value) })
    };
    let mut fields: Vec<_> = reader.scalars().iter().filter_map(scalar).collect();
    let tensors = reader.into_tensors().expect("what was just written can be read");
    fields.extend(tensors.into_iter().filter_map(|tensor| field(tensor).expect("what was just written can be read")));
    fields
}

fn field(tensor: Tensor) -> Result<Option<Field>, Error> {
    let (name, dtype, shape, id, bytes) = tensor.into_parts()?;
    let Some((id, name)) = id.zip(name.split_once('.').map(|(_, name)| name.to_owned())) else { return Ok(None) };
    Ok(Some(Field { id: ParamId::from(id), name, value: Value::Tensor(TensorData::from_bytes(bytes, shape, dtype)) }))
}

/// What a field is, whatever it has come to.
#[derive(PartialEq)]
enum Kind {
    Tensor(DType, Vec<usize>),
    Number(std::mem::Discriminant<Scalar>),
    /// The rank of the parameter, by which burn finds the type of its state.
    Rank(Scalar),
}

impl Field {
    fn kind(&self) -> Kind {
        match &self.value {
            Value::Tensor(data) => Kind::Tensor(data.dtype(), data.shape().as_slice().to_vec()),
            Value::Scalar(rank) if self.name == "__rank" => Kind::Rank(*rank),
            Value::Scalar(number) => Kind::Number(std::mem::discriminant(number)),
        }
    }
}

/// The fields that are not what an optimizer remembers of its parameters after a step, or that it misses.
///
/// A parameter that has no gradient has no state either; but if there were steps, some have.
pub(crate) fn unfit(after_a_step: &ModuleOptimizer, fields: &[Field], steps: bool) -> Vec<(ParamId, String)> {
    let by_name = |fields: &[Field]| -> BTreeMap<_, _> {
        fields.iter().map(|field| ((field.id.val(), field.name.clone()), field.kind())).collect()
    };
    let (expected, given) = (by_name(&read(after_a_step)), by_name(fields));
    let remembered: BTreeSet<_> = given.keys().map(|(id, _)| *id).collect();
    let none = remembered.is_empty() && steps;
    let missing = expected.keys().filter(|key| (none || remembered.contains(&key.0)) && !given.contains_key(*key));
    let other = given.iter().filter(|(key, kind)| expected.get(*key) != Some(*kind)).map(|(key, _)| key);
    missing.chain(other).map(|(id, name)| ((*id).into(), name.clone())).collect()
}

/// An optimizer that remembers this, of parameters at these paths.
///
/// # Errors
/// The fields that it does not take over.
pub(crate) fn write<'a>(
    optimizer: ModuleOptimizer,
    fields: Vec<Field>,
    paths: impl Iterator<Item = (ParamId, &'a str)>,
) -> Result<ModuleOptimizer, Vec<(ParamId, String)>> {
    let mut missing: BTreeSet<_> = fields.iter().map(|field| (field.id.val(), field.name.clone())).collect();
    let (mut tensors, mut scalars) = (Vec::new(), Vec::new());
    for Field { id, name, value } in fields {
        let name = format!("{}.{name}", id.val());
        match value {
            Value::Tensor(data) => {
                let (bytes, shape, dtype) = data.into_parts();
                tensors.push(Tensor::new(name, dtype, shape, Some(id.val()), bytes));
            }
            Value::Scalar(value) => scalars.push((name, value)),
        }
    }
    let mut writer = Writer::new(tensors);
    for (name, value) in scalars {
        writer = writer.with_scalar(&name, value);
    }
    for (id, path) in paths {
        writer = writer.with_metadata(&id.val().to_string(), path);
    }
    let bytes = writer.into_bytes().expect("a state can be written to memory");
    let optimizer = optimizer.from_bytes(bytes).expect("what was just written can be read");
    // burn passes over what it cannot use.
    for field in read(&optimizer) {
        missing.remove(&(field.id.val(), field.name));
    }
    if missing.is_empty() {
        Ok(optimizer)
    } else {
        Err(missing.into_iter().map(|(id, name)| (id.into(), name)).collect())
    }
}
