//! Checks an optimizer state from a checkpoint. Its fields must be those that the stage's optimizer keeps, with values
//! that the optimizer can produce.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use burn::module::ParamId;
use burn::optim::ModuleOptimizer;
use burn::tensor::DType;
use burn_pack::Scalar;

use crate::state::optimizer_state::{Field, NotRestored, STATELESS, Value, read};

/// The kind of value in a field of optimizer state: a tensor of a given dtype and shape, a scalar, or the parameter's
/// rank. It never changes between steps, so a checkpoint's field must have the optimizer's own kind.
#[derive(PartialEq)]
enum Kind {
    Tensor(DType, Vec<usize>),
    Number(std::mem::Discriminant<Scalar>),
    /// The rank (number of dimensions) of the parameter. It decides the Rust type of the parameter's optimizer state in
    /// burn.
    Rank(Scalar),
}

fn kind(name: &str, value: &Value) -> Kind {
    match value {
        Value::Tensor(data) => Kind::Tensor(data.dtype(), data.shape().as_slice().to_vec()),
        Value::Scalar(rank) if name == "__rank" => Kind::Rank(*rank),
        Value::Scalar(number) => Kind::Number(std::mem::discriminant(number)),
    }
}

/// A checkpoint entry that a stage cannot resume from: a missing or rejected field of optimizer state, or a frozen
/// tensor whose hash differs.
#[derive(Debug, PartialEq)]
pub(crate) enum Unfit {
    /// A field of the optimizer state of the parameter `id` is missing from the checkpoint, or the stage's optimizer
    /// rejects it. `reason` says why.
    Field { id: ParamId, field: String, reason: Reason },
    /// The stage's frozen tensor `id` does not have the hash that the checkpoint stores for it, so its values have
    /// changed.
    Frozen { id: ParamId },
}

impl From<NotRestored> for Unfit {
    fn from(NotRestored { id, field, types }: NotRestored) -> Self {
        let reason = match types {
            None => Reason::OtherOptimizer,
            Some((given, restored)) => Reason::Value {
                found: format!("numbers in {given:?}"),
                expected: format!(
                    "numbers in {restored:?}, in which burn restores all states of optimizers; train parameters of that \
                     type, with `Precision` for forwards and backwards in a lower one"
                ),
            },
        };
        Self::Field { id, field, reason }
    }
}

/// The reason why a field of optimizer state is rejected: the stage's optimizer does not keep such a field, or cannot
/// produce its value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reason {
    /// The checkpoint's fields do not match the stage's optimizer: a field is missing, unknown to the optimizer, or of
    /// another dtype or shape. The checkpoint probably comes from another optimizer.
    OtherOptimizer,
    /// The checkpoint's field has the value `found`, which the optimizer cannot produce. `expected` describes the
    /// possible values.
    Value { found: String, expected: String },
}

/// The optimizer state that a checkpoint contains for one stage's parameters, to be checked before the stage resumes
/// from it.
pub(crate) struct Given<'a> {
    pub(crate) fields: &'a [Field],
    /// The parameters that have no optimizer state according to the checkpoint, because they have had no gradient yet.
    pub(crate) stateless: &'a HashSet<ParamId>,
    /// The number of optimizer steps that the training run had made when the checkpoint was taken.
    pub(crate) steps: u64,
}

/// Returns the fields of a checkpoint's optimizer state that the stage's optimizer rejects, and the fields that the
/// checkpoint lacks. A value is rejected if it cannot occur after the checkpoint's number of steps (`given.steps`).
///
/// `after_a_step` is the stage's optimizer after one step of all its parameters; the checkpoint should have the same
/// fields.
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
    let unfit_field =
        |(id, field): &(u64, String), reason| Unfit::Field { id: (*id).into(), field: field.clone(), reason };
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
    let unbound = found.iter().filter_map(|(key, value)| {
        let bound = BOUNDS.iter().find(|bound| bound.field == key.1)?;
        let smaller = found.get(&(key.0, bound.of.to_owned()))?;
        Some(unfit_field(key, bound.broken(value, smaller)?))
    });
    let contradicted =
        remembered.iter().filter(|id| given.stateless.contains(&ParamId::from(**id))).map(|id| Unfit::Field {
            id: (*id).into(),
            field: STATELESS.to_owned(),
            reason: Reason::Value {
                found: "true".to_owned(),
                expected: "absent, because the parameter has a state".to_owned(),
            },
        });
    missing.chain(wrong).chain(unbound).chain(contradicted).collect()
}

