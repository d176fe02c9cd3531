//! Reads and restores the state that an optimizer keeps for each parameter, as a list of named fields.
//!
//! burn gives access to an optimizer's state only in its saved form: tensors and scalars named `{parameter
//! id}.{field}`, and each parameter's path, stored under the parameter's id. Parameter groups find their parameters by
//! path.

use std::collections::BTreeMap;

use burn::module::ParamId;
use burn::optim::ModuleOptimizer;
use burn::tensor::{DType, TensorData};
use burn_pack::{Error, Reader, Scalar, Tensor, Writer};

/// The name of the checkpoint field that marks a trained parameter as having no optimizer state, because it has had no
/// gradient yet. Without this mark, a missing state is an error.
pub(crate) const STATELESS: &str = "stateless";

/// One field of the state that an optimizer keeps for a parameter, such as Adam's first moment.
#[derive(Clone, Debug)]
pub(crate) struct Field {
    pub(crate) id: ParamId,
    /// The optimizer's name for this field, without the parameter's id, such as `momentum.moment_1`.
    pub(crate) name: String,
    pub(crate) value: Value,
}

/// The value of a field of an optimizer's state: a tensor or a scalar.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Tensor(TensorData),
    Scalar(Scalar),
}

impl Value {
    /// Returns the dtype of a tensor; `None` for a scalar.
    fn dtype(&self) -> Option<DType> {
        match self {
            Self::Tensor(data) => Some(data.dtype()),
            Self::Scalar(_) => None,
        }
    }
}

/// Returns all fields of an optimizer's state, for all its parameters.
pub(crate) fn read(optimizer: &ModuleOptimizer) -> Vec<Field> {
    let bytes = optimizer.into_bytes().expect("a state can be written to memory");
    let reader = Reader::from_bytes(bytes).expect("a state that was just written can be read");
    let scalar = |(name, value): (&String, &Scalar)| {
        let (id, name) = name.split_once('.')?;
        Some(Field { id: ParamId::from(id.parse::<u64>().ok()?), name: name.to_owned(), value: Value::Scalar(*value) })
    };
    let mut fields: Vec<_> = reader.scalars().iter().filter_map(scalar).collect();
    let tensors = reader.into_tensors().expect("a state that was just written can be read");
    fields.extend(
        tensors.into_iter().filter_map(|tensor| field(tensor).expect("a state that was just written can be read")),
    );
    fields
}

/// Converts a tensor of burn's saved optimizer state to a field. Returns `None` if the tensor has no parameter id or no
/// field name, and an error if its data cannot be read.
fn field(tensor: Tensor) -> Result<Option<Field>, Error> {
    let (name, dtype, shape, id, bytes) = tensor.into_parts()?;
    let Some((id, name)) = id.zip(name.split_once('.').map(|(_, name)| name.to_owned())) else { return Ok(None) };
    Ok(Some(Field { id: ParamId::from(id), name, value: Value::Tensor(TensorData::from_bytes(bytes, shape, dtype)) }))
}

/// Returns the optimizer with its state restored from `fields`. `paths` maps parameter ids to paths in the stage's
/// module, by which parameter groups find their parameters.
///
/// # Errors
/// Returns the fields that burn did not restore because this optimizer cannot use them, or that it restored with
/// another dtype.
pub(crate) fn write<'a>(
    optimizer: ModuleOptimizer,
    fields: Vec<Field>,
    paths: impl Iterator<Item = (ParamId, &'a str)>,
) -> Result<ModuleOptimizer, Vec<NotRestored>> {
    let mut missing: BTreeMap<_, _> =
        fields.iter().map(|field| ((field.id.val(), field.name.clone()), (field.value.dtype(), None))).collect();
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
    let optimizer = optimizer.from_bytes(bytes).expect("a state that was just written can be read");
    // burn ignores a field that it cannot use, without an error, and restores float tensors in the default dtype of its
    // default device. So the restored state is read back and compared.
    for field in read(&optimizer) {
        let (id, found) = ((field.id.val(), field.name), field.value.dtype());
        match missing.get_mut(&id) {
            Some((given, other)) if *given != found => *other = found,
            _ => drop(missing.remove(&id)),
        }
    }
    let not_restored = |((id, field), (given, other)): ((u64, String), (Option<DType>, Option<DType>))| NotRestored {
        id: id.into(),
        field,
        types: given.zip(other),
    };
    if missing.is_empty() { Ok(optimizer) } else { Err(missing.into_iter().map(not_restored).collect()) }
}

/// A field of a saved optimizer state that burn did not restore, or restored with another dtype.
#[derive(Debug, PartialEq)]
pub(crate) struct NotRestored {
    pub(crate) id: ParamId,
    pub(crate) field: String,
    /// The dtypes of the saved tensor and of the restored one; `None` if the field was not restored at all.
    pub(crate) types: Option<(DType, DType)>,
}
