//! Optimizer states as fields: reading, validating and restoring the state that an optimizer keeps for each parameter.
//!
//! burn gives access to an optimizer's state only in its saved form. That form has tensors and numbers named
//! `{parameter id}.{field}`, and under each parameter's id alone the path by which parameter groups find the parameter.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use burn::module::ParamId;
use burn::optim::ModuleOptimizer;
use burn::tensor::{DType, TensorData};
use burn_pack::{Error, Reader, Scalar, Tensor, Writer};

/// One field of the state that an optimizer keeps for a parameter, such as Adam's first moment.
#[derive(Clone, Debug)]
pub(crate) struct Field {
    pub(crate) id: ParamId,
    /// The name of the state field without the parameter's id, such as `momentum.moment_1`.
    pub(crate) name: String,
    pub(crate) value: Value,
}

/// The value of a field of an optimizer's state: a tensor or a number.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Tensor(TensorData),
    Scalar(Scalar),
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

/// Converts a tensor of burn's saved optimizer state to a field, or returns `None` if the tensor has no parameter id or
/// no field name.
fn field(tensor: Tensor) -> Result<Option<Field>, Error> {
    let (name, dtype, shape, id, bytes) = tensor.into_parts()?;
    let Some((id, name)) = id.zip(name.split_once('.').map(|(_, name)| name.to_owned())) else { return Ok(None) };
    Ok(Some(Field { id: ParamId::from(id), name, value: Value::Tensor(TensorData::from_bytes(bytes, shape, dtype)) }))
}

/// The properties of a field of an optimizer's state that do not change from step to step: type, shape and rank.
#[derive(PartialEq)]
enum Kind {
    Tensor(DType, Vec<usize>),
    Number(std::mem::Discriminant<Scalar>),
    /// The rank of the parameter, from which burn chooses the Rust type of the parameter's optimizer state.
    Rank(Scalar),
}

fn kind(name: &str, value: &Value) -> Kind {
    match value {
        Value::Tensor(data) => Kind::Tensor(data.dtype(), data.shape().as_slice().to_vec()),
        Value::Scalar(rank) if name == "__rank" => Kind::Rank(*rank),
        Value::Scalar(number) => Kind::Number(std::mem::discriminant(number)),
    }
}

/// A field of a checkpoint's optimizer state that the stage's optimizer rejects, or a field that the optimizer requires
/// and the checkpoint lacks.
#[derive(Debug, PartialEq)]
pub(crate) struct Unfit {
    pub(crate) id: ParamId,
    pub(crate) field: String,
    pub(crate) reason: Reason,
}

/// The reason why a field of an optimizer's state does not fit the optimizer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reason {
    /// The stage's optimizer does not keep this field, or keeps this field and the checkpoint lacks it.
    OtherOptimizer,
    /// The optimizer cannot produce the value `found` in this field, only values as `expected` describes.
    Value { found: String, expected: String },
}

/// The optimizer state that a checkpoint has for the parameters of one stage.
pub(crate) struct Given<'a> {
    pub(crate) fields: &'a [Field],
    /// The parameters that the checkpoint marks as having no optimizer state, because they have had no gradient yet.
    pub(crate) stateless: &'a HashSet<ParamId>,
    /// The number of optimizer steps that the checkpoint's training has made.
    pub(crate) steps: u64,
}

/// Returns the fields of a checkpoint's optimizer state that the stage's optimizer cannot have after `given.steps`
/// steps, and the fields that are missing.
///
/// `after_a_step` is the stage's optimizer after one step of all its parameters: its fields are the fields that the
/// checkpoint should have.
pub(crate) fn unfit(after_a_step: &ModuleOptimizer, given: &Given) -> Vec<Unfit> {
    let after_a_step = read(after_a_step);
    let by_name = |fields: &[Field]| -> BTreeMap<_, _> {
        fields.iter().map(|field| ((field.id.val(), field.name.clone()), field.value.clone())).collect()
    };
    let (expected, found) = (by_name(&after_a_step), by_name(given.fields));
    let remembered: BTreeSet<_> = found.keys().map(|(id, _)| *id).collect();
    let is_missing = |key: &&(u64, String)| match remembered.contains(&key.0) {
        true => !found.contains_key(*key),
        false => given.steps > 0 && !given.stateless.contains(&ParamId::from(key.0)),
    };
    let unfit_field = |(id, field): &(u64, String), reason| Unfit { id: (*id).into(), field: field.clone(), reason };
    let missing = expected.keys().filter(is_missing).map(|key| unfit_field(key, Reason::OtherOptimizer));
    let wrong = found.iter().filter_map(|(key, value)| {
        let reason = match expected.get(key) {
            Some(first) if kind(&key.1, first) == kind(&key.1, value) => {
                wrong_value(&key.1, value, first, given.steps)?
            }
            _ => Reason::OtherOptimizer,
        };
        Some(unfit_field(key, reason))
    });
    missing.chain(wrong).collect()
}

