//! What optimizers remember of each parameter.
//!
//! burn shows a state in the form in which it saves it, and in no other: tensors called `{parameter id}.{field}`, numbers of the
//! same names, and under the id alone the path by which parameter groups know a parameter.

use std::collections::{BTreeMap, BTreeSet, HashSet};

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

fn kind(name: &str, value: &Value) -> Kind {
    match value {
        Value::Tensor(data) => Kind::Tensor(data.dtype(), data.shape().as_slice().to_vec()),
        Value::Scalar(rank) if name == "__rank" => Kind::Rank(*rank),
        Value::Scalar(number) => Kind::Number(std::mem::discriminant(number)),
    }
}

/// A field that an optimizer cannot have come to.
#[derive(Debug, PartialEq)]
pub(crate) struct Unfit {
    pub(crate) id: ParamId,
    pub(crate) field: String,
    pub(crate) reason: Reason,
}

/// Why a field is rejected.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reason {
    /// The optimizer keeps no such field, or keeps one that is missing.
    OtherOptimizer,
    /// The value is not one that the optimizer can have come to.
    Value { found: String, expected: String },
}

/// What a stage takes over of a checkpoint's optimizer states.
pub(crate) struct Given<'a> {
    pub(crate) fields: &'a [Field],
    /// Parameters of which the checkpoint says that they have no state.
    pub(crate) stateless: &'a HashSet<ParamId>,
    /// How many steps all optimizers have made.
    pub(crate) steps: u64,
}

/// The fields that an optimizer does not have, or cannot have come to, after so many steps of its parameters, given its fields after
/// one step; and those that are missing.
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
    let of = |(id, field): &(u64, String), reason| Unfit { id: (*id).into(), field: field.clone(), reason };
    let missing = expected.keys().filter(is_missing).map(|key| of(key, Reason::OtherOptimizer));
    let wrong = found.iter().filter_map(|(key, value)| {
        let reason = match expected.get(key) {
            Some(first) if kind(&key.1, first) == kind(&key.1, value) => {
                wrong_value(&key.1, value, first, given.steps)?
            }
            _ => Reason::OtherOptimizer,
        };
        Some(of(key, reason))
    });
    missing.chain(wrong).collect()
}

/// The fields of burn's optimizers that count a parameter's steps: Adam, AdamW and Adan; Lamb and Adafactor; AdaGrad.
const COUNTS: [&str; 3] = ["momentum.time", "time", "lr_decay.time"];

/// The fields of burn's optimizers that are sums or means of squares: Adam and AdamW; AMSGrad; Lamb; Adan; RMSProp; AdaGrad;
/// Adafactor.
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

/// Why a field of the right kind cannot have this value, given what it is after one step.
fn wrong_value(name: &str, value: &Value, first: &Value, steps: u64) -> Option<Reason> {
    let wrong = |found: String, expected: &str| Some(Reason::Value { found, expected: expected.to_owned() });
    match value {
        Value::Scalar(scalar) if COUNTS.contains(&name) => {
            let (Some(found), Value::Scalar(first)) = (integer(*scalar), first) else { return None };
            // Of a parameter that had a gradient in every step, or in one of them.
            let first = integer(*first)?;
            let last = first + i128::from(steps) - 1;
            let expected = format!("{first} to {last}, after {steps} optimizer steps");
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
            wrong(number.to_string(), "numbers of at least 0, as squares are")
        }
    }
}

fn integer(scalar: Scalar) -> Option<i128> {
    match scalar {
        Scalar::Int(value) => Some(value.into()),
        Scalar::UInt(value) => Some(value.into()),
        Scalar::Float(_) | Scalar::Bool(_) => None,
    }
}

/// An optimizer that remembers this, of parameters at these paths.
///
/// # Errors
/// The fields that it does not take over.
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
    let optimizer = optimizer.from_bytes(bytes).expect("what was just written can be read");
    // burn passes over what it cannot use.
    for field in read(&optimizer) {
        missing.remove(&(field.id.val(), field.name));
    }
    if missing.is_empty() {
        Ok(optimizer)
    } else {
        let of = |(id, field): (u64, String)| Unfit { id: id.into(), field, reason: Reason::OtherOptimizer };
        Err(missing.into_iter().map(of).collect())
    }
}
