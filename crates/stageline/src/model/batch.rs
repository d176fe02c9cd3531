//! Batches: the input and the targets of one step, split into micro-batches with their loss weights.
//!
//! Every batch is validated here before any worker sees it.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::tensor::{Bool, Int, Tensor};

use crate::model::loss_weight::Weight;
use crate::model::payload::{Payload, PayloadMapper};
use crate::threads::failure::Failure;
use stageline_nn::forward::samples::Samples;

/// The input and the targets of one step.
#[derive(Clone, Debug)]
pub struct Batch<I, T>(Content<I, T>);

#[derive(Clone, Debug)]
enum Content<I, T> {
    Whole(I, T),
    Cut(Vec<(I, T)>),
}

impl<I: Payload, T: Payload> Batch<I, T> {
    /// Creates a batch from whole tensors, each with one row per sample along dimension 0.
    ///
    /// A step splits it into M micro-batches of consecutive rows, as evenly as possible; the larger ones come first.
    pub fn new(input: I, target: T) -> Self {
        Self(Content::Whole(input, target))
    }

    /// Creates a batch from micro-batches that the caller has cut, each a pair of input and target.
    ///
    /// Use it for tensors that do not have one row per sample, and for micro-batches of different lengths. Layers that
    /// number samples ([`Samples`]) take the first dimension of a micro-batch's first tensor as its number of samples.
    pub fn from_micro_batches(micro_batches: Vec<(I, T)>) -> Self {
        Self(Content::Cut(micro_batches))
    }

    /// Splits the batch into exactly `micro_batches` pairs of input and target, as a pipeline's step does.
    ///
    /// It serves training loops that run without a pipeline.
    ///
    /// # Errors
    /// Returns [`BatchError`] if the batch has fewer rows than `micro_batches`, if its tensors differ in their numbers
    /// of rows, or if it was cut by hand into another number of pieces.
    pub fn into_micro_batches(self, micro_batches: usize) -> Result<Vec<(I, T)>, BatchError> {
        match self.0 {
            Content::Whole(input, target) => {
                let rows = rows(&input, &target)?;
                if rows == 0 {
                    return Err(BatchError::NoRows);
                }
                if rows < micro_batches {
                    return Err(BatchError::TooSmall { rows, micro_batches, replicas: 1 });
                }
                Ok(slice(&input, &target, rows, micro_batches))
            }
            Content::Cut(pieces) if pieces.len() == micro_batches => Ok(pieces),
            Content::Cut(pieces) => Err(BatchError::Count { given: pieces.len(), micro_batches, replicas: 1 }),
        }
    }

    /// Splits the batch into exactly `micro_batches` pieces for training, and validates the loss weight of each.
    pub(crate) fn cut(self, micro_batches: usize, weight: fn(&T) -> Weight) -> Result<MicroBatches<I, T>, BatchError> {
        MicroBatches::weigh(self.into_micro_batches(micro_batches)?, weight)
    }

    /// Splits the batch for evaluation, which also runs fewer than `micro_batches` pieces: a smaller whole batch gives
    /// one piece per row, and a batch that was cut by hand keeps its pieces.
    pub(crate) fn cut_up_to(
        self,
        micro_batches: usize,
        weight: fn(&T) -> Weight,
    ) -> Result<MicroBatches<I, T>, BatchError> {
        match self.0 {
            Content::Whole(input, target) => {
                let pieces = rows(&input, &target)?.clamp(1, micro_batches);
                Self::new(input, target).cut(pieces, weight)
            }
            Content::Cut(pieces) if (1..=micro_batches).contains(&pieces.len()) => MicroBatches::weigh(pieces, weight),
            Content::Cut(pieces) => Err(BatchError::Count { given: pieces.len(), micro_batches, replicas: 1 }),
        }
    }
}

/// A validated batch: the input, the target and the loss weight of every micro-batch.
#[derive(Clone)]
pub(crate) struct MicroBatches<I, T> {
    pub(crate) inputs: Vec<I>,
    pub(crate) targets: Vec<T>,
    pub(crate) weights: Weights,
}

/// The loss weights of all micro-batches with their total, and the numbers of the samples that each micro-batch has.
///
/// The total of a whole batch is finite and has a term that is not zero.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Weights {
    pub(crate) each: Vec<Weight>,
    pub(crate) total: Weight,
    /// The number of each micro-batch's first sample, followed by the end of the last micro-batch.
    starts: Vec<usize>,
}

impl Weights {
    /// Sums the weights `each`, and numbers samples from `first`, given how many samples every micro-batch has.
    fn new(each: Vec<Weight>, first: usize, samples: impl IntoIterator<Item = usize>) -> Self {
        let total = total(&each);
        let mut end = first;
        let ends = samples.into_iter().map(|samples| {
            end += samples;
            end
        });
        let starts = [first].into_iter().chain(ends).collect();
        Self { each, total, starts }
    }