/// A lower bound on one tensor of a parameter's optimizer state, given by another tensor of the same state. For each
/// element, `field >= of.powi(power)` must hold. Such a bound follows from the optimizer's formulas: AMSGrad, for
/// example, keeps the maximum of the second moment.
struct Bound {
    field: &'static str,
    of: &'static str,
    power: i32,
    /// The tolerance for rounding errors: an element of optimizer state may be below its lower bound by this fraction
    /// of the bound.
    rounding: f64,
    expected: &'static str,
}

/// The lower bounds that hold between two tensors in the states of burn's optimizers. AMSGrad's largest second moment
/// is at least the second moment. Centered RMSProp's mean of squared gradients is at least the square of the mean
/// gradient.
const BOUNDS: [Bound; 2] = [
    Bound {
        field: "momentum.max_moment_2",
        of: "momentum.moment_2",
        power: 1,
        rounding: 0.0,
        expected: "numbers of at least those in `momentum.moment_2`, whose largest values it keeps",
    },
    Bound {
        field: "square_avg.square_avg",
        of: "centered.grad_avg",
        power: 2,
        rounding: 1e-3,
        expected: "numbers of at least the squares of those in `centered.grad_avg`, because their difference is a variance",
    },
];

impl Bound {
    /// Checks the tensor `value` of optimizer state against the lower bound that the tensor `smaller` gives. Returns
    /// the reason if an element is too small; `None` if the bound holds or the values are not float tensors.
    fn broken(&self, value: &Value, smaller: &Value) -> Option<Reason> {
        let (Value::Tensor(value), Value::Tensor(smaller)) = (value, smaller) else { return None };
        if !(value.dtype().is_float() && smaller.dtype().is_float()) {
            return None;
        }
        let mut pairs = value.iter::<f64>().zip(smaller.iter::<f64>());
        // Tiny bounds are not checked: in f32, a square near the smallest normal number becomes inexact or 0 when it is
        // multiplied by the weight of a new gradient.
        let is_below = |&(value, smaller): &(f64, f64)| {
            let least = smaller.powi(self.power);
            value < least * (1.0 - self.rounding) && least > 1e3 * f64::from(f32::MIN_POSITIVE)
        };
        let (found, _) = pairs.find(is_below)?;
        Some(Reason::Value { found: found.to_string(), expected: self.expected.to_owned() })
    }
}

/// The names of the fields of optimizer state that count the steps of a parameter, in burn's optimizers. The first name
/// is used by Adam, AdamW and Adan, the second by Lamb and Adafactor, and the third by AdaGrad.
const COUNTS: [&str; 3] = ["momentum.time", "time", "lr_decay.time"];

/// The names of the fields of optimizer state that contain sums or means of squared gradients, in burn's optimizers. In
/// order, they belong to Adam and AdamW (the same field), AMSGrad, Lamb, Adan, RMSProp, AdaGrad, and Adafactor (the
/// last two fields).
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

/// Checks a checkpoint's `value` of the optimizer-state field `name`. Returns the reason if it is impossible after
/// `steps` optimizer steps (such as a wrong step count or a negative square), or `None`.
///
/// `first` is the value that the field has after one optimizer step.
fn wrong_value(name: &str, value: &Value, first: &Value, steps: u64) -> Option<Reason> {
    let wrong = |found: String, expected: &str| Some(Reason::Value { found, expected: expected.to_owned() });
    match value {
        Value::Scalar(scalar) if COUNTS.contains(&name) => {
            let (Some(found), Value::Scalar(first)) = (integer(*scalar), first) else { return None };
            // A parameter with a state had a gradient in at least one step and in at most all steps.
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

fn integer(scalar: Scalar) -> Option<i128> {
    match scalar {
        Scalar::Int(value) => Some(value.into()),
        Scalar::UInt(value) => Some(value.into()),
        Scalar::Float(_) | Scalar::Bool(_) => None,
    }
}
