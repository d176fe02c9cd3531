//! A batch, and its cut into micro-batches with their loss weights.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::tensor::{Bool, Int, Tensor};

use crate::model::loss_weight::Weight;
use crate::model::payload::{Payload, PayloadMapper};
use crate::nn::forward::samples::Samples;
use crate::threads::failure::Failure;

/// The input and the targets of one step.
#[derive(Clone, Debug)]
pub struct Batch<I, T>(Content<I, T>);

#[derive(Clone, Debug)]
enum Content<I, T> {
    Whole(I, T),
    Cut(Vec<(I, T)>),
}

impl<I: Payload, T: Payload> Batch<I, T> {
    /// A whole batch: every tensor in it has one row a sample, along dimension 0.
    ///
    /// It is cut into M micro-batches of rows in order, as evenly as possible, the larger ones first.
    pub fn new(input: I, target: T) -> Self {
        Self(Content::Whole(input, target))
    }

    /// A batch that was cut by hand, for tensors of other layouts or of other lengths a micro-batch.
    ///
    /// The first dimension of the first tensor counts a micro-batch's samples, for layers that ask
    /// ([`Samples`]).
    pub fn from_micro_batches(micro_batches: Vec<(I, T)>) -> Self {
        Self(Content::Cut(micro_batches))
    }

    /// Cuts it as a step of a pipeline does, into exactly `micro_batches` pieces: for loops of one's own.
    ///
    /// # Errors
    /// [`BatchError`] where there are fewer rows, or other pieces were cut by hand.
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

    /// Cuts and weighs for training.
    pub(crate) fn cut(self, micro_batches: usize, weight: fn(&T) -> Weight) -> Result<MicroBatches<I, T>, BatchError> {
        MicroBatches::weigh(self.into_micro_batches(micro_batches)?, weight)
    }

    /// Cuts for evaluation: at most `micro_batches` pieces of a whole batch, and as many as there are of a cut one.
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

/// A batch, cut, with what each piece weighs.
#[derive(Clone)]
pub(crate) struct MicroBatches<I, T> {
    pub(crate) inputs: Vec<I>,
    pub(crate) targets: Vec<T>,
    pub(crate) weights: Weights,
}

/// The loss weight of every micro-batch, and their total, which is positive; and which samples of the step each has.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Weights {
    pub(crate) each: Vec<Weight>,
    pub(crate) total: Weight,
    /// The first sample of each micro-batch, and behind the last one its end.
    starts: Vec<usize>,
}

impl Weights {
    /// Weights of micro-batches that have so many samples each, counted from `first`.
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

    /// The number of samples in all micro-batches together.
    pub(crate) fn all_samples(&self) -> usize {
        self.starts[self.each.len()] - self.starts[0]
    }

    /// Weights of consecutive parts of so many micro-batches; the last part may have fewer.
    pub(crate) fn divided(&self, micro_batches: usize) -> Vec<Self> {
        let part = |(index, each): (usize, &[Weight])| {
            let first = index * micro_batches;
            let starts = self.starts[first..=first + each.len()].to_vec();
            Self { each: each.to_vec(), total: total(each), starts }
        };
        self.each.chunks(micro_batches).enumerate().map(part).collect()
    }

    /// The samples of a micro-batch of a step.
    pub(crate) fn samples(&self, step: usize, micro_batch: usize) -> Samples {
        let [first, end] = [self.starts[micro_batch], self.starts[micro_batch + 1]];
        Samples { step, first, count: end - first }
    }
}