    /// Returns the number of samples in all micro-batches together.
    pub(crate) fn all_samples(&self) -> usize {
        self.starts[self.each.len()] - self.starts[0]
    }

    /// Splits the weights into parts of `micro_batches` consecutive micro-batches, one part for each replica; the last
    /// part may have fewer. Samples keep their numbers, and every part has its own total.
    pub(crate) fn divided(&self, micro_batches: usize) -> Vec<Self> {
        let part = |(index, each): (usize, &[Weight])| {
            let first = index * micro_batches;
            let starts = self.starts[first..=first + each.len()].to_vec();
            Self { each: each.to_vec(), total: total(each), starts }
        };
        self.each.chunks(micro_batches).enumerate().map(part).collect()
    }

    /// Returns the step, the first sample's number and the number of samples of a micro-batch.
    pub(crate) fn samples(&self, step: usize, micro_batch: usize) -> Samples {
        let [first, end] = [self.starts[micro_batch], self.starts[micro_batch + 1]];
        Samples { step, first, count: end - first }
    }
}

impl<I: Payload, T: Payload> MicroBatches<I, T> {
    /// Computes the loss weight of every piece, and rejects weights that the loss cannot be divided by.
    fn weigh(pieces: Vec<(I, T)>, weight: fn(&T) -> Weight) -> Result<Self, BatchError> {
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

    /// Returns the micro-batches that are not contained in another one, each repeated `times` times as its own batch.
    ///
    /// A micro-batch contains another one if it is at least as large in every dimension of every tensor. Whatever the
    /// model computes, one of the returned micro-batches needs the most memory.
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

    /// Returns one micro-batch as its own batch, whose samples keep the numbers that they have in the whole batch.
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

/// The shapes of all tensors of a micro-batch, first those of the input, then those of the target.
#[derive(Default)]
struct Shapes(Vec<Vec<usize>>);

impl Shapes {
    /// Whether every dimension of every tensor is at least as large as in the other micro-batch, at equal ranks.
    fn contain(&self, other: &Self) -> bool {
        let same_ranks = self.0.iter().map(Vec::len).eq(other.0.iter().map(Vec::len));
        same_ranks && self.0.iter().flatten().zip(other.0.iter().flatten()).all(|(own, other)| own >= other)
    }
}

/// Adds up the weights of all micro-batches in their order, term by term.
fn total(each: &[Weight]) -> Weight {
    let mut total = Weight::default();
    each.iter().for_each(|weight| total.add(weight));
    total
}

/// Returns the number of samples in a micro-batch: the rows of its first tensor, or 1 if it has no tensor.
fn samples<I: Payload, T: Payload>(input: &I, target: &T) -> usize {
    row_counts(input, target).first().copied().unwrap_or(1)
}

/// Returns the number of rows that all tensors of a batch share, or an error if they differ.
fn rows<I: Payload, T: Payload>(input: &I, target: &T) -> Result<usize, BatchError> {
    let counts = row_counts(input, target);
    let rows = *counts.first().ok_or(BatchError::NoTensors)?;
    match counts.iter().position(|&found| found != rows) {
        Some(tensor) => Err(BatchError::Uneven { rows, tensor, found: counts[tensor] }),
        None => Ok(rows),
    }
}

/// Returns the size of dimension 0 of every tensor in input and target, in order.
fn row_counts<I: Payload, T: Payload>(input: &I, target: &T) -> Vec<usize> {
    shapes(input, target).0.into_iter().map(|shape| shape.first().copied().unwrap_or(0)).collect()
}

fn shapes<I: Payload, T: Payload>(input: &I, target: &T) -> Shapes {
    let mut shapes = Shapes::default();
    input.clone().map(&mut shapes);
    target.clone().map(&mut shapes);
    shapes
}

fn slice<I: Payload, T: Payload>(input: &I, target: &T, rows: usize, pieces: usize) -> Vec<(I, T)> {
    even_ranges(rows, pieces)
        .map(|range| {
            let mut cut = SliceRows(range);
            (input.clone().map(&mut cut), target.clone().map(&mut cut))
        })
        .collect()
}

/// Divides `rows` into `pieces` ranges whose lengths differ by at most one; the longer ones come first.
fn even_ranges(rows: usize, pieces: usize) -> impl Iterator<Item = Range<usize>> {
    let (length, longer) = (rows.checked_div(pieces).unwrap_or(0), rows.checked_rem(pieces).unwrap_or(0));
    (0..pieces).map(move |piece| {
        let start = piece * length + piece.min(longer);
        start..start + length + usize::from(piece < longer)
    })
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

struct SliceRows(Range<usize>);

impl PayloadMapper for SliceRows {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        tensor.slice_dim(0, self.0.clone())
    }
    fn int<const D: usize>(&mut self, tensor: Tensor<D, Int>) -> Tensor<D, Int> {
        tensor.slice_dim(0, self.0.clone())
    }
    fn bool<const D: usize>(&mut self, tensor: Tensor<D, Bool>) -> Tensor<D, Bool> {
        tensor.slice_dim(0, self.0.clone())
    }
}

/// An error in a batch, found before any worker sees it: the pipeline is unchanged and accepts the next batch.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum BatchError {
    /// The batch has fewer rows than the step has micro-batches.
    #[error(
        "a batch of {rows} rows cannot be cut into {} micro-batches{}; give at least {0} rows, or {}",
        micro_batches * replicas, shared_by(*micro_batches, *replicas), fewer(*rows, *replicas)
    )]
    TooSmall {
        /// The number of rows in the batch.
        rows: usize,
        /// M, the number of micro-batches of each replica.
        micro_batches: usize,
        /// R, the number of replicas that share the batch.
        replicas: usize,
    },
    /// The tensors of the batch have no rows.
    #[error("the batch has 0 rows; give at least one row per micro-batch")]
    NoRows,
    /// The sum of all loss weights overflows to infinity.
    #[error("the loss weights of the batch add up to infinity; count them in a larger unit")]
    TotalWeight,
    /// A batch that was cut by hand has a different number of pieces than the pipeline has micro-batches.
    #[error(
        "the batch was cut into {given} micro-batches, but the pipeline runs {}{}; cut it into {0}{}",
        micro_batches * replicas, shared_by(*micro_batches, *replicas), or_built_for(*given, *replicas)
    )]
    Count {
        /// The number of pieces that were given.
        given: usize,
        /// M, the number of micro-batches of each replica.
        micro_batches: usize,
        /// R, the number of replicas that share the batch.
        replicas: usize,
    },
    /// The tensors of the batch do not have the same number of rows.
    #[error(
        "tensor {tensor} of the batch has {found} rows, but tensor 0 has {rows}; \
         give every tensor one row a sample along dimension 0, or cut by hand with `Batch::from_micro_batches`"
    )]
    Uneven {
        /// The number of rows of the first tensor.
        rows: usize,
        /// The index of the tensor that differs; indices run through the input and then the target.
        tensor: usize,
        /// The number of rows of the tensor that differs.
        found: usize,
    },
    /// The batch contains no tensor.
    #[error("the batch contains no tensor, so it has no rows to cut; cut it by hand with `Batch::from_micro_batches`")]
    NoTensors,
    /// A loss weight is negative or not finite.
    #[error("micro-batch {micro_batch} has loss weight {weight}; `LossStage::weight` must be finite and not negative")]
    Weight {
        /// The index of the micro-batch.
        micro_batch: usize,
        /// The value that `LossStage::weight` returned.
        weight: f64,
    },
    /// The loss weights of micro-batches have different numbers of terms, or no term.
    #[error(
        "micro-batch {micro_batch} has a loss weight of {found} terms, but the first micro-batch has {terms}; \
         `LossStage::weight` must return one number for each term of the loss, and at least one, for all targets"
    )]
    Terms {
        /// The index of the micro-batch.
        micro_batch: usize,
        /// The number of terms of this micro-batch's weight.
        found: usize,
        /// The number of terms of the first micro-batch's weight.
        terms: usize,
    },
    /// The user's `LossStage::weight` panicked.
    #[error("`LossStage::weight` failed on the targets of micro-batch {micro_batch}: {failure}")]
    WeightPanic {
        /// The index of the micro-batch.
        micro_batch: usize,
        /// The message of the panic.
        failure: String,
    },
    /// The total loss weight is 0, because every target is masked.
    #[error(
        "the total loss weight of the batch is 0: every target is masked; leave such a batch out, or unmask a target"
    )]
    NoWeight,
}

