//! The micro-batches of a batch ([`MicroBatches`]). Each has a loss weight, which is validated here, and the indices of
//! its samples in the batch ([`Weights`]).

use crate::model::batch_error::BatchError;
use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::tensor::{Bool, Int, Tensor};

use crate::model::loss_weight::Weight;
use crate::model::payload::{Payload, PayloadMapper};
use crate::model::scoring::WeightOf;
use crate::threads::failure::Failure;
use stageline_nn::Samples;

/// A validated batch: the input, the target and the loss weight of every micro-batch.
#[derive(Clone)]
pub(crate) struct MicroBatches<I, T> {
    pub(crate) inputs: Vec<I>,
    pub(crate) targets: Vec<T>,
    pub(crate) weights: Weights,
}

/// The loss weights of all micro-batches of a batch, their total, and each micro-batch's sample indices.
///
/// The total of a validated batch is finite, and at least one of its terms is not zero.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Weights {
    pub(crate) each: Vec<Weight>,
    pub(crate) total: Weight,
    /// The index of each micro-batch's first sample in the whole batch. An additional last entry is the end (exclusive)
    /// of the last micro-batch.
    starts: Vec<usize>,
}

impl Weights {
    /// Creates the loss weights of a batch from the loss weight (`each`) and the number of samples (`samples`) of each
    /// micro-batch. `first` is the index of the first sample of micro-batch 0.
    pub(super) fn new(each: Vec<Weight>, first: usize, samples: impl IntoIterator<Item = usize>) -> Self {
        let total = total(&each);
        let mut end = first;
        let ends = samples.into_iter().map(|samples| {
            end += samples;
            end
        });
        let starts = [first].into_iter().chain(ends).collect();
        Self { each, total, starts }
    }

    pub(crate) fn all_samples(&self) -> usize {
        self.starts[self.each.len()] - self.starts[0]
    }

    /// Splits the loss weights of a batch among the data-parallel replicas. Each part covers `micro_batches`
    /// consecutive micro-batches (the last part may cover fewer) and has its own total. Samples keep their indices in
    /// the whole batch.
    pub(crate) fn divided(&self, micro_batches: usize) -> Vec<Self> {
        let part = |(index, each): (usize, &[Weight])| {
            let first = index * micro_batches;
            let starts = self.starts[first..=first + each.len()].to_vec();
            Self { each: each.to_vec(), total: total(each), starts }
        };
        self.each.chunks(micro_batches).enumerate().map(part).collect()
    }

    /// Returns the position of a micro-batch's samples in the training run, which seeds the random numbers of dropout:
    /// the step, the index of the first sample in the batch, and the number of samples.
    pub(crate) fn samples(&self, step: usize, micro_batch: usize) -> Samples {
        let [first, end] = [self.starts[micro_batch], self.starts[micro_batch + 1]];
        Samples { step, first, count: end - first }
    }
}

impl<I: Payload, T: Payload> MicroBatches<I, T> {
    /// Creates a validated batch from `pieces`, a pair of input and target for each micro-batch. `weight` computes the
    /// loss weight of each. Returns an error if a loss weight, or their total, is not a valid divisor of the loss.
    pub(super) fn weigh(pieces: Vec<(I, T)>, weight: &WeightOf<'_, T>) -> Result<Self, BatchError> {
        let weight_of_targets = |(micro_batch, (_, target)): (usize, &(I, T))| {
            let panicked =
                |panic| BatchError::WeightPanic { micro_batch, failure: Failure::of_panic(panic).to_string() };
            catch_unwind(AssertUnwindSafe(|| weight(target))).map_err(panicked)
        };
        let each = pieces.iter().enumerate().map(weight_of_targets).collect::<Result<Vec<_>, _>>()?;
        let terms = each.first().map_or(0, |weight| weight.terms().len());
        for (micro_batch, weight) in each.iter().enumerate() {
            if weight.terms().is_empty() || weight.terms().len() != terms {
                return Err(BatchError::Terms { micro_batch, found: weight.terms().len(), terms });
            }
            if let Some(&weight) = weight.terms().iter().find(|weight| !weight.is_finite() || **weight < 0.0) {
                return Err(BatchError::Weight { micro_batch, weight });
            }
        }
        let weights = Weights::new(each, 0, pieces.iter().map(|(input, target)| samples(input, target)));
        if weights.total.is_zero() {
            return Err(BatchError::NoWeight);
        }
        if weights.total.terms().iter().any(|weight| !weight.is_finite()) {
            return Err(BatchError::TotalWeight);
        }
        let (inputs, targets) = pieces.into_iter().unzip();
        Ok(Self { inputs, targets, weights })
    }

