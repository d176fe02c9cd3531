//! NaN and infinity: where in a step they came from.

use std::fmt;

use burn::tensor::{Bool, Int, Tensor};

use crate::model::payload::{Payload, PayloadMapper};
use crate::model::replica::Replica;

/// What is done with a step whose gradients or loss are not finite. Whatever it is, no optimizer has moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnNonFinite {
    /// The step ends with [`StepError::NonFinite`](crate::StepError::NonFinite), and the pipeline with it.
    #[default]
    Stop,
    /// The step is skipped: parameters, optimizer states and learning rates stay as they are. Its report says so.
    Skip,
}

/// The first in a step whose results were not finite although what it got from other stages was. Inputs and forwards come
/// before backwards, which a loss scale may be to blame for. (A parameter or a target that is not finite shows as the forward
/// that uses it.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Culprit {
    /// The replica,
    pub replica: Replica,
    /// its stage,
    pub stage: usize,
    /// and its micro-batch: the first of replica r is r x M in the batch.
    pub micro_batch: usize,
    /// What it was.
    pub origin: Origin,
}

/// What can be the first not to be finite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// The input that came with the batch.
    Input,
    /// What the forward made: the stage's output, or the loss.
    Forward,
    /// What the backward made: gradients of parameters, or of the stage's input.
    Backward,
}

impl fmt::Display for Culprit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { replica, stage, micro_batch, origin } = self;
        let what = replica.micro_batch(*micro_batch);
        match origin {
            Origin::Input => write!(f, "the input of {what}, as it came with the batch"),
            Origin::Forward => write!(f, "the forward of stage {stage} on {what}"),
            Origin::Backward => write!(f, "the backward of stage {stage} on {what}"),
        }
    }
}

/// Of all stages' culprits the first: micro-batch by micro-batch of the batch, forwards up the stages and, if none is, backwards
/// down.
pub(crate) fn first(culprits: impl Iterator<Item = Culprit>) -> Option<Culprit> {
    culprits.min_by_key(|culprit| {
        let way = if culprit.origin == Origin::Backward { usize::MAX - culprit.stage } else { culprit.stage };
        (culprit.origin == Origin::Backward, culprit.replica.index, culprit.micro_batch, culprit.origin, way)
    })
}

/// The worst that is in some tensors. An infinity can be meant, as in a mask that is added to scores; a NaN cannot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Soundness {
    Finite,
    Infinite,
    NaN,
}

/// The worst that is in the float tensors of a payload.
pub(crate) fn soundness<P: Payload>(payload: &P) -> Soundness {
    let mut check = Check(Soundness::Finite);
    payload.clone().map(&mut check);
    check.0
}

/// Whether a tensor is finite. It waits for the device.
pub(crate) fn tensor_is_finite<const D: usize>(tensor: Tensor<D>) -> bool {
    tensor.inner().is_finite().all().into_scalar::<bool>()
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
    fn int<const D: usize>(&mut self, tensor: Tensor<D, Int>) -> Tensor<D, Int> {
        tensor
    }
    fn bool<const D: usize>(&mut self, tensor: Tensor<D, Bool>) -> Tensor<D, Bool> {
        tensor
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_culprit_is_the_first_in_the_way_of_the_batch() {
        let culprit = |stage, micro_batch, origin| Culprit { replica: Replica::default(), stage, micro_batch, origin };
        let of = |culprits: &[Culprit]| first(culprits.iter().copied());
        let (forward, backward) = (Origin::Forward, Origin::Backward);
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[culprit(2, 1, forward), culprit(1, 1, forward)]), Some(culprit(1, 1, forward)));
        assert_eq!(of(&[culprit(0, 1, backward), culprit(2, 1, backward)]), Some(culprit(2, 1, backward)));
        assert_eq!(of(&[culprit(0, 0, backward), culprit(0, 1, forward)]), Some(culprit(0, 1, forward)));
        assert_eq!(of(&[culprit(0, 3, backward), culprit(2, 3, forward)]), Some(culprit(2, 3, forward)));
    }
}