impl BatchError {
    /// Returns the error with its micro-batches counted per replica, for a batch that `replicas` replicas share.
    pub(crate) fn of_replicas(self, replicas: usize) -> Self {
        match self {
            Self::TooSmall { rows, micro_batches, .. } => {
                Self::TooSmall { rows, micro_batches: micro_batches / replicas, replicas }
            }
            Self::Count { given, micro_batches, .. } => {
                Self::Count { given, micro_batches: micro_batches / replicas, replicas }
            }
            other => other,
        }
    }
}

/// Returns the part of a message that tells how many micro-batches each replica has; empty for one replica.
fn shared_by(micro_batches: usize, replicas: usize) -> String {
    if replicas == 1 { String::new() } else { format!(", {micro_batches} for each of {replicas} replicas") }
}

/// Returns the advice for a batch with too few rows: fewer replicas, or fewer micro-batches for each.
fn fewer(rows: usize, replicas: usize) -> String {
    match rows / replicas {
        0 => format!("use at most {rows} replicas"),
        most => format!("lower the number of micro-batches to {most} or fewer"),
    }
}

/// Returns the advice to build the pipeline for the given pieces; empty if the replicas cannot share them evenly.
fn or_built_for(given: usize, replicas: usize) -> String {
    match given / replicas {
        each if each > 0 && given.is_multiple_of(replicas) => format!(", or build the pipeline with {each}"),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers in the advice of a message are ones with which the batch would be accepted.
    #[test]
    fn messages_name_the_micro_batches_of_a_replica() {
        let small = |rows, micro_batches, replicas| BatchError::TooSmall { rows, micro_batches, replicas }.to_string();
        assert_eq!(
            small(3, 4, 1),
            "a batch of 3 rows cannot be cut into 4 micro-batches; give at least 4 rows, or lower the number of \
             micro-batches to 3 or fewer"
        );
        assert_eq!(
            small(15, 8, 2),
            "a batch of 15 rows cannot be cut into 16 micro-batches, 8 for each of 2 replicas; give at least 16 rows, or \
             lower the number of micro-batches to 7 or fewer"
        );
        assert!(small(3, 8, 4).ends_with("give at least 32 rows, or use at most 3 replicas"));
        let count = |given, micro_batches, replicas| BatchError::Count { given, micro_batches, replicas }.to_string();
        assert!(count(6, 4, 1).ends_with("cut it into 4, or build the pipeline with 6"));
        assert!(count(6, 4, 2).ends_with(
            "but the pipeline runs 8, 4 for each of 2 replicas; cut it into 8, or build the pipeline with 3"
        ));
        assert!(count(7, 4, 2).ends_with("; cut it into 8"));
        let for_two_replicas = BatchError::TooSmall { rows: 15, micro_batches: 16, replicas: 1 }.of_replicas(2);
        assert_eq!(for_two_replicas, BatchError::TooSmall { rows: 15, micro_batches: 8, replicas: 2 });
    }

    /// With a million micro-batches, work that grows with the square of their number would not end.
    #[test]
    fn sample_numbers_are_found_in_constant_time() {
        const MICRO_BATCHES: usize = 1_000_000;
        let weights = Weights::new(vec![Weight::from(1.0); MICRO_BATCHES], 5, (0..MICRO_BATCHES).map(|at| at % 3));
        let mut end = 5;
        for micro_batch in 0..MICRO_BATCHES {
            let samples = weights.samples(7, micro_batch);
            assert_eq!(samples, Samples { step: 7, first: end, count: micro_batch % 3 });
            end += micro_batch % 3;
        }
        assert_eq!(weights.all_samples(), end - 5);
        let parts = weights.divided(300_000);
        assert_eq!(parts.iter().map(|part| part.each.len()).collect::<Vec<_>>(), [300_000, 300_000, 300_000, 100_000]);
        assert_eq!(parts[2].samples(7, 1), weights.samples(7, 600_001));
    }

    #[cfg(feature = "flex")]
    #[test]
    fn the_largest_micro_batches_are_those_that_no_other_contains() {
        let zeros = |[rows, columns]: [usize; 2]| Tensor::<2>::zeros([rows, columns], &burn::tensor::Device::flex());
        let largest = |shapes: &[[usize; 2]]| {
            let pieces = shapes.iter().map(|&shape| (zeros(shape), zeros([1, 1]))).collect();
            let batch = MicroBatches::weigh(pieces, |_| Weight::from(1.0)).unwrap();
            let found = batch.largest(2).into_iter();
            found.map(|batch| (batch.inputs[0].dims(), batch.inputs.len())).collect::<Vec<_>>()
        };
        assert_eq!(largest(&[[4, 3], [5, 3], [5, 3], [2, 3]]), [([5, 3], 2)]);
        // The first two have equally many elements, and neither contains the other; the second one contains the third.
        assert_eq!(largest(&[[64, 64], [1, 4096], [1, 64]]), [([64, 64], 2), ([1, 4096], 2)]);
    }

    #[test]
    fn ranges_are_even_and_cover_the_rows() {
        let ranges = |rows, pieces| even_ranges(rows, pieces).collect::<Vec<_>>();
        assert_eq!(ranges(8, 2), [0..4, 4..8]);
        assert_eq!(ranges(7, 3), [0..3, 3..5, 5..7]);
        assert_eq!(ranges(3, 3), [0..1, 1..2, 2..3]);
        assert_eq!(ranges(2, 1).len(), 1);
    }
}