    /// Returns the micro-batches with the largest tensor shapes, so that a rehearsal (a step that only measures memory)
    /// can run them. One of them needs the most memory. A micro-batch is left out if another one is at least as large
    /// in every dimension of every tensor.
    ///
    /// Each result is a batch of its own, made of `times` copies of one micro-batch.
    pub(crate) fn largest(self, times: usize) -> Vec<Self> {
        let mut largest: Vec<(usize, Shapes)> = Vec::new();
        for (index, (input, target)) in self.inputs.iter().zip(&self.targets).enumerate() {
            let shapes = shapes(input, target);
            if largest.iter().all(|(_, other)| !other.contain(&shapes)) {
                largest.retain(|(_, other)| !shapes.contain(other));
                largest.push((index, shapes));
            }
        }
        let repeated = |(index, _): (usize, Shapes)| {
            let count = self.weights.samples(0, index).count;
            let each = vec![self.weights.each[index].clone(); times];
            Self {
                inputs: vec![self.inputs[index].clone(); times],
                targets: vec![self.targets[index].clone(); times],
                weights: Weights::new(each, 0, vec![count; times]),
            }
        };
        largest.into_iter().map(repeated).collect()
    }

    /// Returns one micro-batch of this batch as a batch of its own. Its samples keep their indices in the whole batch,
    /// so that dropout draws the same random numbers for them.
    pub(crate) fn only(mut self, micro_batch: usize) -> Self {
        let Samples { first, count, .. } = self.weights.samples(0, micro_batch);
        let weight = self.weights.each.swap_remove(micro_batch);
        Self {
            inputs: vec![self.inputs.swap_remove(micro_batch)],
            targets: vec![self.targets.swap_remove(micro_batch)],
            weights: Weights::new(vec![weight], first, [count]),
        }
    }
}

/// The shapes of all tensors of a micro-batch: first the shapes of the input's tensors, then those of the target's.
#[derive(Default)]
pub(super) struct Shapes(pub(super) Vec<Vec<usize>>);

impl Shapes {
    /// Whether this micro-batch is at least as large as `other` in every dimension of every tensor. False if their
    /// tensors differ in number or rank.
    fn contain(&self, other: &Self) -> bool {
        let same_ranks = self.0.iter().map(Vec::len).eq(other.0.iter().map(Vec::len));
        same_ranks && self.0.iter().flatten().zip(other.0.iter().flatten()).all(|(own, other)| own >= other)
    }
}

pub(super) fn total(each: &[Weight]) -> Weight {
    let mut total = Weight::default();
    each.iter().for_each(|weight| total.add(weight));
    total
}

/// Returns the number of samples in a micro-batch: the size of dimension 0 of its first tensor, or 1 if it has no
/// tensor.
pub(super) fn samples<I: Payload, T: Payload>(input: &I, target: &T) -> usize {
    row_counts(input, target).first().copied().unwrap_or(1)
}

/// Returns the number of rows (the size of dimension 0) of every tensor in a micro-batch, first of the input's tensors,
/// then of the target's.
pub(super) fn row_counts<I: Payload, T: Payload>(input: &I, target: &T) -> Vec<usize> {
    shapes(input, target).0.into_iter().map(|shape| shape.first().copied().unwrap_or(0)).collect()
}

pub(super) fn shapes<I: Payload, T: Payload>(input: &I, target: &T) -> Shapes {
    let mut shapes = Shapes::default();
    input.clone().map(&mut shapes);
    target.clone().map(&mut shapes);
    shapes
}

/// Returns the shapes of all tensors in a payload (a value made of tensors, such as a stage's output), in a fixed
/// order.
pub(crate) fn payload_shapes<P: Payload>(payload: &P) -> Vec<Vec<usize>> {
    shapes(payload, &()).0
}

impl PayloadMapper for Shapes {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        self.0.push(tensor.dims().to_vec());
        tensor
    }
    fn int<const D: usize>(&mut self, tensor: Tensor<D, Int>) -> Tensor<D, Int> {
        self.0.push(tensor.dims().to_vec());
        tensor
    }
    fn bool<const D: usize>(&mut self, tensor: Tensor<D, Bool>) -> Tensor<D, Bool> {
        self.0.push(tensor.dims().to_vec());
        tensor
    }
}