/// The names of the state fields in which burn's optimizers count the steps of a parameter. In this order: the field of
/// Adam, AdamW and Adan; of Lamb and Adafactor; of AdaGrad.
const COUNTS: [&str; 3] = ["momentum.time", "time", "lr_decay.time"];

/// The names of the state fields in which burn's optimizers keep sums or means of squared gradients. In this order: the
/// field of Adam and AdamW; of AMSGrad; Lamb; Adan; RMSProp; AdaGrad; and the last two of Adafactor.
const SQUARES: [&str; 8] = [
    "momentum.moment_2",
    "momentum.max_moment_2",
    "moment_2",
    "momentum.exp_avg_sq",
    "square_avg.square_avg",
    "lr_decay.sum",
    "second_moment",
    "column_second_moment",
];

/// Returns the reason why an optimizer cannot have produced the value of a state field after `steps` steps, or `None`
/// if it can.
///
/// `first` is the value of the same field after one optimizer step.
fn wrong_value(name: &str, value: &Value, first: &Value, steps: u64) -> Option<Reason> {
    let wrong = |found: String, expected: &str| Some(Reason::Value { found, expected: expected.to_owned() });
    match value {
        Value::Scalar(scalar) if COUNTS.contains(&name) => {
            let (Some(found), Value::Scalar(first)) = (integer(*scalar), first) else { return None };
            // A parameter had a gradient in at least one step, and in at most all of them.
            let first = integer(*first)?;
            let last = first + i128::from(steps) - 1;
            let expected = format!("{first} to {last} after {steps} optimizer steps");
            (!(first..=last).contains(&found)).then_some(Reason::Value { found: found.to_string(), expected })
        }
        Value::Scalar(Scalar::Float(number)) if !number.is_finite() => wrong(number.to_string(), "a finite number"),
        Value::Scalar(_) => None,
        Value::Tensor(data) => {
            let is_float = data.dtype().is_float();
            let not_finite = || data.iter::<f64>().find(|number| !number.is_finite());
            let negative = || data.iter::<f64>().find(|number| *number < 0.0);
            if let Some(number) = is_float.then(not_finite).flatten() {
                return wrong(number.to_string(), "finite numbers");
            }
            let number = SQUARES.contains(&name).then(negative).flatten()?;
            wrong(number.to_string(), "numbers of at least 0, because they are squares")
        }
    }
}

/// Returns the value of a scalar as an integer, or `None` if the scalar is not of an integer type.
fn integer(scalar: Scalar) -> Option<i128> {
    match scalar {
        Scalar::Int(value) => Some(value.into()),
        Scalar::UInt(value) => Some(value.into()),
        Scalar::Float(_) | Scalar::Bool(_) => None,
    }
}

/// Returns the optimizer with its state restored from `fields`. `paths` are the parameters' paths in the stage's
/// module, by which parameter groups find the parameters.
///
/// # Errors
/// Returns the fields that burn did not restore, because they do not fit the optimizer.
pub(crate) fn write<'a>(
    optimizer: ModuleOptimizer,
    fields: Vec<Field>,
    paths: impl Iterator<Item = (ParamId, &'a str)>,
) -> Result<ModuleOptimizer, Vec<Unfit>> {
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
    let optimizer = optimizer.from_bytes(bytes).expect("a state that was just written can be read");
    // burn ignores a field that it cannot use, without an error; so the restored state is read back and compared.
    for field in read(&optimizer) {
        missing.remove(&(field.id.val(), field.name));
    }
    if missing.is_empty() {
        Ok(optimizer)
    } else {
        let not_restored = |(id, field): (u64, String)| Unfit { id: id.into(), field, reason: Reason::OtherOptimizer };
        Err(missing.into_iter().map(not_restored).collect())
    }
}
