//! Mixed precision: stages compute in bf16 or f16, while parameters, gradient sums and optimizers stay in f32.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::str::FromStr;

use burn::module::{Module, ParamId};
use burn::tensor::{DType, FloatDType, Tensor};

use crate::model::payload::{Payload, PayloadMapper, SharedInput};
use stageline_nn::batch_norms;
use stageline_nn::params::{AnyTensor, Description, is_quantized, map_floats, unify, visit_floats};

/// The precision of forward and backward passes (Micikevicius et al., 2018, *Mixed Precision Training*,
/// [arXiv:1710.03740](https://arxiv.org/abs/1710.03740)).
///
/// In bf16 or f16, every stage computes with a copy of its module whose parameters are rounded. The float inputs of a
/// batch are rounded too. Activations and their gradients are sent to other stages in this lower precision. Gradients
/// are summed over the micro-batches in f32. The optimizer steps the original parameters (the master weights), and the
/// copy is then made from them again.
///
/// Targets are not rounded. The loss must be computed in f32: cast its inputs with `.cast(FloatDType::F32)`, which does
/// nothing if they are in f32 already.
///
/// Batch norms keep their parameters in full precision, and running states (such as running means) are not rounded.
/// `build` rejects burn's own batch norm, which cannot compute on rounded inputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// Forward and backward passes compute in the precision of the model's own parameters, most often f32. This is the
    /// default. This setting does not change whether a GPU multiplies f32 matrices as TF32; burn decides that.
    #[default]
    Full,
    /// Forward and backward passes compute in bfloat16, which has the range of f32 with 8 bits of precision.
    Bf16,
    /// Forward and backward passes compute in IEEE half precision (f16). It has 11 bits of precision and a range of
    /// 6e-8 to 65504, which needs loss scaling. Loss scaling is on by default.
    F16,
}

impl Precision {
    /// Returns the dtype to which parameters and inputs are rounded in this precision. `None` in full precision.
    pub fn rounded(self) -> Option<FloatDType> {
        match self {
            Self::Full => None,
            Self::Bf16 => Some(FloatDType::BF16),
            Self::F16 => Some(FloatDType::F16),
        }
    }

    /// Returns the size in bytes of one element of a rounded parameter in this precision. 0 in full precision, because
    /// no parameter is rounded.
    pub(crate) fn bytes(self) -> usize {
        self.rounded().map_or(0, |dtype| DType::from(dtype).size())
    }

    /// Returns the rule for making copies of `module` in this precision. `None` in full precision, because stages then
    /// compute with the module itself.
    pub(crate) fn rounding<M: Module>(self, module: &M) -> Option<Rounding> {
        let dtype = self.rounded()?;
        Some(Rounding { dtype, kept: kept(module) })
    }

    /// Returns the dtype of a stage's computations, given the descriptions of its tensors. For bf16 or f16 precision,
    /// it is that dtype. In full precision, it is the common dtype of the stage's float tensors (f32 if there are
    /// none), or `None` if they have several dtypes.
    pub(crate) fn computes_in(self, described: &[Description]) -> Option<DType> {
        if let Some(rounded) = self.rounded() {
            return Some(rounded.into());
        }
        let mut types = described.iter().filter(|tensor| tensor.dtype.is_float()).map(|tensor| tensor.dtype);
        let first = types.next().unwrap_or(DType::F32);
        types.all(|dtype| dtype == first).then_some(first)
    }

    /// Rounds the float tensors of a batch's input to this precision. They stay unchanged in full precision.
    pub(crate) fn round_input<P: Payload>(self, payload: P) -> P {
        match self.rounded() {
            Some(dtype) => payload.map(&mut RoundInput(dtype)),
            None => payload,
        }
    }

    /// Returns the dtype for summing gradients over micro-batches: f32 if stages compute in a lower precision. `None`
    /// in full precision, because gradients are then summed in their own dtype.
    pub(crate) fn of_sums(self) -> Option<FloatDType> {
        self.rounded().map(|_| FloatDType::F32)
    }
}

/// The rule for copying a stage's module in a lower precision: the dtype of the copy, and the parameters that are not
/// rounded.
pub(crate) struct Rounding {
    dtype: FloatDType,
    /// The ids of the parameters that are not rounded in copies of a module: the parameters of batch norms, and running
    /// states (such as running means), which a module shares with its copies.
    kept: HashSet<ParamId>,
}

impl Rounding {
    /// Returns a copy of `module` in the lower precision. `before` has the rounded frozen parameters of the previous
    /// copy, if there was one; they are reused. Frozen parameters that already have the lower precision are shared with
    /// `module`.
    pub(crate) fn copy_of<M: Module>(&self, module: &M, before: Option<Frozen>) -> M {
        let Frozen(before) = before.unwrap_or_default();
        unify(map_floats(module.clone(), |param| {
            let value = param.value().unranked();
            let is_shared = !param.is_trained() && value.dtype() == DType::from(self.dtype);
            if is_shared || self.kept.contains(&param.id()) || is_quantized(&value) {
                return None;
            }
            let rounded = before.get(&param.id()).cloned();
            rounded.or_else(|| Some(AnyTensor::new(value.inner().cast(self.dtype)).leaf(param.is_trained())))
        }))
    }