impl<I: Payload, T: Payload> MicroBatches<I, T> {
    fn weigh(pieces: Vec<(I, T)>, weight: fn(&T) -> Weight) -> Result<Self, BatchError> {
        let of_target = |(micro_batch, (_, target)): (usize, &(I, T))| {
            let panicked =
                |panic| BatchError::WeightPanic { micro_batch, failure: Failure::of_panic(panic).to_string() };
            catch_unwind(AssertUnwindSafe(|| weight(target))).map_err(panicked)
        };
        let each = pieces.iter().enumerate().map(of_target).collect::<Result<Vec<_>, _>>()?;
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

    /// The micro-batches of which none is at least as large in every dimension of every tensor as another of them: whatever a model
    /// does, one of these needs the most memory. Each is a batch of its own, repeated so many times.
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

    /// One micro-batch as a batch of its own, whose samples keep their place in the step.
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

/// The shapes of all tensors of a micro-batch, in order.
#[derive(Default)]
struct Shapes(Vec<Vec<usize>>);

impl Shapes {
    /// Whether every dimension of every tensor is at least as large as in the other micro-batch.
    fn contain(&self, other: &Self) -> bool {
        let same_ranks = self.0.iter().map(Vec::len).eq(other.0.iter().map(Vec::len));
        same_ranks && self.0.iter().flatten().zip(other.0.iter().flatten()).all(|(own, other)| own >= other)
    }
}

/// Added up in order.
fn total(each: &[Weight]) -> Weight {
    let mut total = Weight::default();
    each.iter().for_each(|weight| total.add(weight));
    total
}

/// How many samples a micro-batch has: the rows of its first tensor.
fn samples<I: Payload, T: Payload>(input: &I, target: &T) -> usize {
    row_counts(input, target).first().copied().unwrap_or(1)
}

/// The number of rows that every tensor of the batch agrees on.
fn rows<I: Payload, T: Payload>(input: &I, target: &T) -> Result<usize, BatchError> {
    let counts = row_counts(input, target);
    let rows = *counts.first().ok_or(BatchError::NoTensors)?;
    match counts.iter().position(|&found| found != rows) {
        Some(tensor) => Err(BatchError::Uneven { rows, tensor, found: counts[tensor] }),
        None => Ok(rows),
    }
}

/// The rows of every tensor of a pair, in order.
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

/// `rows` in `pieces` ranges whose lengths differ by at most one, the longer ones first.
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

/// Why a batch cannot be cut. The pipeline is as it was, and takes the next batch.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum BatchError {
    /// Fewer rows than micro-batches.
    #[error(
        "a batch of {rows} rows cannot be cut into {} micro-batches{}; give at least {0} rows, or {}",
        micro_batches * replicas, of_replicas(*micro_batches, *replicas), fewer(*rows, *replicas)
    )]
    TooSmall {
        /// Rows in the batch.
        rows: usize,
        /// M: micro-batches of each replica.
        micro_batches: usize,
        /// R: replicas that share the batch.
        replicas: usize,
    },
    /// No rows.
    #[error("the batch has 0 rows; give at least one a micro-batch")]
    NoRows,
    /// The weights add up to more than a number holds.
    #[error("the loss weights of the batch add up to infinity; measure them in a larger unit")]
    TotalWeight,
    /// A batch cut by hand has another number of pieces than the pipeline has micro-batches.
    #[error(
        "the batch was cut into {given} micro-batches, but the pipeline runs {}{}; cut it into {0}{}",
        micro_batches * replicas, of_replicas(*micro_batches, *replicas), or_built_for(*given, *replicas)
    )]
    Count {
        /// Pieces given.
        given: usize,
        /// M: micro-batches of each replica.
        micro_batches: usize,
        /// R: replicas that share the batch.
        replicas: usize,
    },
    /// The tensors of the batch do not have the same number of rows.
    #[error(
        "tensor {tensor} of the batch has {found} rows, but tensor 0 has {rows}; \
         give every tensor one row a sample along dimension 0, or cut by hand with `Batch::from_micro_batches`"
    )]
    Uneven {
        /// Rows of the first tensor.
        rows: usize,
        /// The tensor that differs, counted through input and target.
        tensor: usize,
        /// Its rows.
        found: usize,
    },
    /// The batch has no tensors.
    #[error("the batch holds no tensor, so it has no rows to cut; cut it by hand with `Batch::from_micro_batches`")]
    NoTensors,
    /// A weight is negative or not finite.
    #[error("micro-batch {micro_batch} has loss weight {weight}; `LossStage::weight` must be finite and not negative")]
    Weight {
        /// The micro-batch.
        micro_batch: usize,
        /// What `weight` returned.
        weight: f64,
    },
    /// Micro-batches have weights of other numbers of terms, or of none.
    #[error(
        "micro-batch {micro_batch} has a loss weight of {found} terms, the first one of {terms}; \
         `LossStage::weight` must give a number for each term of the loss, at least one, for all targets"
    )]
    Terms {
        /// The micro-batch.
        micro_batch: usize,
        /// How many terms its weight has.
        found: usize,
        /// How many that of the first one has.
        terms: usize,
    },
    /// `LossStage::weight` panicked.
    #[error("`LossStage::weight` failed on the targets of micro-batch {micro_batch}: {failure}")]
    WeightPanic {
        /// The micro-batch.
        micro_batch: usize,
        /// What happened.
        failure: String,
    },
    /// No target counts.
    #[error(
        "the total loss weight of the batch is 0: every target is masked; leave such a batch out, or unmask a target"
    )]
    NoWeight,
}

impl BatchError {
    /// Divides the micro-batches that the error names among the replicas that share them.
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

fn of_replicas(micro_batches: usize, replicas: usize) -> String {
    if replicas == 1 { String::new() } else { format!(", {micro_batches} for each of {replicas} replicas") }
}

/// The way out for a batch of too few rows.
fn fewer(rows: usize, replicas: usize) -> String {
    match rows / replicas {
        0 => format!("use at most {rows} replicas"),
        most => format!("lower the number of micro-batches to {most} or fewer"),
    }
}

/// The other way out for a batch of another number of pieces, if there is one.
fn or_built_for(given: usize, replicas: usize) -> String {
    match given / replicas {
        each if each > 0 && given.is_multiple_of(replicas) => format!(", or build the pipeline with {each}"),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every way out that a message names is one.
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
        let of_two = BatchError::TooSmall { rows: 15, micro_batches: 16, replicas: 1 }.of_replicas(2);
        assert_eq!(of_two, BatchError::TooSmall { rows: 15, micro_batches: 8, replicas: 2 });
    }

    /// A million micro-batches: work that grows with the square of their number would not end.
    #[test]
    fn the_samples_of_a_micro_batch_are_found_at_once() {
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
        // As many numbers, and neither is larger than the other; the third one is within the second.
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
