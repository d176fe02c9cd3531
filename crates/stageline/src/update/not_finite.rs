//! NaN and infinity: the policy for a step with non-finite results (stop or skip), and the search for the computation
//! that produced the first one.

use std::collections::{HashMap, HashSet};
use std::fmt;

use burn::module::Module;
use burn::tensor::Tensor;
use stageline_nn::batch_norms;
use stageline_nn::params::{describe, visit_floats};

use crate::model::payload::{Payload, PayloadMapper};
use crate::model::replica::Replica;

/// The policy for a step with a non-finite loss or gradient: stop the pipeline, or skip the step. In both cases, no
/// optimizer steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnNonFinite {
    /// Stops at a non-finite loss or gradient: the step fails with
    /// [`StepError::NonFinite`](crate::StepError::NonFinite), and the pipeline runs no further steps. This is the
    /// default.
    #[default]
    Stop,
    /// Skips a step with a non-finite loss or gradient, and says so in its report. Parameters, optimizer states and
    /// learning rates stay as they are.
    Skip,
}

/// The origin of the first NaN or infinity in a step, for an error message or a report. It is an input that contains
/// NaN, a stage with a non-finite parameter, or the first forward or backward pass that made non-finite values from
/// finite ones. A forward pass that turns a received infinity into NaN, or into an infinite loss, counts too. A forward
/// pass that only passes an infinity on, such as the infinity of an attention mask, does not count.
///
/// Inputs and forward passes are searched before backward passes, because only a backward pass can overflow through the
/// loss scale. A non-finite target is reported as the forward pass that uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Culprit {
    /// The data-parallel replica where the first NaN or infinity of the step appeared.
    pub replica: Replica,
    /// Zero-based index of the stage where the first NaN or infinity of the step appeared.
    pub stage: usize,
    /// Zero-based index, within the replica, of the micro-batch where the first NaN or infinity of the step appeared.
    /// With M micro-batches per replica, micro-batch 0 of replica r is micro-batch r x M of the batch.
    pub micro_batch: usize,
    /// The kind of place where the first NaN or infinity of the step appeared, such as an input or a forward pass.
    pub origin: Origin,
}

/// The kind of place where the first NaN or infinity of a step appeared: an input, the parameters, a forward or a
/// backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// The first NaN of the step is in an input of the batch. Infinities in inputs are not searched for, because they
    /// can be intended.
    Input,
    /// The stage had a parameter that is NaN or infinite before the step, and its forward pass gave the first NaN or
    /// infinity of the step. A warning names the parameter.
    Parameters,
    /// The first NaN or infinity of the step is in the result of a forward pass: the stage's output, or the loss.
    Forward,
    /// The first NaN or infinity of the step is in the result of a backward pass: gradients of parameters, or of the
    /// stage's input.
    Backward,
}

impl fmt::Display for Culprit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { replica, stage, micro_batch, origin } = self;
        let what = replica.micro_batch(*micro_batch);
        match origin {
            Origin::Input => write!(f, "the input of {what}, as it came with the batch"),
            Origin::Parameters => write!(f, "the parameters of stage {stage}, in its forward on {what}"),
            Origin::Forward => write!(f, "the forward of stage {stage} on {what}"),
            Origin::Backward => write!(f, "the backward of stage {stage} on {what}"),
        }
    }
}

/// Returns the earliest of a step's computations whose results are NaN or infinite; `None` if there are none. Inputs
/// and forward passes come before backward passes. Both are ordered by replica and then by micro-batch. Within a
/// micro-batch, forward passes are ordered by ascending stage, and backward passes by descending stage.
pub(crate) fn first(culprits: impl Iterator<Item = Culprit>) -> Option<Culprit> {
    culprits.min_by_key(|culprit| {
        let position = if culprit.origin == Origin::Backward { usize::MAX - culprit.stage } else { culprit.stage };
        (culprit.origin == Origin::Backward, culprit.replica.index, culprit.micro_batch, position, culprit.origin)
    })
}

/// The worst kind of value among the elements of tensors: infinite is worse than finite, and NaN is the worst. An
/// infinity can be intended, as in a mask that is added to attention scores; a NaN cannot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Soundness {
    Finite,
    Infinite,
    NaN,
}

/// Returns the worst kind of value in the float tensors of `payload`: NaN if there is one, otherwise infinite if there
/// is an infinity, otherwise finite.
pub(crate) fn soundness<P: Payload>(payload: &P) -> Soundness {
    let mut check = Check(Soundness::Finite);
    payload.clone().map(&mut check);
    check.0
}

/// Whether all elements of a tensor are finite. The call blocks until the device has computed the answer.
pub(crate) fn tensor_is_finite<const D: usize>(tensor: Tensor<D>) -> bool {
    tensor.inner().is_finite().all().into_scalar::<bool>()
}

/// Returns the path, in its module, of the first float parameter that contains NaN or infinity; `None` if all are
/// finite. Quantized parameters are not checked, nor are the running statistics of burn's own batch norms, which every
/// forward pass changes.
pub(crate) fn not_finite_parameter<M: Module>(module: &M) -> Option<String> {
    let described = describe(module).into_iter().filter(|found| found.dtype.is_float());
    let paths: HashMap<_, _> = described.map(|found| (found.id, found.path)).collect();
    let plain = batch_norms(module).into_iter().filter(|batch_norm| batch_norm.plain);
    let of_plain: HashSet<_> = plain.flat_map(|batch_norm| batch_norm.tensors).collect();
    let mut first = None;
    visit_floats(module, |param| {
        let is_statistic = of_plain.contains(&param.id()) && !param.is_trained();
        if first.is_none()
            && !is_statistic
            && let Some(path) = paths.get(&param.id())
            && !tensor_is_finite(param.value().unranked())
        {
            first = Some(path.clone());
        }
    });
    first
}

struct Check(Soundness);

impl PayloadMapper for Check {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        let found = match tensor_is_finite(tensor.clone()) {
            true => Soundness::Finite,
            false if tensor.clone().inner().contains_nan().into_scalar::<bool>() => Soundness::NaN,
            false => Soundness::Infinite,
        };
        self.0 = self.0.max(found);
        tensor
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_culprit_is_the_earliest_computation_of_the_batch() {
        let culprit = |stage, micro_batch, origin| Culprit { replica: Replica::default(), stage, micro_batch, origin };
        let of = |culprits: &[Culprit]| first(culprits.iter().copied());
        let (forward, backward) = (Origin::Forward, Origin::Backward);
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[culprit(2, 1, forward), culprit(1, 1, forward)]), Some(culprit(1, 1, forward)));
        assert_eq!(of(&[culprit(0, 1, backward), culprit(2, 1, backward)]), Some(culprit(2, 1, backward)));
        assert_eq!(of(&[culprit(0, 0, backward), culprit(0, 1, forward)]), Some(culprit(0, 1, forward)));
        assert_eq!(of(&[culprit(0, 3, backward), culprit(2, 3, forward)]), Some(culprit(2, 3, forward)));
        let parameters = Origin::Parameters;
        assert_eq!(of(&[culprit(2, 1, parameters), culprit(0, 1, forward)]), Some(culprit(0, 1, forward)));
        assert_eq!(of(&[culprit(0, 1, parameters), culprit(0, 1, Origin::Input)]), Some(culprit(0, 1, Origin::Input)));
    }
}