    /// Returns the rounded values of the frozen parameters in `copy`. An optimizer step does not change them, so the
    /// next copy can reuse them.
    pub(crate) fn frozen<M: Module>(&self, copy: &M) -> Frozen {
        let mut frozen = HashMap::new();
        visit_floats(copy, |param| {
            if !param.is_trained() && !self.kept.contains(&param.id()) {
                frozen.insert(param.id(), param.value());
            }
        });
        Frozen(frozen)
    }
}

/// Returns the module with all frozen parameters of the dtype `narrow` cast to f32.
pub(crate) fn widened<M: Module>(module: M, narrow: FloatDType) -> M {
    map_floats(module, |param| {
        let value = param.value().unranked();
        let is_narrow = !param.is_trained() && value.dtype() == DType::from(narrow);
        is_narrow.then(|| AnyTensor::new(value.inner().cast(FloatDType::F32)).leaf(false))
    })
}

/// The values of frozen parameters in a lower precision, by parameter id.
#[derive(Default)]
pub(crate) struct Frozen(HashMap<ParamId, AnyTensor>);

/// Returns the ids of the parameters that are not rounded in copies of a module: the parameters of batch norms, and
/// running states (such as running means).
fn kept<M: Module>(module: &M) -> HashSet<ParamId> {
    let mut kept: HashSet<_> = batch_norms(module).into_iter().flat_map(|norm| norm.tensors).collect();
    // A module and its copies share running states, which is their only mark: a write to a copy changes the original
    // too. So tensors of another shape are written to a copy, and the old values are written back afterwards.
    let mut before: HashMap<ParamId, (AnyTensor, Vec<usize>)> = HashMap::new();
    let copy = map_floats(module.clone(), |param| {
        let value = param.value().unranked();
        if param.is_trained() || is_quantized(&value) {
            return None;
        }
        let other = param.of_other_shape();
        before.entry(param.id()).or_insert_with(|| (param.value(), param.shape()));
        Some(other)
    });
    visit_floats(module, |param| {
        if before.get(&param.id()).is_some_and(|(_, shape)| *shape != param.shape()) {
            kept.insert(param.id());
        }
    });
    drop(map_floats(copy, |param| before.get(&param.id()).map(|(value, _)| value.clone())));
    kept
}

struct RoundInput(FloatDType);

impl PayloadMapper for RoundInput {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        tensor.cast(self.0)
    }

    fn shared<T: Payload>(&mut self, shared: SharedInput<T>) -> SharedInput<T> {
        shared.map_both(self)
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "full",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
        })
    }
}

impl FromStr for Precision {
    type Err = PrecisionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let named = [Self::Full, Self::Bf16, Self::F16].into_iter().find(|precision| precision.to_string() == text);
        named.ok_or_else(|| PrecisionError(text.to_owned()))
    }
}

/// The error for a string that is not the name of a precision: `full`, `bf16` or `f16`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a precision; write `full`, `bf16` or `f16`")]
pub struct PrecisionError(String);

#[cfg(test)]
mod tests {
    use super::*;
    use burn::module::{Param, RunningState};
    use burn::nn::{BatchNormConfig, LinearConfig};
    use burn::tensor::{DType, Device};

    #[test]
    fn every_precision_parses_from_its_name() {
        for precision in [Precision::Full, Precision::Bf16, Precision::F16] {
            assert_eq!(precision.to_string().parse(), Ok(precision));
        }
        assert!("f8".parse::<Precision>().unwrap_err().to_string().starts_with("`f8` is not a precision"));
    }

    #[test]
    fn a_copy_is_rounded_and_the_module_is_not() {
        let device = Device::flex().autodiff();
        let module = (LinearConfig::new(2, 3).init(&device), BatchNormConfig::new(3).init(&device));
        assert!(Precision::Full.rounding(&module).is_none());
        let (linear, norm) = Precision::Bf16.rounding(&module).unwrap().copy_of(&module, None);
        assert_eq!(linear.weight.val().dtype(), DType::BF16);
        assert_eq!((linear.weight.id, linear.weight.is_require_grad()), (module.0.weight.id, true));
        assert_eq!(module.0.weight.val().dtype(), DType::F32);
        assert_eq!((norm.gamma.val().dtype(), norm.running_mean.value().dtype()), (DType::F32, DType::F32));
    }

    /// A module for a test of rounding. It has a running state, which must stay in f32, and a frozen parameter, which
    /// must be rounded.
    #[derive(Module, Debug)]
    struct Stateful {
        state: RunningState<Tensor<1>>,
        frozen: Param<Tensor<1>>,
    }

    #[test]
    fn running_states_are_left_alone_and_frozen_parameters_are_rounded() {
        let device = Device::flex().autodiff();
        let value = || Tensor::<1>::from_floats([0.123_456_789], &device);
        let frozen = Param::from_tensor(value()).set_require_grad(false);
        let module = Stateful { state: RunningState::new(value()), frozen };
        let rounding = Precision::Bf16.rounding(&module).unwrap();
        for _ in 0..2 {
            let copy = rounding.copy_of(&module, None);
            assert_eq!(copy.frozen.val().dtype(), DType::BF16);
            assert_eq!((copy.state.value().dtype(), module.state.value().dtype()), (DType::F32, DType::F32));
            assert_eq!(module.state.value().into_data(), value().into_data());
            assert_eq!(module.frozen.val().into_data(), value().into_data());
        }
    }
}
